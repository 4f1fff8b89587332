#pragma once
#include "graph/base/dtype.h"
#include "graph/base/status.h"
#include "graph/ir/graph.h"

#include <cstdint>
#include <string>
#include <vector>

namespace sgactor::apps {

/// One op whose speed is measured.
struct KernelCase {
  std::string name;  ///< "up 1024x768x288 NT"
  graph::Graph graph;
  double flops = 0;
  double bytes = 0;         ///< read and written, each operand and result once
  bool is_product = false;  ///< bound by arithmetic, the others by memory
};

/// Sizes of a Llama layer and its head.
struct KernelDims {
  int64_t hidden = 288;  ///< of llama-15m
  int64_t feed_forward = 768;
  int64_t vocabulary = 32000;
  int64_t heads = 6;
  int64_t head_dim = 48;
};

/// Ops of a Llama layer and head at batch * seq_len tokens. Products and attention are in
/// `dtype`, the rest in f32. Errors: as the ops' shape rules.
Result<std::vector<KernelCase>> llama_kernels(int64_t batch, int64_t seq_len,
                                              const KernelDims& dims = {},
                                              DType dtype = DType::kF32);
/// C[m, n] = A[m, k] B[n, k]^T.
Result<KernelCase> product_kernel(int64_t m, int64_t n, int64_t k, DType dtype = DType::kF32);
/// Sum of two f32 tensors of `elements` elements: three times as many values from and to memory.
Result<KernelCase> add_kernel(int64_t elements);

}  // namespace sgactor::apps
