#pragma once
#include "kernels/backend/backend.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/memory.h"
#include "kernels/cpu/thread_pool.h"

#include <memory>

namespace sgactor::kernels::cpu {

/// What streams and executables of one backend share; lives as long as the last of them.
struct CpuDevice {
  explicit CpuDevice(int32_t num_threads) : pool(num_threads) {}

  DeviceInfo info;
  const KernelTable* kernels = nullptr;
  std::shared_ptr<AllocationCounter> counter = std::make_shared<AllocationCounter>();
  ThreadPool pool;
};

}  // namespace sgactor::kernels::cpu
