#pragma once
#include "graph/base/units.h"

#include <algorithm>
#include <cstdint>

namespace sgactor::kernels::cuda {

/// A gap below this is no place for blocks, unless all logits fit.
inline constexpr int64_t kLeastRoomBytes = int64_t{128} << 20;
/// How a head's N rows are cut into equal blocks, but for the last, whose logits (and what goes
/// with them) of `row_bytes` each take at most `limit` bytes.
struct RowBlocks {
  int64_t rows = 0;
  int64_t bytes = 0;  ///< of a block
  RowBlocks(int64_t N, int64_t row_bytes, int64_t limit) {
    constexpr int64_t kGrain = 128;
    int64_t most = std::max<int64_t>(limit / std::max<int64_t>(row_bytes, 1), 1);
    if (most < N && most > kGrain) most -= most % kGrain;
    const int64_t count = std::max<int64_t>(ceil_div(N, most), 1);
    rows = round_up(ceil_div(N, count), most < N && most >= kGrain ? kGrain : 1);
    bytes = round_up(std::min(rows, N) * row_bytes, 256);
  }
};

}  // namespace sgactor::kernels::cuda
