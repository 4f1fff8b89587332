#include "kernels/cpu/kernel_table.h"

namespace sgactor::kernels::cpu {

const KernelTable& select_kernel_table() {
  // __builtin_cpu_supports also asks the operating system (XGETBV) whether it saves the registers.
  if (__builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
      __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512vl") != 0) {
    return avx512::kernel_table();
  }
  if (__builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0) {
    return avx2::kernel_table();
  }
  return baseline::kernel_table();
}

}  // namespace sgactor::kernels::cpu
