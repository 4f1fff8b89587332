// Products of 8-bit floats. What is rounded here is rounded because that is what the op is for.
#include "graph/base/f8.h"
#include "kernels/reference/kernels.h"
#include "kernels/reference/rounding.h"

#include <cmath>
#include <limits>

namespace sgactor::kernels::reference {
namespace {

/// q, scale and, transposed, a second q where `transposed` is given.
void quantize(const Tensor& x, const Tensor& amax, const Tensor* q, const Tensor* transposed,
              const Tensor& scale) {
  const DType dtype = (q != nullptr ? q : transposed)->type->dtype;
  const double s = f8_scale(dtype, static_cast<float>(amax.f64()[0]));
  const double largest = f8_format(dtype).largest;
  const int64_t rows = transposed == nullptr ? 1 : x.shape().dim(0);
  const int64_t columns = rows == 0 ? 0 : x.size() / rows;
  for (int64_t i = 0; i < x.size(); ++i) {
    const double rounded = round_to(dtype, round_to(DType::kBF16, x.f64()[i]) / s);
    const double value =
        std::fabs(rounded) > largest ? std::copysign(largest, rounded) : rounded;  // saturated
    if (q != nullptr) q->f64()[i] = value;
    if (transposed != nullptr) {
      transposed->f64()[((i % columns) * rows) + (i / columns)] = value;
    }
  }
  scale.f64()[0] = s;
}

double largest_seen(const Tensor& x, double seen) {
  for (int64_t i = 0; i < x.size(); ++i) {
    const double magnitude = std::fabs(round_to(DType::kBF16, x.f64()[i]));
    if (std::isnan(magnitude)) return std::numeric_limits<double>::quiet_NaN();
    seen = std::isnan(seen) ? seen : std::fmax(seen, magnitude);
  }
  return seen;
}

/// y += matmul(a, b) * scale_a * scale_b of operands that begin at `first`.
Status add_scaled_product(const OpCall& call, size_t first) {
  const Tensor& y = call.out[0];
  const double factor = call.in[first + 2].f64()[0] * call.in[first + 3].f64()[0];
  add_product(call.op.attrs, call.in[first], call.in[first + 1], y, factor);
  return {};
}

}  // namespace

Status quantize_f8(const OpCall& call) {
  const bool transposed = call.op.attrs.flag("transposed");
  const Tensor& q = call.out[0];
  quantize(call.in[0], call.in[1], transposed ? nullptr : &q, transposed ? &q : nullptr,
           call.out[1]);
  return {};
}

Status quantize_f8_observed(const OpCall& call) {
  SGA_TRY(quantize_f8(call));
  call.out[2].f64()[0] = largest_seen(call.in[0], call.in[2].f64()[0]);
  return {};
}

Status quantize_f8_both(const OpCall& call) {
  quantize(call.in[0], call.in[1], &call.out[0], &call.out[3], call.out[1]);
  call.out[2].f64()[0] = largest_seen(call.in[0], call.in[2].f64()[0]);
  return {};
}

Status scaled_matmul(const OpCall& call) {
  const Tensor& y = call.out[0];
  const bool adds = call.in.size() > 4;
  for (int64_t i = 0; i < y.size(); ++i) y.f64()[i] = adds ? call.in[4].f64()[i] : 0.0;
  return add_scaled_product(call, 0);
}

Status scaled_matmul_accumulate(const OpCall& call) {
  const Tensor& y = call.out[0];
  for (int64_t i = 0; i < y.size(); ++i) y.f64()[i] = call.in[0].f64()[i];
  return add_scaled_product(call, 1);
}

Status update_amax(const OpCall& call) {
  const double seen = call.in[1].f64()[0];
  const bool known = std::isfinite(seen) && seen > 0;
  call.out[0].f64()[0] = known ? seen : call.in[0].f64()[0];
  return {};
}

}  // namespace sgactor::kernels::reference
