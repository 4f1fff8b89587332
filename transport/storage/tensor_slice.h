#pragma once
#include "graph/base/shape.h"
#include "graph/base/status.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace sgactor::transport {

/// A part of a whole tensor, as one of several owners holds it. First the range [begin, begin +
/// extent) of dim `dim` (-1: all of the tensor); what of it lies beyond the dim is padding. Of
/// that, flat and row-major, the elements [first, first + count); what lies beyond its end is
/// padding too.
struct TensorSlice {
  int32_t dim = -1;
  int64_t begin = 0;
  int64_t extent = 0;
  int64_t first = 0;
  int64_t count = 0;
  friend bool operator==(const TensorSlice&, const TensorSlice&) = default;
};

/// All of a tensor as a slice.
TensorSlice whole_slice(const Shape& whole);
/// Elements of the range of `dim`, padding included: those that `first` and `count` choose from.
/// Pre: check_slice is ok.
int64_t range_elements(const Shape& whole, const TensorSlice& slice);
/// Elements of the slice that are no padding. Pre: check_slice is ok.
int64_t num_real_elements(const Shape& whole, const TensorSlice& slice);
/// Errors: kInvalidArgument: a dim that does not exist, a range longer than it, negative numbers.
Status check_slice(const Shape& whole, const TensorSlice& slice);

/// Copies a slice out of the whole tensor; padding becomes zeros. Pre: check_slice is ok; `whole`
/// has type.bytes() bytes, `out` slice.count elements.
void cut_slice(std::span<const std::byte> whole, const TensorType& type, const TensorSlice& slice,
               std::span<std::byte> out);
/// The reverse: padding is dropped, the rest of `whole` stays as it is.
void join_slice(std::span<const std::byte> piece, const TensorType& type, const TensorSlice& slice,
                std::span<std::byte> whole);

}  // namespace sgactor::transport
