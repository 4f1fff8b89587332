#pragma once
#include "graph/base/dtype.h"
#include "graph/ir/op_kind.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <span>
#include <string>

namespace sgactor::testing {

/// How far a backend may be from the float64 reference, by the dtype of the op's first float
/// operand. The error of a number is its distance from the reference's, divided by the largest of
/// 1, the reference's number and the largest number of the result: sums over random signs cancel,
/// so an error relative to one element would say nothing.
struct Tolerance {
  DType dtype;
  double relative;
};
inline constexpr std::array<Tolerance, 4> kTolerances = {{
    {DType::kF64, 1e-12},
    {DType::kF32, 1e-5},
    {DType::kBF16, 3e-2},  // 8 bits of mantissa, and saved values (lse, o, y) are rounded too
    {DType::kF16, 4e-3},
}};

constexpr double tolerance_of(DType dtype) {
  for (const Tolerance& t : kTolerances) {
    if (t.dtype == dtype) return t.relative;
  }
  return 0;
}

/// The head's logits are rounded to the operands' dtype before the exponential, which turns half a
/// unit in the last place of a logit (2^-8 of its size) into an error of that size, not of 2^-8.
/// Matrix units align the products of 8-bit floats to about 13 bits before they add them.
constexpr double tolerance_of(graph::OpKind kind, DType dtype) {
  const bool rounds_logits =
      kind == graph::OpKind::kLinearCrossEntropyGrad && dtype == DType::kBF16;
  const bool aligns =
      kind == graph::OpKind::kScaledMatmul || kind == graph::OpKind::kScaledMatmulAccumulate;
  if (aligns && dtype == DType::kF32) return 1e-3;  // eight of 2^-13
  return rounds_logits ? 2 * tolerance_of(dtype) : tolerance_of(dtype);
}

/// Ops that move, choose or make numbers, or round them once: the reference's numbers, rounded to
/// the result's dtype, bit for bit.
inline constexpr std::array kExactOps = {
    graph::OpKind::kMinimum,
    graph::OpKind::kMaximum,
    graph::OpKind::kNeg,
    graph::OpKind::kReshape,
    graph::OpKind::kTranspose,
    graph::OpKind::kSlice,
    graph::OpKind::kPad,
    graph::OpKind::kConcat,
    graph::OpKind::kBroadcast,
    graph::OpKind::kConstant,
    graph::OpKind::kReduceMax,
    graph::OpKind::kCausalMask,
    graph::OpKind::kGather,
    graph::OpKind::kCast,
    graph::OpKind::kQuantizeF8,
    graph::OpKind::kQuantizeF8Observed,
    graph::OpKind::kQuantizeF8Both,
    graph::OpKind::kUpdateAmax,
};

constexpr bool is_exact(graph::OpKind kind) {
  return std::find(kExactOps.begin(), kExactOps.end(), kind) != kExactOps.end();
}

/// "element 3 is 1.5, the reference has 1.25 (error 0.2, allowed 1e-05)", or nothing if all agree.
/// Infinities and NaNs must be the same.
inline std::optional<std::string> disagreement(std::span<const double> got,
                                               std::span<const double> want, double tolerance) {
  if (got.size() != want.size())
    return std::to_string(got.size()) + " elements, not " + std::to_string(want.size());
  double scale = 1;
  for (double x : want) {
    if (std::isfinite(x)) scale = std::max(scale, std::fabs(x));
  }
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i] == want[i] || (std::isnan(got[i]) && std::isnan(want[i]))) continue;
    const double error = std::fabs(got[i] - want[i]) / scale;
    if (error <= tolerance) continue;  // false for NaN
    return "element " + std::to_string(i) + " is " + std::to_string(got[i]) +
           ", the reference has " + std::to_string(want[i]) + " (error " + std::to_string(error) +
           ", allowed " + std::to_string(tolerance) + ")";
  }
  return std::nullopt;
}

}  // namespace sgactor::testing
