#include "kernels/cuda/device.h"

#include "graph/base/units.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/draw_normal.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/matmul_table.h"
#include "kernels/cuda/profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <system_error>
#include <utility>

namespace sgactor::kernels::cuda {
namespace {

constexpr int kNeededMajor = 9;

/// Kernels of cuBLASLt, cuDNN and ours, which load with the first product or attention of a kind,
/// and recorded graphs. tests/gpu/memory_test.cc finds 8 to 13 MiB in steps of llama-125m on an
/// H200; larger models record more.
constexpr int64_t kProcessBytes = int64_t{128} << 20;
/// The workspace of large products (kLargeWorkspace in matmul.cc), and as much again for parts of
/// sums and for the rows of attention and the head. The head's logits are not counted: they lie in
/// the plan's arena, but where compile.head_room = "none".
constexpr int64_t kScratchBytes = int64_t{128} << 20;

class CudaMemory final : public DeviceMemory {
 public:
  CudaMemory(std::byte* data, int64_t bytes, int32_t device,
             std::shared_ptr<AllocationCounter> counter)
      : data_(data), bytes_(bytes), device_(device), counter_(std::move(counter)) {}
  CudaMemory(const CudaMemory&) = delete;
  CudaMemory& operator=(const CudaMemory&) = delete;
  ~CudaMemory() override {
    cudaSetDevice(device_);
    cudaFree(data_);
    counter_->remove(bytes_);
  }
  [[nodiscard]] std::byte* data() const override { return data_; }
  [[nodiscard]] int64_t bytes() const override { return bytes_; }

 private:
  std::byte* data_;
  int64_t bytes_;
  int32_t device_;
  std::shared_ptr<AllocationCounter> counter_;
};

/// Of the host, page-locked.
class HostMemory final : public DeviceMemory {
 public:
  HostMemory(std::byte* data, int64_t bytes) : data_(data), bytes_(bytes) {}
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;
  ~HostMemory() override { cudaFreeHost(data_); }
  [[nodiscard]] std::byte* data() const override { return data_; }
  [[nodiscard]] int64_t bytes() const override { return bytes_; }

