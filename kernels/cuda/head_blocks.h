#pragma once
#include "graph/base/units.h"

#include <algorithm>
#include <cstdint>

namespace sgactor::kernels::cuda {

/// Rows of a block are a multiple of this where there are several.
inline constexpr int64_t kRowGrain = 128;
/// A gap below this is no place for blocks of N rows, unless all logits fit.
inline int64_t least_room(int64_t N, int64_t row_bytes) {
  constexpr int64_t kLeastRoomBytes = int64_t{128} << 20;
  return std::min(N,
                  std::max(ceil_div(kLeastRoomBytes, std::max<int64_t>(row_bytes, 1)), kRowGrain)) *
         row_bytes;
}
/// How a head's N rows are cut into equal blocks, but for the last, whose logits (and what goes
/// with them) of `row_bytes` each take at most `limit` bytes.
struct RowBlocks {
  int64_t rows = 0;
  int64_t bytes = 0;  ///< of a block
  RowBlocks(int64_t N, int64_t row_bytes, int64_t limit) {
    int64_t most = std::max<int64_t>(limit / std::max<int64_t>(row_bytes, 1), 1);
    if (most < N && most > kRowGrain) most -= most % kRowGrain;
    const int64_t count = std::max<int64_t>(ceil_div(N, most), 1);
    rows = round_up(ceil_div(N, count), most < N && most >= kRowGrain ? kRowGrain : 1);
    bytes = round_up(std::min(rows, N) * row_bytes, 256);
  }
};

}  // namespace sgactor::kernels::cuda
