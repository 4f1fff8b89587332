#pragma once
#include "kernels/backend/backend.h"

#include <atomic>
#include <cstdint>
#include <memory>

namespace sgactor::testing_support {

/// A backend whose device breaks: launch number `fail_at` (the first is 1) completes with
/// kDeviceFault, and so does everything later on that stream.
class FaultyBackend : public kernels::Backend {
 public:
  FaultyBackend(kernels::Backend& inner, int64_t fail_at) : inner_(inner), fail_at_(fail_at) {}

  [[nodiscard]] const kernels::DeviceInfo& info() const override { return inner_.info(); }
  [[nodiscard]] bool host_visible() const override { return inner_.host_visible(); }
  [[nodiscard]] int64_t storage_bytes(const TensorType& type) const override {
    return inner_.storage_bytes(type);
  }
  Status write_tensor(std::byte* to, const TensorType& type,
                      std::span<const std::byte> native) override {
    return inner_.write_tensor(to, type, native);
  }
  Status read_tensor(std::span<std::byte> native, const TensorType& type,
                     const std::byte* from) override {
    return inner_.read_tensor(native, type, from);
  }
  Result<std::unique_ptr<kernels::Executable>> compile(
      const kernels::CompileRequest& request) override {
    return inner_.compile(request);
  }
  Result<std::unique_ptr<kernels::DeviceMemory>> allocate(int64_t bytes,
                                                          std::string_view label) override {
    return inner_.allocate(bytes, label);
  }
  Result<std::unique_ptr<kernels::Stream>> create_stream() override;
  [[nodiscard]] kernels::AllocationStats allocation_stats() const override {
    return inner_.allocation_stats();
  }

 private:
  kernels::Backend& inner_;
  int64_t fail_at_;
};

/// A backend whose memory the host says it does not see, as a GPU's.
class HiddenBackend final : public FaultyBackend {
 public:
  explicit HiddenBackend(kernels::Backend& inner) : FaultyBackend(inner, INT64_MAX) {}
  [[nodiscard]] bool host_visible() const override { return false; }
};

}  // namespace sgactor::testing_support
