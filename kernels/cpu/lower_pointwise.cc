#include "kernels/cpu/lowering.h"

#include <cmath>
#include <optional>
#include <type_traits>

namespace sgactor::kernels::cpu {
namespace {

using graph::Op;
using graph::OpKind;
using graph::ValueId;

std::optional<Binary> vector_binary(OpKind kind) {
  switch (kind) {
    case OpKind::kAdd:
      return kAdd;
    case OpKind::kSub:
      return kSub;
    case OpKind::kMul:
      return kMul;
    case OpKind::kDiv:
      return kDiv;
    case OpKind::kMinimum:
      return kMin;
    case OpKind::kMaximum:
      return kMax;
    default:
      return std::nullopt;
  }
}

std::optional<Unary> vector_unary(OpKind kind) {
  switch (kind) {
    case OpKind::kNeg:
      return kNeg;
    case OpKind::kExp:
      return kExp;
    case OpKind::kSqrt:
      return kSqrt;
    case OpKind::kRsqrt:
      return kRsqrt;
    case OpKind::kSquare:
      return kSquare;
    case OpKind::kSigmoid:
      return kSigmoid;
    case OpKind::kSilu:
      return kSilu;
    case OpKind::kScale:
      return kScale;
    case OpKind::kAddScalar:
      return kAddScalar;
    default:
      return std::nullopt;
  }
}

template <class T>
using BinaryFn = T (*)(T, T);
template <class T>
using UnaryFn = T (*)(T, T param);

template <class T>
BinaryFn<T> scalar_binary(OpKind kind) {
  switch (kind) {
    case OpKind::kAdd:
      return [](T a, T b) { return a + b; };
    case OpKind::kSub:
      return [](T a, T b) { return a - b; };
    case OpKind::kMul:
      return [](T a, T b) { return a * b; };
    case OpKind::kDiv:
      return [](T a, T b) { return a / b; };
    case OpKind::kMinimum:
      return [](T a, T b) { return b < a ? b : a; };
    case OpKind::kMaximum:
      return [](T a, T b) { return b > a ? b : a; };
    default:
      return [](T a, T b) { return std::pow(a, b); };
  }
}

template <class T>
UnaryFn<T> scalar_unary(OpKind kind) {
  switch (kind) {
    case OpKind::kNeg:
      return [](T x, T) { return -x; };
    case OpKind::kExp:
      return [](T x, T) { return std::exp(x); };
    case OpKind::kLog:
      return [](T x, T) { return std::log(x); };
    case OpKind::kSqrt:
      return [](T x, T) { return std::sqrt(x); };
    case OpKind::kRsqrt:
      return [](T x, T) { return T{1} / std::sqrt(x); };
    case OpKind::kSquare:
      return [](T x, T) { return x * x; };
    case OpKind::kCos:
      return [](T x, T) { return std::cos(x); };
    case OpKind::kSin:
      return [](T x, T) { return std::sin(x); };
    case OpKind::kSigmoid:
      return [](T x, T) { return T{1} / (T{1} + std::exp(-x)); };
    case OpKind::kSilu:
      return [](T x, T) { return x / (T{1} + std::exp(-x)); };
    case OpKind::kScale:
      return [](T x, T p) { return x * p; };
    default:
      return [](T x, T p) { return x + p; };
  }
}

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

// Element i of a tensor of any dtype as a number, and back.
template <DType kType>
struct Native;
template <>
struct Native<DType::kF64> : std::type_identity<double> {};
template <>
struct Native<DType::kF32> : std::type_identity<float> {};
template <>
struct Native<DType::kI64> : std::type_identity<int64_t> {};
template <>
struct Native<DType::kI32> : std::type_identity<int32_t> {};
template <>
struct Native<DType::kU8> : std::type_identity<uint8_t> {};
struct Bf16 {
  uint16_t bits;
  explicit operator float() const { return bf16_to_float(bits); }
};
struct F16 {
  uint16_t bits;
  explicit operator float() const { return f16_to_float(bits); }
};
template <>
struct Native<DType::kBF16> : std::type_identity<Bf16> {};
template <>
struct Native<DType::kF16> : std::type_identity<F16> {};

template <class To, class From>
To convert(From x) {
  if constexpr (std::is_same_v<From, Bf16> || std::is_same_v<From, F16>) {
    return convert<To>(static_cast<float>(x));
  } else if constexpr (std::is_same_v<To, Bf16>) {
    return {float_to_bf16(static_cast<float>(x))};
  } else if constexpr (std::is_same_v<To, F16>) {
    return {float_to_f16(static_cast<float>(x))};
  } else {
    return static_cast<To>(x);
  }
}

using CastFn = void (*)(std::byte* y, const std::byte* x, int64_t begin, int64_t end);

template <DType kTo, DType kFrom>
void cast_range(std::byte* y_bytes, const std::byte* x_bytes, int64_t begin, int64_t end) {
  using To = typename Native<kTo>::type;
  using From = typename Native<kFrom>::type;
  auto* y = reinterpret_cast<To*>(y_bytes);
  const auto* x = reinterpret_cast<const From*>(x_bytes);
  for (int64_t i = begin; i < end; ++i) y[i] = convert<To>(x[i]);
}

template <DType kFrom>
CastFn cast_from(DType to) {
  switch (to) {
    case DType::kF64:
      return cast_range<DType::kF64, kFrom>;
    case DType::kF32:
      return cast_range<DType::kF32, kFrom>;
    case DType::kBF16:
      return cast_range<DType::kBF16, kFrom>;
    case DType::kF16:
      return cast_range<DType::kF16, kFrom>;
    case DType::kI64:
      return cast_range<DType::kI64, kFrom>;
    case DType::kI32:
      return cast_range<DType::kI32, kFrom>;
    case DType::kU8:
      return cast_range<DType::kU8, kFrom>;
    default:
      return nullptr;
  }
}

CastFn cast_function(DType to, DType from) {
  switch (from) {
    case DType::kF64:
      return cast_from<DType::kF64>(to);
    case DType::kF32:
      return cast_from<DType::kF32>(to);
    case DType::kBF16:
      return cast_from<DType::kBF16>(to);
    case DType::kF16:
      return cast_from<DType::kF16>(to);
    case DType::kI64:
      return cast_from<DType::kI64>(to);
    case DType::kI32:
      return cast_from<DType::kI32>(to);
    case DType::kU8:
      return cast_from<DType::kU8>(to);
    default:
      return nullptr;
  }
}

template <class T>
void gated_scalar(OpKind kind, T* y0, T* y1, const T* a, const T* b, const T* c, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const T x = a[i];
    const T s = T{1} / (T{1} + std::exp(-x));
    const T slope = s * (T{1} + x * (T{1} - s));
    const T u = b[i];
    if (kind == OpKind::kSiluGrad) {
      y0[i] = u * slope;
    } else if (kind == OpKind::kSwiglu) {
      y0[i] = x * s * u;
    } else {
      const T dy = c[i];
      y0[i] = dy * u * slope;
      y1[i] = dy * x * s;
    }
  }
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

Status lower_cast(Lowering& low, const Op& op) {
  const ValueId y = op.results[0];
  const ValueId x = op.operands[0];
  const int64_t n = low.type(x).num_elements();
  const DType to = low.type(y).dtype;
  const DType from = low.type(x).dtype;
  const KernelTable& k = low.kernels();
  if (to == from) {
    low.view(y, x);
  } else if (to == DType::kF32 && from == DType::kBF16) {
    low.add([=, fn = k.bf16_to_f32](const Frame& f) -> Status {
      for_blocks(f, n, kPointwiseBlock, [&](int64_t begin, int64_t end) {
        fn(f.ptr<float>(y) + begin, f.ptr<uint16_t>(x) + begin, end - begin);
      });
      return {};
    });
  } else if (to == DType::kBF16 && from == DType::kF32) {
    low.add([=, fn = k.f32_to_bf16](const Frame& f) -> Status {
      for_blocks(f, n, kPointwiseBlock, [&](int64_t begin, int64_t end) {
        fn(f.ptr<uint16_t>(y) + begin, f.ptr<float>(x) + begin, end - begin);
      });
      return {};
    });
  } else if (const CastFn fn = cast_function(to, from); fn != nullptr) {
    low.add([=](const Frame& f) -> Status {
      for_blocks(f, n, kPointwiseBlock, [&](int64_t begin, int64_t end) {
        fn(f.ptr<std::byte>(y), f.ptr<std::byte>(x), begin, end);
      });
      return {};
    });
  } else {
    return low.no_kernel(op);
  }
  return {};
}

Status lower_gated(Lowering& low, const Op& op) {
  const ValueId y0 = op.results[0];
  const ValueId y1 = op.results.size() > 1 ? op.results[1] : y0;
  const ValueId a = op.operands[0];
  const ValueId b = op.operands[1];
  const ValueId c = op.operands.size() > 2 ? op.operands[2] : b;
  const int64_t n = low.type(a).num_elements();
  const OpKind kind = op.kind;
  if (all_of_type(low, op, DType::kF64)) {
    low.add([=](const Frame& f) -> Status {
      gated_scalar(kind, f.ptr<double>(y0), f.ptr<double>(y1), f.ptr<double>(a), f.ptr<double>(b),
                   f.ptr<double>(c), n);
      return {};
    });
    return {};
  }
  if (!all_of_type(low, op, DType::kF32)) return low.no_kernel(op);
  const KernelTable& k = low.kernels();
  if (kind == OpKind::kSwigluGrad) {
    low.add([=, fn = k.swiglu_grad](const Frame& f) -> Status {
      for_blocks(f, n, kPointwiseBlock, [&](int64_t i, int64_t end) {
        fn(f.ptr<float>(y0) + i, f.ptr<float>(y1) + i, f.ptr<float>(a) + i, f.ptr<float>(b) + i,
           f.ptr<float>(c) + i, end - i);
      });
      return {};
    });
    return {};
  }
  low.add([=, fn = kind == OpKind::kSwiglu ? k.swiglu : k.silu_grad](const Frame& f) -> Status {
    for_blocks(f, n, kPointwiseBlock, [&](int64_t i, int64_t end) {
      fn(f.ptr<float>(y0) + i, f.ptr<float>(a) + i, f.ptr<float>(b) + i, end - i);
    });
    return {};
  });
  return {};
}

}  // namespace sgactor::kernels::cpu
