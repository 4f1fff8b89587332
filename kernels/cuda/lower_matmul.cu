// Products by cuBLASLt; a plain kernel for the types and shapes that it refuses.
#include "kernels/cuda/kernel_math.cuh"
#include "kernels/cuda/lowering.h"
#include "kernels/cuda/matmul.h"

#include <climits>
#include <memory>
#include <string>

namespace sgactor::kernels::cuda {
namespace {

using graph::Op;
using graph::OpKind;
using graph::ValueId;

/// A thread a result, sums in order of k.
template <class T, class Y>
__global__ void plain_matmul_kernel(MatmulShape s, const T* a, const T* b, Y* y) {
  using C = std::conditional_t<std::is_same_v<Y, double>, double, Compute<T>>;
  const int64_t total = s.batch * s.m * s.n;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < total;
       i += step) {
    const int64_t n = i % s.n;
    const int64_t m = i / s.n % s.m;
    const int64_t batch = i / (s.n * s.m);
    const T* a_MK = a + batch * s.m * s.k;
    const T* b_KN = b + batch * s.k * s.n;
    C sum = s.accumulate ? static_cast<C>(widen(y[i])) : C(0);
    for (int64_t k = 0; k < s.k; ++k) {
      const T left = s.trans_a ? a_MK[k * s.m + m] : a_MK[m * s.k + k];
      const T right = s.trans_b ? b_KN[n * s.k + k] : b_KN[k * s.n + n];
      sum += static_cast<C>(widen(left)) * static_cast<C>(widen(right));
    }
    y[i] = narrow<Y>(sum);
  }
}

/// Empty for types it lacks.
Product plain_product(const MatmulShape& s) {
  Product product;
  product.plain = true;
  by_float(s.operands, [&](auto in_tag) {
    by_float(s.result, [&](auto out_tag) {
      using T = typename decltype(in_tag)::type;
      using Y = typename decltype(out_tag)::type;
      product.run = [s](cudaStream_t stream, const void* a, const void* b, void* y,
                        void* /*workspace*/) -> Status {
        const int64_t total = s.batch * s.m * s.n;
        if (total == 0) return {};
        plain_matmul_kernel<<<blocks_for(total, 256), 256, 0, stream>>>(
            s, static_cast<const T*>(a), static_cast<const T*>(b), static_cast<Y*>(y));
        return launched();
      };
    });
  });
  return product;
}

MatmulShape shape_of(const Lowering& low, const Op& op, ValueId a, ValueId b, ValueId y) {
  const Shape& result = low.type(y).shape;
  MatmulShape s;
  s.trans_a = op.attrs.flag("trans_a");
  s.trans_b = op.attrs.flag("trans_b");
  s.m = result.dim(-2);
  s.n = result.dim(-1);
  s.k = low.type(a).shape.dim(s.trans_a ? -2 : -1);
  for (int d = 0; d + 2 < result.rank(); ++d) s.batch *= result.dim(d);
  s.operands = low.type(b).dtype;
  s.result = low.type(y).dtype;
  s.accumulate = op.kind == OpKind::kMatmulAccumulate;
  return s;
}

}  // namespace

Result<Product> create_product(CudaDevice& device, const MatmulShape& s) {
  Product product;
  const bool empty = s.batch * s.m * s.n == 0 || s.k == 0;
  if (!empty && std::max({s.m, s.n, s.k, s.batch}) <= INT_MAX) {
    auto made = Matmul::create(device, s);
    if (made.ok()) {
      product.workspace_bytes = (*made)->workspace_bytes();
      product.run = [matmul = *made](cudaStream_t stream, const void* a, const void* b, void* y,
                                     void* workspace) {
        return matmul->run(stream, a, b, y, workspace);
      };
      return product;
    }
    if (made.status().code() != Code::kUnsupported) return made.status();
  }
  product = plain_product(s);
  if (!product.run) return unsupported("cuda has no product " + s.name());
  return product;
}

Status lower_matmul(Lowering& low, const Op& op) {
  const bool accumulates = op.kind == OpKind::kMatmulAccumulate;
  const ValueId a = op.operands[accumulates ? 1 : 0];
  const ValueId b = op.operands[accumulates ? 2 : 1];
  const ValueId y = op.results[0];
  const MatmulShape s = shape_of(low, op, a, b, y);
  auto product = create_product(low.device(), s);
  if (product.status().code() == Code::kUnsupported) return low.no_kernel(op);
  SGA_TRY(product.status());
  low.need_scratch(product->workspace_bytes);
  std::string family = product->plain ? "matmul, plain " : "matmul ";
  if (low.device().profile() != nullptr && s.flops() > 1e9) family += s.name();
  low.add(
      [=, run = product->run](const Frame& f) {
        return run(f.stream, f.values[a], f.values[b], f.values[y], f.scratch);
      },
      std::move(family));
  return {};
}

}  // namespace sgactor::kernels::cuda
