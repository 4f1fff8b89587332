#pragma once
// Entries of a family's KernelTable that family_table.cc collects, by source file.
#include "kernels/cpu/kernel_table.h"

namespace sgactor::kernels::cpu::SGA_CPU_FAMILY {

void add_pointwise_kernels(KernelTable& table);  // family_pointwise.cc
void add_row_kernels(KernelTable& table);        // family_rows.cc
void add_optimizer_kernels(KernelTable& table);  // family_optimizer.cc
void add_attention_kernels(KernelTable& table);  // family_attention.cc
void add_gemm_kernels(KernelTable& table);       // family_gemm.cc

}  // namespace sgactor::kernels::cpu::SGA_CPU_FAMILY
