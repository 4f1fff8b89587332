#pragma once
#include "kernels/backend/backend.h"

#include <atomic>
#include <memory>
#include <string_view>

namespace sgactor::kernels::cpu {

/// Counts every block of memory that the backend hands out or keeps. Thread-safe.
class AllocationCounter {
 public:
  void add(int64_t bytes);
  void remove(int64_t bytes);
  [[nodiscard]] AllocationStats stats() const;

 private:
  std::atomic<int64_t> num_{0};
  std::atomic<int64_t> live_{0};
  std::atomic<int64_t> peak_{0};
};

/// Zeroed memory, aligned to 64 bytes, or to 2 MiB and advised to use huge pages from 2 MiB on.
/// `counter` must outlive the block. Errors: kOutOfMemory naming `label` and the bytes.
Result<std::unique_ptr<DeviceMemory>> allocate_aligned(std::shared_ptr<AllocationCounter> counter,
                                                       int64_t bytes, std::string_view label);

}  // namespace sgactor::kernels::cpu
