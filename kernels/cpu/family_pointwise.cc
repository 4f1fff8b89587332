#include "kernels/cpu/family_kernels.h"
#include "kernels/cpu/family_math.h"

namespace sgactor::kernels::cpu::SGA_CPU_FAMILY {
namespace {

template <Binary kOp>
SGA_INLINE Vec apply(Vec a, Vec b) {
  switch (kOp) {
    case kAdd:
      return a + b;
    case kSub:
      return a - b;
    case kMul:
      return a * b;
    case kDiv:
      return a / b;
    case kMin:
      return b < a ? b : a;
    default:
      return b > a ? b : a;
  }
}

template <Binary kOp>
void binary(float* y, const float* a, const float* b, int64_t n) {
  map(
      n, y, [](Vec u, Vec v) { return apply<kOp>(u, v); }, a, b);
}

template <Binary kOp>
void binary_scalar(float* y, const float* a, float b, int64_t n) {
  const Vec v = splat(b);
  map(
      n, y, [v](Vec u) { return apply<kOp>(u, v); }, a);
}

template <Unary kOp>
SGA_INLINE Vec apply(Vec x, Vec param) {
  switch (kOp) {
    case kNeg:
      return -x;
    case kExp:
      return exp(x);
    case kSqrt:
      return sqrt(x);
    case kRsqrt:
      return 1.0F / sqrt(x);
    case kSquare:
      return x * x;
    case kSigmoid:
      return sigmoid(x);
    case kSilu:
      return x * sigmoid(x);
    case kScale:
      return x * param;
    default:
      return x + param;
  }
}

template <Unary kOp>
void unary(float* y, const float* x, int64_t n, float param) {
  const Vec p = splat(param);
  map(
      n, y, [p](Vec v) { return apply<kOp>(v, p); }, x);
}

void fill(float* y, const float* /*x*/, int64_t n, float param) {
  const Vec p = splat(param);
  map(n, y, [p] { return p; });
}

SGA_INLINE Vec silu_slope(Vec x) {
  const Vec s = sigmoid(x);
  return s * (1.0F + x * (1.0F - s));
}

void silu_grad(float* dx, const float* x, const float* dy, int64_t n) {
  map(
      n, dx, [](Vec v, Vec dv) { return dv * silu_slope(v); }, x, dy);
}

void swiglu(float* y, const float* gate, const float* up, int64_t n) {
  map(
      n, y, [](Vec g, Vec u) { return g * sigmoid(g) * u; }, gate, up);
}

SGA_INLINE void swiglu_grad_one(Vec g, Vec u, Vec dy, Vec& dgate, Vec& dup) {
  const Vec s = sigmoid(g);
  const Vec silu = g * s;
  dgate = dy * u * (s + silu * (1.0F - s));
  dup = dy * silu;
}

void swiglu_grad(float* dgate, float* dup, const float* gate, const float* up, const float* dy,
                 int64_t n) {
  Vec dg;
  Vec du;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    swiglu_grad_one(load(gate + i), load(up + i), load(dy + i), dg, du);
    store(dgate + i, dg);
    store(dup + i, du);
  }
  if (i < n) {
    swiglu_grad_one(load_part(gate + i, n - i), load_part(up + i, n - i), load_part(dy + i, n - i),
                    dg, du);
    store_part(dgate + i, dg, n - i);
    store_part(dup + i, du, n - i);
  }
}

void bf16_to_f32(float* y, const uint16_t* x, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t bits = static_cast<uint32_t>(x[i]) << 16;
    std::memcpy(y + i, &bits, sizeof(bits));
  }
}

void f32_to_bf16(uint16_t* y, const float* x, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    uint32_t bits;
    std::memcpy(&bits, x + i, sizeof(bits));
    const uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
    const uint32_t quiet_nan = (bits >> 16) | 0x40U;
    y[i] = static_cast<uint16_t>((bits & 0x7fffffffU) > 0x7f800000U ? quiet_nan : rounded);
  }
}

}  // namespace

void add_pointwise_kernels(KernelTable& t) {
  t.binary[kAdd] = binary<kAdd>;
  t.binary[kSub] = binary<kSub>;
  t.binary[kMul] = binary<kMul>;
  t.binary[kDiv] = binary<kDiv>;
  t.binary[kMin] = binary<kMin>;
  t.binary[kMax] = binary<kMax>;
  t.binary_scalar[kAdd] = binary_scalar<kAdd>;
  t.binary_scalar[kSub] = binary_scalar<kSub>;
  t.binary_scalar[kMul] = binary_scalar<kMul>;
  t.binary_scalar[kDiv] = binary_scalar<kDiv>;
  t.binary_scalar[kMin] = binary_scalar<kMin>;
  t.binary_scalar[kMax] = binary_scalar<kMax>;
  t.unary[kNeg] = unary<kNeg>;
  t.unary[kExp] = unary<kExp>;
  t.unary[kSqrt] = unary<kSqrt>;
  t.unary[kRsqrt] = unary<kRsqrt>;
  t.unary[kSquare] = unary<kSquare>;
  t.unary[kSigmoid] = unary<kSigmoid>;
  t.unary[kSilu] = unary<kSilu>;
  t.unary[kScale] = unary<kScale>;
  t.unary[kAddScalar] = unary<kAddScalar>;
  t.unary[kFill] = fill;
  t.silu_grad = silu_grad;
  t.swiglu = swiglu;
  t.swiglu_grad = swiglu_grad;
  t.bf16_to_f32 = bf16_to_f32;
  t.f32_to_bf16 = f32_to_bf16;
}

}  // namespace sgactor::kernels::cpu::SGA_CPU_FAMILY
