#pragma once
#include "graph/base/status.h"
#include "kernels/backend/backend.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>

namespace sgactor::kernels::cuda {

class AttentionPlans;
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

/// Launches of all executables of a device. Thread-safe.
class LaunchCounter {
 public:
  void add_plain() { plain_.fetch_add(1, std::memory_order_relaxed); }
  void add_replayed() { replayed_.fetch_add(1, std::memory_order_relaxed); }
  void add_graphs(int64_t n) { graphs_.fetch_add(n, std::memory_order_relaxed); }
  [[nodiscard]] LaunchStats stats() const {
    return {plain_.load(std::memory_order_relaxed), replayed_.load(std::memory_order_relaxed),
            graphs_.load(std::memory_order_relaxed)};
  }

 private:
  std::atomic<int64_t> plain_{0};
  std::atomic<int64_t> replayed_{0};
  std::atomic<int64_t> graphs_{0};
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
  /// Page-locked; its pages are taken here, which takes some tenths of a second a GiB.
  Result<std::unique_ptr<DeviceMemory>> allocate_host(int64_t bytes, std::string_view label);

  [[nodiscard]] const DeviceInfo& info() const { return info_; }
  [[nodiscard]] cublasLtHandle_t blas() const { return blas_; }
  [[nodiscard]] MatmulTable& matmuls() { return *matmuls_; }
  [[nodiscard]] AttentionPlans& attentions() { return *attentions_; }
  /// Held while kernels are measured: bodies are compiled by several threads, and what is timed
  /// needs the GPU alone.
  [[nodiscard]] std::mutex& measuring() { return measuring_; }
  /// Null unless kernels are to be timed (SGACTOR_CUDA_PROFILE names the file to write).
  [[nodiscard]] Profile* profile() const { return profile_.get(); }
  [[nodiscard]] AllocationStats allocation_stats() const { return counter_->stats(); }
  /// Whether launches are recorded and replayed: not while kernels are timed one by one, nor with
  /// SGACTOR_CUDA_GRAPHS=0.
  [[nodiscard]] bool records_graphs() const { return graphs_ && profile_ == nullptr; }
  [[nodiscard]] LaunchCounter& launches() { return launches_; }
  /// Makes a tensor of random numbers with the host's bits. Blocking. Errors: kUnsupported for
  /// types other than f32 and f64.
  Status fill_normal(std::byte* to, const TensorType& type, const NormalNumbers& numbers);

 private:
  CudaDevice();
  Status open(int32_t index);
  void load_products();

  int32_t index_ = 0;
  bool graphs_ = true;
  DeviceInfo info_;
  cublasLtHandle_t blas_ = nullptr;
  cudaStream_t transfers_ = nullptr;
  std::mutex transfer_mutex_;
  std::shared_ptr<AllocationCounter> counter_ = std::make_shared<AllocationCounter>();
  LaunchCounter launches_;
  std::mutex measuring_;
  std::unique_ptr<MatmulTable> matmuls_;
  std::unique_ptr<AttentionPlans> attentions_;
  std::unique_ptr<Profile> profile_;
  std::jthread library_loader_;
  std::jthread attention_loader_;  ///< libraries that bodies will ask for set themselves up
  std::jthread product_loader_;
};

/// Whether this process sees a GPU that the module's kernels run on; else why not.
bool probe_devices(std::string* why);

}  // namespace sgactor::kernels::cuda
