#include "kernels/reference/kernels.h"
#include "kernels/reference/rounding.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace sgactor::kernels::reference {
namespace {

/// The second operand's shape is a suffix of the first's, so its index is i modulo its size.
template <class F>
Status binary(const OpCall& call, F f) {
  const double* a = call.in[0].f64();
  const double* b = call.in[1].f64();
  double* y = call.out[0].f64();
  const int64_t nb = call.in[1].size();
  for (int64_t i = 0; i < call.in[0].size(); ++i) y[i] = f(a[i], b[i % nb]);
  return {};
}

template <class F>
Status unary(const OpCall& call, F f) {
  const double* x = call.in[0].f64();
  double* y = call.out[0].f64();
  for (int64_t i = 0; i < call.in[0].size(); ++i) y[i] = f(x[i]);
  return {};
}

double sigmoid_of(double x) { return 1.0 / (1.0 + std::exp(-x)); }

/// Toward zero, as C does, but defined for every input: NaN gives 0, what is too large the end of
/// the range.
int64_t to_integer(DType dtype, double x) {
  int64_t low = std::numeric_limits<int64_t>::min();
  int64_t high = std::numeric_limits<int64_t>::max();
  if (dtype == DType::kI32) {
    low = std::numeric_limits<int32_t>::min();
    high = std::numeric_limits<int32_t>::max();
  } else if (dtype == DType::kU8) {
    low = 0;
    high = 255;
  }
  if (std::isnan(x)) return 0;
  // The largest i64 is not a double: converted it becomes 2^63, the first value out of range.
  if (x >= static_cast<double>(high)) return high;
  if (x <= static_cast<double>(low)) return low;
  return static_cast<int64_t>(x);
}

/// Integers wrap to the narrower width.
int64_t wrap(DType dtype, int64_t x) {
  if (dtype == DType::kI32) return static_cast<int32_t>(x);
  if (dtype == DType::kU8) return static_cast<uint8_t>(x);
  return x;
}

}  // namespace

Status add(const OpCall& call) {
  return binary(call, [](double a, double b) { return a + b; });
}
Status sub(const OpCall& call) {
  return binary(call, [](double a, double b) { return a - b; });
}
Status mul(const OpCall& call) {
  return binary(call, [](double a, double b) { return a * b; });
}
Status div(const OpCall& call) {
  return binary(call, [](double a, double b) { return a / b; });
}
Status minimum(const OpCall& call) {
  return binary(call, [](double a, double b) { return b < a ? b : a; });
}
Status maximum(const OpCall& call) {
  return binary(call, [](double a, double b) { return b > a ? b : a; });
}
Status pow(const OpCall& call) {
  return binary(call, [](double a, double b) { return std::pow(a, b); });
}

Status neg(const OpCall& call) {
  return unary(call, [](double x) { return -x; });
}
Status exp(const OpCall& call) {
  return unary(call, [](double x) { return std::exp(x); });
}
Status log(const OpCall& call) {
  return unary(call, [](double x) { return std::log(x); });
}
Status sqrt(const OpCall& call) {
  return unary(call, [](double x) { return std::sqrt(x); });
}
Status rsqrt(const OpCall& call) {
  return unary(call, [](double x) { return 1.0 / std::sqrt(x); });
}
Status square(const OpCall& call) {
  return unary(call, [](double x) { return x * x; });
}
Status cos(const OpCall& call) {
  return unary(call, [](double x) { return std::cos(x); });
}
Status sin(const OpCall& call) {
  return unary(call, [](double x) { return std::sin(x); });
}
Status sigmoid(const OpCall& call) { return unary(call, sigmoid_of); }
Status silu(const OpCall& call) {
  return unary(call, [](double x) { return x * sigmoid_of(x); });
}

Status silu_grad(const OpCall& call) {
  const double* x = call.in[0].f64();
  const double* dy = call.in[1].f64();
  double* dx = call.out[0].f64();
  for (int64_t i = 0; i < call.in[0].size(); ++i) {
    const double s = sigmoid_of(x[i]);
    dx[i] = dy[i] * s * (1.0 + (x[i] * (1.0 - s)));
  }
  return {};
}

Status scale(const OpCall& call) {
  const double factor = call.op.attrs.f64("factor");
  return unary(call, [factor](double x) { return x * factor; });
}
Status add_scalar(const OpCall& call) {
  const double value = call.op.attrs.f64("value");
  return unary(call, [value](double x) { return x + value; });
}

Status cast(const OpCall& call) {
  const DType from = call.in[0].type->dtype;
  const DType to = call.out[0].type->dtype;
  const Tensor& x = call.in[0];
  const Tensor& y = call.out[0];
  for (int64_t i = 0; i < x.size(); ++i) {
    if (is_float(to)) {
      y.f64()[i] = round_to(to, is_float(from) ? x.f64()[i] : static_cast<double>(x.i64()[i]));
    } else {
      y.i64()[i] = is_float(from) ? to_integer(to, x.f64()[i]) : wrap(to, x.i64()[i]);
    }
  }
  return {};
}

}  // namespace sgactor::kernels::reference
