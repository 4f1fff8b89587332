#include "kernels/cpu/gemm.h"
#include "kernels/cpu/lowering.h"

#include <cstring>

namespace sgactor::kernels::cpu {
namespace {

using graph::Op;
using graph::OpKind;
using graph::ValueId;

struct MatmulPlan {
  ValueId c, a, b, acc;
  bool in_place = false;  ///< acc is given
  Gemm whole;
  MatmulCut cut;
  int64_t batch = 1;
  int64_t a_stride = 0, b_stride = 0, c_stride = 0;
};

MatmulPlan plan_matmul(const Lowering& low, const Op& op) {
  MatmulPlan p;
  p.in_place = op.kind == OpKind::kMatmulAccumulate;
  const size_t first = p.in_place ? 1 : 0;
  p.c = op.results[0];
  p.acc = op.operands[0];
  p.a = op.operands[first];
  p.b = op.operands[first + 1];
  const Shape& a = low.type(p.a).shape;
  const Shape& b = low.type(p.b).shape;
  Gemm& g = p.whole;
  g.trans_a = op.attrs.flag("trans_a");
  g.trans_b = op.attrs.flag("trans_b");
  g.m = a.dim(g.trans_a ? -1 : -2);
  g.k = a.dim(g.trans_a ? -2 : -1);
  g.n = b.dim(g.trans_b ? -2 : -1);
  g.lda = a.dim(-1);
  g.ldb = b.dim(-1);
  g.ldc = g.n;
  g.accumulate = p.in_place;
  for (int d = 0; d + 2 < a.rank(); ++d) p.batch *= a.dim(d);
  p.a_stride = g.m * g.k;
  p.b_stride = g.n * g.k;
  p.c_stride = g.m * g.n;
  p.cut = cut_matmul(g.m, g.n, g.k);
  return p;
}

template <class T>
Step matmul_step(const MatmulPlan& p) {
  return [p](const Frame& f) -> Status {
    const Gemm& g = p.whole;
    const int64_t row_tiles = std::max<int64_t>(1, ceil_div(g.m, std::max<int64_t>(1, p.cut.rows)));
    const int64_t column_tiles =
        std::max<int64_t>(1, ceil_div(g.n, std::max<int64_t>(1, p.cut.columns)));
    const int64_t tiles = row_tiles * column_tiles;
    T* c = f.ptr<T>(p.c);
    const T* a = f.ptr<T>(p.a);
    const T* b = f.ptr<T>(p.b);
    if (p.in_place && f.ptr<T>(p.acc) != c) {
      std::memcpy(c, f.ptr<T>(p.acc), static_cast<size_t>(p.c_stride) * sizeof(T));
    }
    f.pool->parallel_for(p.batch * tiles, [&](int64_t index, int32_t) {
      const int64_t batch = index / tiles;
      const int64_t row = index % tiles / column_tiles * p.cut.rows;
      const int64_t column = index % tiles % column_tiles * p.cut.columns;
      Gemm tile = g;
      tile.m = std::min(p.cut.rows, g.m - row);
      tile.n = std::min(p.cut.columns, g.n - column);
      gemm(tile, a + batch * p.a_stride + (g.trans_a ? row : row * g.lda),
           b + batch * p.b_stride + (g.trans_b ? column * g.ldb : column),
           c + batch * p.c_stride + row * g.ldc + column);
    });
    return {};
  };
}

}  // namespace

Status lower_matmul(Lowering& low, const Op& op) {
  if (all_of_type(low, op, DType::kF32)) {
    low.add(matmul_step<float>(plan_matmul(low, op)));
  } else if (all_of_type(low, op, DType::kF64)) {
    low.add(matmul_step<double>(plan_matmul(low, op)));
  } else {
    return low.no_kernel(op);
  }
  return {};
}

}  // namespace sgactor::kernels::cpu
