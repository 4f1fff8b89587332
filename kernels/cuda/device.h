#pragma once
#include "graph/base/status.h"
#include "kernels/backend/backend.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>

namespace sgactor::kernels::cuda {

class MatmulTable;
class Profile;

/// Shared by the backend and its memory, which may outlive it. Thread-safe.
class AllocationCounter {
 public:
  void add(int64_t bytes);
  void remove(int64_t bytes);
  [[nodiscard]] AllocationStats stats() const;

 private:
  mutable std::mutex mutex_;
  AllocationStats stats_;
};

/// One GPU: what backend, streams and executables share. Thread-safe; freed with the last of them.
class CudaDevice {
 public:
  /// Errors: kUnsupported with what was found and what is needed (no device of this index, compute
  /// capability below 9.0); kDeviceFault.
  static Result<std::shared_ptr<CudaDevice>> create(int32_t index);
  ~CudaDevice();
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  /// Makes the device the calling thread's.
  [[nodiscard]] Status use() const;
  /// Blocking copies to and from host memory, on a stream of their own.
  Status write(std::byte* to, std::span<const std::byte> from);
  Status read(std::span<std::byte> to, const std::byte* from);
  Result<std::unique_ptr<DeviceMemory>> allocate(int64_t bytes, std::string_view label);

  [[nodiscard]] const DeviceInfo& info() const { return info_; }
  [[nodiscard]] cublasLtHandle_t blas() const { return blas_; }
  [[nodiscard]] MatmulTable& matmuls() { return *matmuls_; }
  /// Null unless kernels are to be timed (SGACTOR_CUDA_PROFILE names the file to write).
  [[nodiscard]] Profile* profile() const { return profile_.get(); }
  [[nodiscard]] AllocationStats allocation_stats() const { return counter_->stats(); }

 private:
  CudaDevice();
  Status open(int32_t index);

  int32_t index_ = 0;
  DeviceInfo info_;
  cublasLtHandle_t blas_ = nullptr;
  cudaStream_t transfers_ = nullptr;
  std::mutex transfer_mutex_;
  std::shared_ptr<AllocationCounter> counter_ = std::make_shared<AllocationCounter>();
  std::unique_ptr<MatmulTable> matmuls_;
  std::unique_ptr<Profile> profile_;
};

/// Whether this process sees a GPU that the module's kernels run on; else why not.
bool probe_devices(std::string* why);

}  // namespace sgactor::kernels::cuda
