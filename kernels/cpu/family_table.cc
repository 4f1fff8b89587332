#include "kernels/cpu/family_kernels.h"

#define SGA_STRINGIFY_INNER(x) #x
#define SGA_STRINGIFY(x) SGA_STRINGIFY_INNER(x)

namespace sgactor::kernels::cpu::SGA_CPU_FAMILY {

const KernelTable& kernel_table() {
  static const KernelTable table = [] {
    KernelTable t{};
    t.family = SGA_STRINGIFY(SGA_CPU_FAMILY);
    add_pointwise_kernels(t);
    add_row_kernels(t);
    add_optimizer_kernels(t);
    add_attention_kernels(t);
    add_gemm_kernels(t);
    return t;
  }();
  return table;
}

}  // namespace sgactor::kernels::cpu::SGA_CPU_FAMILY
