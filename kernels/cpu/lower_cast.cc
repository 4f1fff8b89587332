// Pointwise ops of mixed dtypes or of several results: casts and gated activations.
#include "kernels/cpu/lowering.h"

#include <cmath>
#include <type_traits>

namespace sgactor::kernels::cpu {
namespace {

using graph::Op;
using graph::OpKind;
using graph::ValueId;

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
