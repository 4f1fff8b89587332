#pragma once
#include <algorithm>
#include <cstdint>

namespace sgactor::kernels::cuda {

/// The largest distance of two rows in a copy of CUDA's (cudaDevAttrMaxPitch).
inline constexpr int64_t kMostPitch = (int64_t{1} << 31) - 1;

/// How `rows` rows of `width` bytes are copied between two pitches.
enum class RowCopy : uint8_t {
  kNone,     ///< there is nothing
  kOne,      ///< as one piece
  kPitched,  ///< by one copy in two dims
  kEach,     ///< row by row; few: each is 2 GiB from the next
};
inline RowCopy row_copy(int64_t rows, int64_t width, int64_t to_pitch, int64_t from_pitch) {
  if (width == 0 || rows == 0) return RowCopy::kNone;
  if (rows == 1 || (width == to_pitch && width == from_pitch)) return RowCopy::kOne;
  return std::max(to_pitch, from_pitch) <= kMostPitch ? RowCopy::kPitched : RowCopy::kEach;
}

}  // namespace sgactor::kernels::cuda
