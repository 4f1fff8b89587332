#include "transport/storage/tensor_slice.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace sgactor::transport {
namespace {

/// The range of dim `dim` as rows of elements that lie together, in the range and in the whole.
struct Rows {
  int64_t num = 1;
  int64_t length = 0;        ///< in the range, padding included
  int64_t real = 0;          ///< of those, at the front
  int64_t whole_length = 0;  ///< from row to row in the whole
  int64_t whole_begin = 0;   ///< of the first row

  /// Real elements among the first `n` of the range.
  [[nodiscard]] int64_t real_before(int64_t n) const {
    if (length == 0) return 0;
    if (n >= num * length) return num * real;
    return (n / length * real) + std::min(n % length, real);
  }
};

Rows rows_of(const Shape& whole, const TensorSlice& slice) {
  const int64_t n = whole.num_elements();
  if (slice.dim < 0) return {1, n, n, n, 0};
  Rows rows;
  int64_t inner = 1;
  for (int d = 0; d < whole.rank(); ++d) {
    if (d < slice.dim) rows.num *= whole.dim(d);
    if (d > slice.dim) inner *= whole.dim(d);
  }
  const int64_t full = whole.dim(slice.dim);
  const int64_t begin = std::min(slice.begin, full);
  rows.length = slice.extent * inner;
  rows.real = std::min(slice.extent, full - begin) * inner;
  rows.whole_length = full * inner;
  rows.whole_begin = begin * inner;
  return rows;
}

/// Calls `f(offset in the slice, offset in the whole, elements)` for each run of elements that are
/// no padding and lie together in both.
template <class F>
void for_each_run(const Shape& whole, const TensorSlice& slice, F&& f) {
  const Rows rows = rows_of(whole, slice);
  const int64_t end = slice.first + slice.count;
  if (rows.real == 0) return;
  for (int64_t r = slice.first / rows.length; r < rows.num && r * rows.length < end; ++r) {
    const int64_t start = r * rows.length;
    const int64_t from = std::max(start, slice.first);
    const int64_t to = std::min(start + rows.real, end);
    if (from < to) {
      f(from - slice.first, (r * rows.whole_length) + rows.whole_begin + from - start, to - from);
    }
  }
}

}  // namespace

TensorSlice whole_slice(const Shape& whole) { return {-1, 0, 0, 0, whole.num_elements()}; }

int64_t range_elements(const Shape& whole, const TensorSlice& slice) {
  const Rows rows = rows_of(whole, slice);
  return rows.num * rows.length;
}

int64_t num_real_elements(const Shape& whole, const TensorSlice& slice) {
  const Rows rows = rows_of(whole, slice);
  return rows.real_before(slice.first + slice.count) - rows.real_before(slice.first);
}

Status check_slice(const Shape& whole, const TensorSlice& slice) {
  constexpr int64_t kMost = int64_t{1} << 60;  // sums of two do not overflow
  const bool range = slice.dim < 0 || (slice.dim < whole.rank() && slice.begin >= 0 &&
                                       slice.extent >= 0 && slice.extent <= whole.dim(slice.dim));
  if (range && slice.first >= 0 && slice.first <= kMost && slice.count >= 0 &&
      slice.count <= kMost) {
    return {};
  }
  return invalid_argument(
      fmt::format("range [{}, +{}) of dim {}, elements [{}, +{}): no part of {}", slice.begin,
                  slice.extent, slice.dim, slice.first, slice.count, whole.to_string()));
}

void cut_slice(std::span<const std::byte> whole, const TensorType& type, const TensorSlice& slice,
               std::span<std::byte> out) {
  const auto size = static_cast<size_t>(dtype_bytes(type.dtype));
  std::fill(out.begin(), out.end(), std::byte{0});
  for_each_run(type.shape, slice, [&](int64_t at, int64_t from, int64_t n) {
    std::memcpy(out.data() + static_cast<size_t>(at) * size,
                whole.data() + static_cast<size_t>(from) * size, static_cast<size_t>(n) * size);
  });
}

void join_slice(std::span<const std::byte> piece, const TensorType& type, const TensorSlice& slice,
                std::span<std::byte> whole) {
  const auto size = static_cast<size_t>(dtype_bytes(type.dtype));
  for_each_run(type.shape, slice, [&](int64_t at, int64_t to, int64_t n) {
    std::memcpy(whole.data() + static_cast<size_t>(to) * size,
                piece.data() + static_cast<size_t>(at) * size, static_cast<size_t>(n) * size);
  });
}

}  // namespace sgactor::transport
