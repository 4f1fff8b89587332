#pragma once
#include "graph/base/shape.h"

#include <cstddef>
#include <span>
#include <vector>

namespace sgactor::testing {

/// Numbers to native bytes, rounded to nearest even, and back.
std::vector<std::byte> to_native(const TensorType& type, std::span<const double> numbers);
std::vector<double> from_native(const TensorType& type, std::span<const std::byte> native);

/// The number of a float dtype nearest to `x`.
double nearest(DType dtype, double x);

}  // namespace sgactor::testing
