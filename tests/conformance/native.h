#pragma once
#include "graph/base/shape.h"

#include <cstddef>
#include <span>
#include <vector>

namespace sgactor::testing {

/// Numbers to native bytes, rounded to nearest even, and back. f64, f32, bf16, f16 and the integer
/// dtypes; 8-bit floats are not used by the suite (SGA_CHECK).
std::vector<std::byte> to_native(const TensorType& type, std::span<const double> numbers);
std::vector<double> from_native(const TensorType& type, std::span<const std::byte> native);

/// The number of a float dtype nearest to `x`.
double nearest(DType dtype, double x);

}  // namespace sgactor::testing
