#pragma once
#include "graph/base/dtype.h"
#include "graph/base/shape.h"
#include "graph/base/status.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace sgactor::kernels::reference {

/// Nearest value (ties to even) of a float format narrower than f32: bf16, f16, f8e4m3, f8e5m2.
/// f64 and f32 are returned as they are: the oracle keeps what the model calls f32 in float64, so
/// that finite differences and comparisons see the mathematics and not the rounding. bf16, f16 and
/// f8e5m2 overflow to infinity; f8e4m3 has no infinity and saturates at 448. Pre: is_float(dtype).
double round_to(DType dtype, double value);

/// Native bytes of a tensor to cells of 8 bytes (floats as f64, integers as i64) and back. Writing
/// a float back rounds to nearest even in its format, f32 included; integers wrap to their width.
/// Errors: kInvalidArgument if `native` has not type.bytes() bytes.
Status decode(const TensorType& type, std::span<const std::byte> native, std::byte* cells);
Status encode(const TensorType& type, const std::byte* cells, std::span<std::byte> native);

}  // namespace sgactor::kernels::reference
