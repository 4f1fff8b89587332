#include "kernels/cuda/cuda_backend.h"

#include "kernels/cuda/device.h"
#include "kernels/cuda/lowering.h"
#include "kernels/cuda/stream.h"

#include <fmt/format.h>

#include <utility>

namespace sgactor::kernels {
namespace cuda {
namespace {

Status check_size(const TensorType& type, size_t bytes) {
  if (static_cast<int64_t>(bytes) == type.bytes()) return {};
  return invalid_argument(
      fmt::format("{} has {} bytes, {} given", type.to_string(), type.bytes(), bytes));
}

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(std::shared_ptr<CudaDevice> device) : device_(std::move(device)) {}

  [[nodiscard]] const DeviceInfo& info() const override { return device_->info(); }
  [[nodiscard]] bool host_visible() const override { return false; }
  [[nodiscard]] int64_t storage_bytes(const TensorType& type) const override {
    return type.bytes();
  }
  Status write_tensor(std::byte* to, const TensorType& type,
                      std::span<const std::byte> native) override {
    SGA_TRY(check_size(type, native.size()));
    return device_->write(to, native);
  }
  Status read_tensor(std::span<std::byte> native, const TensorType& type,
                     const std::byte* from) override {
    SGA_TRY(check_size(type, native.size()));
    return device_->read(native, from);
  }
  Status fill_normal(std::byte* to, const TensorType& type, const NormalNumbers& numbers) override {
    return device_->fill_normal(to, type, numbers);
  }
  Result<std::unique_ptr<Executable>> compile(const CompileRequest& request) override {
    SGA_TRY(device_->use());
    SGA_ASSIGN(std::unique_ptr<CudaExecutable> executable, Lowering(device_, request).build());
    return std::unique_ptr<Executable>(std::move(executable));
  }
  Result<std::unique_ptr<DeviceMemory>> allocate(int64_t bytes, std::string_view label) override {
    return device_->allocate(bytes, label);
  }
  Result<std::unique_ptr<DeviceMemory>> allocate_host(int64_t bytes,
                                                      std::string_view label) override {
    return device_->allocate_host(bytes, label);
  }
  Result<std::unique_ptr<Stream>> create_stream() override { return create_cuda_stream(device_); }
  [[nodiscard]] AllocationStats allocation_stats() const override {
    return device_->allocation_stats();
  }
  [[nodiscard]] LaunchStats launch_stats() const override { return device_->launches().stats(); }

 private:
  std::shared_ptr<CudaDevice> device_;
};

}  // namespace
}  // namespace cuda

Result<std::unique_ptr<Backend>> create_cuda_backend(const BackendOptions& options) {
  SGA_ASSIGN(std::shared_ptr<cuda::CudaDevice> device,
             cuda::CudaDevice::create(options.device_index));
  return std::unique_ptr<Backend>(std::make_unique<cuda::CudaBackend>(std::move(device)));
}

}  // namespace sgactor::kernels
