#include "kernels/cpu/lowering.h"
#include "kernels/cpu/pointwise_functions.h"

namespace sgactor::kernels::cpu {
namespace {

using graph::Op;
using graph::OpKind;
using graph::ValueId;

double parameter_of(const Op& op) {
  if (op.kind == OpKind::kScale) return op.attrs.f64("factor");
  if (op.kind == OpKind::kAddScalar) return op.attrs.f64("value");
  return 0;
}

struct BinaryShape {
  ValueId y, a, b;
  int64_t n;       ///< elements of a
  int64_t period;  ///< elements of b: n, a divisor of n, or 1
};

template <class T>
Step scalar_binary_step(BinaryShape s, BinaryFn<T> fn) {
  return [=](const Frame& f) -> Status {
    T* y = f.ptr<T>(s.y);
    const T* a = f.ptr<T>(s.a);
    const T* b = f.ptr<T>(s.b);
    for_blocks(f, s.n, kPointwiseBlock, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) y[i] = fn(a[i], b[i % s.period]);
    });
    return {};
  };
}

Step vector_binary_step(BinaryShape s, const KernelTable& k, Binary which) {
  const auto same = k.binary[which];
  if (s.period == 1 && s.n != 1) {
    return [s, fn = k.binary_scalar[which]](const Frame& f) -> Status {
      float* y = f.ptr<float>(s.y);
      const float* a = f.ptr<float>(s.a);
      const float b = *f.ptr<float>(s.b);
      for_blocks(f, s.n, kPointwiseBlock,
                 [&](int64_t begin, int64_t end) { fn(y + begin, a + begin, b, end - begin); });
      return {};
    };
  }
  if (s.period == s.n) {
    return [s, same](const Frame& f) -> Status {
      float* y = f.ptr<float>(s.y);
      const float* a = f.ptr<float>(s.a);
      const float* b = f.ptr<float>(s.b);
      for_blocks(f, s.n, kPointwiseBlock, [&](int64_t begin, int64_t end) {
        same(y + begin, a + begin, b + begin, end - begin);
      });
      return {};
    };
  }
  return [s, same](const Frame& f) -> Status {
    float* y = f.ptr<float>(s.y);
    const float* a = f.ptr<float>(s.a);
    const float* b = f.ptr<float>(s.b);
    for_blocks(f, s.n / s.period, rows_per_block(s.period), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) same(y + r * s.period, a + r * s.period, b, s.period);
    });
    return {};
  };
}

template <class T>
Step scalar_unary_step(ValueId y_id, ValueId x_id, int64_t n, UnaryFn<T> fn, T param) {
  return [=](const Frame& f) -> Status {
    T* y = f.ptr<T>(y_id);
    const T* x = f.ptr<T>(x_id);
    for_blocks(f, n, kPointwiseBlock, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) y[i] = fn(x[i], param);
    });
    return {};
  };
}

}  // namespace

Status lower_binary(Lowering& low, const Op& op) {
  const BinaryShape s{.y = op.results[0],
                      .a = op.operands[0],
                      .b = op.operands[1],
                      .n = low.type(op.operands[0]).num_elements(),
                      .period = std::max<int64_t>(1, low.type(op.operands[1]).num_elements())};
  const auto vector = vector_binary(op.kind);
  if (all_of_type(low, op, DType::kF64)) {
    low.add(scalar_binary_step<double>(s, scalar_binary<double>(op.kind)));
  } else if (all_of_type(low, op, DType::kF32) && vector) {
    low.add(vector_binary_step(s, low.kernels(), *vector));
  } else if (all_of_type(low, op, DType::kF32)) {
    low.add(scalar_binary_step<float>(s, scalar_binary<float>(op.kind)));
  } else {
    return low.no_kernel(op);
  }
  return {};
}

Status lower_unary(Lowering& low, const Op& op) {
  const ValueId y = op.results[0];
  const ValueId x = op.operands[0];
  const int64_t n = low.type(x).num_elements();
  const double param = parameter_of(op);
  const auto vector = vector_unary(op.kind);
  if (all_of_type(low, op, DType::kF64)) {
    low.add(scalar_unary_step<double>(y, x, n, scalar_unary<double>(op.kind), param));
    return {};
  }
  if (!all_of_type(low, op, DType::kF32)) return low.no_kernel(op);
  const auto param_f32 = static_cast<float>(param);
  if (!vector) {
    low.add(scalar_unary_step<float>(y, x, n, scalar_unary<float>(op.kind), param_f32));
    return {};
  }
  low.add([=, fn = low.kernels().unary[*vector]](const Frame& f) -> Status {
    auto* to = f.ptr<float>(y);
    const auto* from = f.ptr<float>(x);
    for_blocks(f, n, kPointwiseBlock, [&](int64_t begin, int64_t end) {
      fn(to + begin, from + begin, end - begin, param_f32);
    });
    return {};
  });
  return {};
}

}  // namespace sgactor::kernels::cpu
