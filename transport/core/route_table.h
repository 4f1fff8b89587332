#pragma once
#include "transport/core/tag.h"

#include <cstdint>
#include <unordered_map>

namespace sgactor::transport {

/// Which process hosts each logical rank, in one generation. A value: replaced as a whole.
struct RouteTable {
  Generation generation = 0;
  std::unordered_map<int32_t, PeerId> peer_of_rank;

  /// Null if no process hosts `rank`.
  [[nodiscard]] const PeerId* find(int32_t rank) const {
    const auto it = peer_of_rank.find(rank);
    return it == peer_of_rank.end() ? nullptr : &it->second;
  }
};

}  // namespace sgactor::transport
