#include "kernels/cpu/gemm.h"
#include "kernels/cpu/lowering.h"

#include <cstring>

namespace sgactor::kernels::cpu {
namespace {

using graph::Op;
using graph::OpKind;
using graph::ValueId;

struct MatmulPlan {
  ValueId c, a, b;
  ValueId acc;  ///< what the product is added to, if g.accumulate
  Gemm g;       ///< of one batch element
  int64_t batch = 1;
  int64_t a_stride = 0, b_stride = 0, c_stride = 0;
};

MatmulPlan plan_matmul(const Lowering& low, const Op& op) {
  MatmulPlan p;
  const bool in_place = op.kind == OpKind::kMatmulAccumulate;
  const size_t first = in_place ? 1 : 0;
  const bool adds = !in_place && op.operands.size() > 2;
  p.c = op.results[0];
  p.acc = op.operands[adds ? 2 : 0];
  p.a = op.operands[first];
  p.b = op.operands[first + 1];
  const Shape& a = low.type(p.a).shape;
  p.g = gemm_of(op, a, low.type(p.b).shape);
  p.g.accumulate = adds || (in_place && !low.starts_sum(p.acc));
  const Gemm& g = p.g;
  for (int d = 0; d + 2 < a.rank(); ++d) p.batch *= a.dim(d);
  p.a_stride = g.m * g.k;
  p.b_stride = g.n * g.k;
  p.c_stride = g.m * g.n;
  return p;
}

/// The result may have been given bytes of its own: then it starts as a copy.
template <class T>
void start_accumulation(const Frame& f, const MatmulPlan& p) {
  if (!p.g.accumulate || f.ptr<T>(p.acc) == f.ptr<T>(p.c)) return;
  std::memcpy(f.ptr<T>(p.c), f.ptr<T>(p.acc),
              static_cast<size_t>(p.batch * p.c_stride) * sizeof(T));
}

Step matmul_f64(const MatmulPlan& p) {
  return [p](const Frame& f) -> Status {
    start_accumulation<double>(f, p);
    f.pool->parallel_for(p.batch, [&](int64_t i, int32_t) {
      gemm(p.g, f.ptr<double>(p.a) + i * p.a_stride, f.ptr<double>(p.b) + i * p.b_stride,
           f.ptr<double>(p.c) + i * p.c_stride);
    });
    return {};
  };
}

/// Few large products: each over all threads.
Step matmul_tiled(Lowering& low, const MatmulPlan& p) {
  const ParallelGemm product(low.kernels(), p.g);
  low.need_scratch(product.scratch_bytes(low.num_threads()));
  return [p, product](const Frame& f) -> Status {
    start_accumulation<float>(f, p);
    for (int64_t i = 0; i < p.batch; ++i) {
      product.run(*f.pool, f.ptr<float>(p.a) + i * p.a_stride, f.ptr<float>(p.b) + i * p.b_stride,
                  f.ptr<float>(p.c) + i * p.c_stride, f.scratch);
    }
    return {};
  };
}

/// Many products: one a task.
Step matmul_batched(Lowering& low, const MatmulPlan& p) {
  const int64_t stride = gemm_scratch_bytes();
  low.need_scratch(stride * low.num_threads());
  return [p, stride, k = &low.kernels()](const Frame& f) -> Status {
    start_accumulation<float>(f, p);
    f.pool->parallel_for(p.batch, [&](int64_t i, int32_t thread) {
      gemm(*k, p.g, f.ptr<float>(p.a) + i * p.a_stride, f.ptr<float>(p.b) + i * p.b_stride,
           f.ptr<float>(p.c) + i * p.c_stride,
           reinterpret_cast<float*>(f.scratch + thread * stride));
    });
    return {};
  };
}

}  // namespace

Gemm gemm_of(const Op& op, const Shape& a, const Shape& b) {
  Gemm g;
  g.trans_a = op.attrs.flag("trans_a");
  g.trans_b = op.attrs.flag("trans_b");
  g.m = a.dim(g.trans_a ? -1 : -2);
  g.k = a.dim(g.trans_a ? -2 : -1);
  g.n = b.dim(g.trans_b ? -2 : -1);
  g.lda = a.dim(-1);
  g.ldb = b.dim(-1);
  g.ldc = g.n;
  return g;
}

Status lower_matmul(Lowering& low, const Op& op) {
  constexpr int64_t kManyProducts = 8;
  const MatmulPlan p = plan_matmul(low, op);
  if (all_of_type(low, op, DType::kF64)) {
    low.add(matmul_f64(p));
    return {};
  }
  if (!all_of_type(low, op, DType::kF32)) return low.no_kernel(op);
  const bool tiled = p.batch < kManyProducts && ParallelGemm(low.kernels(), p.g).worthwhile();
  low.add(tiled ? matmul_tiled(low, p) : matmul_batched(low, p));
  return {};
}

}  // namespace sgactor::kernels::cpu