 private:
  std::byte* data_;
  int64_t bytes_;
};

/// SGACTOR_CUDA_MATMULS names the file of measured products (empty: none), else it lies in the
/// user's cache. Where that cannot be written, products use the library's first choice.
Status open_matmul_table(MatmulTable& table) {
  const char* given = std::getenv("SGACTOR_CUDA_MATMULS");
  const std::string file = given != nullptr ? given : default_matmul_file();
  if (file.empty()) return {};
  const Status status = table.open(file);
  return given != nullptr ? status : Status();
}

/// A thread that does beside the start what the first body would wait for; none where none can be
/// started: whoever asks first then waits.
template <class F>
std::jthread start_loader(F load) {
  try {
    return std::jthread(std::move(load));
  } catch (const std::system_error&) {
    return {};
  }
}

}  // namespace

void AllocationCounter::add(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  stats_.num_allocations += 1;
  stats_.live_bytes += bytes;
  stats_.peak_bytes = std::max(stats_.peak_bytes, stats_.live_bytes);
}
void AllocationCounter::remove(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  stats_.live_bytes -= bytes;
}
AllocationStats AllocationCounter::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

bool probe_devices(std::string* why) {
  int driver = 0;
  cudaDriverGetVersion(&driver);
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  cudaGetLastError();
  if (driver == 0) {
    *why = fmt::format("no NVIDIA driver; needed: one for CUDA {}.{}", CUDART_VERSION / 1000,
                       CUDART_VERSION % 1000 / 10);
  } else if (error != cudaSuccess) {
    *why = fmt::format("{} (driver for CUDA {}.{}, needed {}.{})", cudaGetErrorString(error),
                       driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000,
                       CUDART_VERSION % 1000 / 10);
  } else if (count == 0) {
    *why = "the driver shows no GPU";
  }
  return error == cudaSuccess && count > 0;
}

CudaDevice::CudaDevice() : attentions_(std::make_unique<AttentionPlans>()) {}

CudaDevice::~CudaDevice() {
  if (library_loader_.joinable()) library_loader_.join();
  if (attention_loader_.joinable()) attention_loader_.join();
  if (product_loader_.joinable()) product_loader_.join();
  cudaSetDevice(index_);
  if (profile_) profile_->write_report();
  if (blas_ != nullptr) cublasLtDestroy(blas_);
  if (transfers_ != nullptr) cudaStreamDestroy(transfers_);
}

Result<std::shared_ptr<CudaDevice>> CudaDevice::create(int32_t index) {
  std::jthread libraries = start_loader(load_attention_libraries);
  std::string why;
  if (!probe_devices(&why)) return unsupported("cuda: " + why);
  std::shared_ptr<CudaDevice> device(new CudaDevice());
  device->library_loader_ = std::move(libraries);
  SGA_TRY(device->open(index));
  return device;
}

Status CudaDevice::open(int32_t index) {
  int count = 0;
  SGA_CUDA_TRY(cudaGetDeviceCount(&count));
  if (index < 0 || index >= count)
    return unsupported(fmt::format("cuda: there is no device {}, found {}", index, count));
  index_ = index;
  cudaDeviceProp properties{};
  SGA_CUDA_TRY(cudaGetDeviceProperties(&properties, index));
  if (properties.major != kNeededMajor) {
    return unsupported(fmt::format("cuda: device {} is {} of compute capability {}.{}, needed {}.x",
                                   index, properties.name, properties.major, properties.minor,
                                   kNeededMajor));
  }
  attention_loader_ = start_loader([index] { load_fused_attention(index); });
  SGA_TRY(use());
  SGA_CUDA_TRY(cudaStreamCreateWithFlags(&transfers_, cudaStreamNonBlocking));
  if (const cublasStatus_t s = cublasLtCreate(&blas_); s != CUBLAS_STATUS_SUCCESS) {
    return make_status(Code::kDeviceFault,
                       fmt::format("cuda: cublasLtCreate: {}", cublasLtGetStatusString(s)),
                       Scope::kRank);
  }
  // Behind what makes the context, before threads of ours compile.
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  SGA_CUDA_TRY(cudaMemGetInfo(&free_bytes, &total_bytes));
  info_.free_bytes = std::max<int64_t>(1, static_cast<int64_t>(free_bytes));
  const std::string kind =
      fmt::format("sm{}{}x{}", properties.major, properties.minor, properties.multiProcessorCount);
  const std::string library = fmt::format("cublaslt-{}", cublasLtGetVersion());
  matmuls_ = std::make_unique<MatmulTable>(kind + " " + library);
  SGA_TRY(open_matmul_table(*matmuls_));
  load_products();
  if (const char* file = std::getenv("SGACTOR_CUDA_PROFILE"); file != nullptr)
    profile_ = std::make_unique<Profile>(file);
  const char* graphs = std::getenv("SGACTOR_CUDA_GRAPHS");
  graphs_ = graphs == nullptr || std::string_view(graphs) != "0";
  info_.backend = "cuda";
  info_.device = fmt::format("cuda:{}", index);
  info_.description = fmt::format("{}, {}, {}, CUDA {}.{}", properties.name,
                                  format_bytes(static_cast<int64_t>(properties.totalGlobalMem)),
                                  library, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
  // Tuned choices and attention's library are part of it: other algorithms sum in another order.
  info_.fingerprint = fmt::format("cuda-1/{}/{}/{}", kind, library, matmuls_->fingerprint());
  info_.fingerprint += "/" + attention_fingerprint();
  if (std::getenv("SGACTOR_CUDA_ATTENTION_ATOMICS") != nullptr) info_.fingerprint += "/atomics";
  if (const char* gradient = std::getenv("SGACTOR_CUDA_ATTENTION_GRADIENT"); gradient != nullptr)
    info_.fingerprint += std::string("/gradient-") + gradient;
  info_.memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
  info_.process_bytes = kProcessBytes;
  info_.scratch_bytes = kScratchBytes;
  return {};
}

void CudaDevice::load_products() {
  product_loader_ = start_loader([this] {
    // The library's first choice of an algorithm takes it 0.1 s; too small to be measured.
    const MatmulShape small{
        .m = 256, .n = 256, .k = 256, .operands = DType::kBF16, .result = DType::kBF16};
    if (use().ok()) static_cast<void>(Matmul::create(*this, small).ok());
  });
}

Status CudaDevice::use() const { return cuda_status(cudaSetDevice(index_)); }

Status CudaDevice::write(std::byte* to, std::span<const std::byte> from) {
  if (from.empty()) return {};
  const std::lock_guard lock(transfer_mutex_);
  SGA_TRY(use());
  SGA_CUDA_TRY(cudaMemcpyAsync(to, from.data(), from.size(), cudaMemcpyHostToDevice, transfers_));
  return cuda_status(cudaStreamSynchronize(transfers_));
}

Status CudaDevice::read(std::span<std::byte> to, const std::byte* from) {
  if (to.empty()) return {};
  const std::lock_guard lock(transfer_mutex_);
  SGA_TRY(use());
  SGA_CUDA_TRY(cudaMemcpyAsync(to.data(), from, to.size(), cudaMemcpyDeviceToHost, transfers_));
  return cuda_status(cudaStreamSynchronize(transfers_));
}

Status CudaDevice::fill_normal(std::byte* to, const TensorType& type,
                               const NormalNumbers& numbers) {
  if (type.dtype != DType::kF32 && type.dtype != DType::kF64)
    return unsupported("cuda draws no numbers of " + type.to_string());
  const std::lock_guard lock(transfer_mutex_);
  SGA_TRY(use());
  SGA_TRY(draw_normal(to, type, numbers, transfers_));
  return cuda_status(cudaStreamSynchronize(transfers_));
}

Result<std::unique_ptr<DeviceMemory>> CudaDevice::allocate(int64_t bytes, std::string_view label) {
  if (bytes < 0) return invalid_argument("allocation of a negative number of bytes");
  SGA_TRY(use());
  void* data = nullptr;
  const auto size = static_cast<size_t>(std::max<int64_t>(bytes, 1));
  if (Status s = cuda_status(cudaMalloc(&data, size)); !s.ok()) {
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    cudaMemGetInfo(&free_bytes, &total_bytes);
    const Scope scope = s.code() == Code::kOutOfMemory ? Scope::kDevice : s.scope();
    return Status(
        s.code(), scope,
        fmt::format("no memory for {} of {}, {} has {} free of {}: {}", format_bytes(bytes), label,
                    info_.device, format_bytes(static_cast<int64_t>(free_bytes)),
                    format_bytes(static_cast<int64_t>(total_bytes)), s.message()),
        s.origin());
  }
  auto memory =
      std::make_unique<CudaMemory>(static_cast<std::byte*>(data), bytes, index_, counter_);
  counter_->add(bytes);
  const std::lock_guard lock(transfer_mutex_);
  SGA_CUDA_TRY(cudaMemsetAsync(data, 0, size, transfers_));
  SGA_CUDA_TRY(cudaStreamSynchronize(transfers_));
  return std::unique_ptr<DeviceMemory>(std::move(memory));
}

Result<std::unique_ptr<DeviceMemory>> CudaDevice::allocate_host(int64_t bytes,
                                                                std::string_view label) {
  if (bytes < 0) return invalid_argument("allocation of a negative number of bytes");
  SGA_TRY(use());
  void* data = nullptr;
  const auto size = static_cast<size_t>(std::max<int64_t>(bytes, 1));
  if (Status s = cuda_status(cudaHostAlloc(&data, size, cudaHostAllocDefault)); !s.ok()) {
    return Status(s.code(), s.scope(),
                  fmt::format("no page-locked memory of the host for {} of {}: {}",
                              format_bytes(bytes), label, s.message()),
                  s.origin());
  }
  return std::unique_ptr<DeviceMemory>(
      std::make_unique<HostMemory>(static_cast<std::byte*>(data), bytes));
}

}  // namespace sgactor::kernels::cuda
