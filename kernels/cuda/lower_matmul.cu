// Products by cuBLASLt; a plain kernel for the types and shapes that it refuses.
#include "kernels/cuda/add_parts.cuh"
#include "kernels/cuda/body_places.h"
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
__global__ void plain_matmul_kernel(MatmulShape s, const T* a, const T* b, const Y* c, Y* y) {
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
    C sum = c != nullptr ? static_cast<C>(widen(c[i])) : C(0);
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
      product.run = [s](cudaStream_t stream, const void* a, const void* b, const void* c, void* y,
                        void* /*workspace*/) -> Status {
        const int64_t total = s.batch * s.m * s.n;
        if (total == 0) return {};
        const void* start = s.accumulate ? y : s.adds ? c : nullptr;
        plain_matmul_kernel<<<blocks_for(total, 256), 256, 0, stream>>>(
            s, static_cast<const T*>(a), static_cast<const T*>(b), static_cast<const Y*>(start),
            static_cast<Y*>(y));
        return launched();
      };
    });
  });
  return product;
}

/// Products of 16-bit operands over leading rows only, where the parts lie like a batch.
int64_t parts_of(const MatmulShape& s) {
  const bool fits = s.operands == DType::kBF16 && s.batch == 1 && !s.adds && s.trans_a &&
                    !s.trans_b && s.stride_a + s.stride_b + s.stride_y == 0 && s.m * s.n % 4 == 0 &&
                    (s.result == DType::kF32 || s.result == DType::kBF16);
  return fits ? parts_of_sum(s.m, s.n, s.k) : 1;
}

/// The parts as a batch of products into the workspace, then their sum.
Result<Product> split_product(CudaDevice& device, const MatmulShape& s, int64_t parts) {
  MatmulShape piece = s;
  piece.batch = parts;
  piece.k = s.k / parts;
  piece.result = DType::kF32;
  piece.accumulate = false;
  SGA_ASSIGN(const auto matmul, Matmul::create(device, piece));
  const int64_t n = s.m * s.n;
  const int64_t sums_bytes = round_up(parts * n * 4, 256);
  Product product;
  product.workspace_bytes = sums_bytes + matmul->workspace_bytes();
  product.run = [=](cudaStream_t stream, const void* a, const void* b, const void* /*c*/, void* y,
                    void* workspace) -> Status {
    auto* sums = static_cast<float*>(workspace);
    SGA_TRY(matmul->run(stream, a, b, sums, static_cast<std::byte*>(workspace) + sums_bytes));
    return add_parts(stream, parts, s.accumulate, n, sums, s.result, y);
  };
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
  s.accumulate = op.kind == OpKind::kMatmulAccumulate && !starts_from_zero(low.body(), op);
  s.adds = op.kind == OpKind::kMatmul && op.operands.size() > 2;
  return s;
}

}  // namespace

int64_t parts_of_sum(int64_t m, int64_t n, int64_t k) {
  constexpr int64_t kTile = 128 * 256;
  constexpr int64_t kLeastPart = 2048;
  constexpr int64_t kWantedTiles = 128;
  int64_t parts = 1;
  while (ceil_div(m * n, kTile) * parts * 2 <= kWantedTiles && k % (parts * 2) == 0 &&
         k / (parts * 2) >= kLeastPart) {
    parts *= 2;
  }
  return parts;
}

Result<Product> create_product(CudaDevice& device, const MatmulShape& s) {
  Product product;
  const bool empty = s.batch * s.m * s.n == 0 || s.k == 0;
  if (!empty && std::max({s.m, s.n, s.k, s.batch}) <= INT_MAX) {
    if (const int64_t parts = parts_of(s); parts > 1) {
      auto split = split_product(device, s, parts);
      if (split.ok() || split.status().code() != Code::kUnsupported) return split;
    }
    auto made = Matmul::create(device, s);
    if (made.ok()) {
      product.workspace_bytes = (*made)->workspace_bytes();
      product.run = [matmul = *made](cudaStream_t stream, const void* a, const void* b,
                                     const void* c, void* y, void* workspace) {
        return matmul->run(stream, a, b, y, workspace, {}, c);
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
  const ValueId c = s.adds ? op.operands[2] : y;
  auto product = create_product(low.device(), s);
  if (product.status().code() == Code::kUnsupported) return low.no_kernel(op);
  SGA_TRY(product.status());
  low.need_scratch(product->workspace_bytes);
  std::string family = product->plain ? "matmul, plain " : "matmul ";
  if (low.device().profile() != nullptr && s.flops() > 1e9) family += s.name();
  low.add(
      [=, run = product->run](const Frame& f) {
        return run(f.stream, f.values[a], f.values[b], f.values[c], f.values[y], f.scratch);
      },
      std::move(family));
  return {};
}

}  // namespace sgactor::kernels::cuda
