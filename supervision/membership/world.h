#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

namespace sgactor::supervision {

using RankId = int32_t;    ///< logical rank
using WorkerId = int32_t;  ///< never given again to another process of the job
using NodeId = int32_t;    ///< a node's life; a node that starts again gets a new one
inline constexpr int32_t kNone = -1;

/// A worker that may hold logical ranks (or holds none: a spare).
struct Member {
  WorkerId worker = kNone;
  NodeId node = kNone;
  int32_t slot = 0;          ///< its device's place in the host; survives the worker
  uint64_t fingerprint = 0;  ///< of its arithmetic: device kind, libraries, tuning table
  friend bool operator==(const Member&, const Member&) = default;
};

/// Where a logical rank lives and who can bring it back.
struct RankPlace {
  WorkerId worker = kNone;
  int64_t incarnation = 1;
  NodeId mirror = kNone;  ///< its votes need this node's acknowledgement (kNone: nobody's)
  NodeId source = kNone;  ///< holds its state after the last commit for certain; kNone: nobody does
  friend bool operator==(const RankPlace&, const RankPlace&) = default;
};

/// All that recovery is: not a procedure but this state, told again and again. The coordinator's
/// journal holds it; everybody else holds the newest version heard. Versions are ordered by
/// (generation, committed).
struct World {
  int64_t generation = 0;
  int64_t committed = 0;         ///< last committed step; 0 before the first
  std::vector<NodeId> nodes;     ///< alive, ascending
  std::vector<Member> workers;   ///< alive, ascending by id
  std::vector<RankPlace> ranks;  ///< index: logical rank

  [[nodiscard]] const Member* find(WorkerId worker) const {
    for (const Member& m : workers) {
      if (m.worker == worker) return &m;
    }
    return nullptr;
  }
  [[nodiscard]] bool has_node(NodeId node) const {
    for (NodeId n : nodes) {
      if (n == node) return true;
    }
    return false;
  }
  [[nodiscard]] int32_t num_hosted(WorkerId worker) const {
    int32_t n = 0;
    for (const RankPlace& p : ranks) n += p.worker == worker ? 1 : 0;
    return n;
  }
  [[nodiscard]] bool newer_than(const World& other) const {
    if (generation != other.generation) return generation > other.generation;
    return committed > other.committed;
  }
  friend bool operator==(const World&, const World&) = default;
};

}  // namespace sgactor::supervision
