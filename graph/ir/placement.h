#pragma once
#include <cstdint>
#include <string>

namespace sgactor::graph {

/// How a value lies on the ranks of one mesh axis (the words of GSPMD and of PyTorch's DTensor).
struct Placement {
  enum class Kind : uint8_t {
    kReplicate = 0,  ///< every rank holds all of it
    kShard,   ///< rank i holds range i of `dim`, of ceil(extent / ranks) elements; where that
              ///< is more than there is, zeros
    kPartial  ///< the ranks' values add up to it
  } kind = Kind::kReplicate;
  int8_t dim = -1;  ///< kShard only

  static constexpr Placement replicate() { return {}; }
  static constexpr Placement shard(int64_t dim) { return {Kind::kShard, static_cast<int8_t>(dim)}; }
  static constexpr Placement partial() { return {Kind::kPartial, -1}; }

  [[nodiscard]] constexpr bool is_replicate() const { return kind == Kind::kReplicate; }
  [[nodiscard]] constexpr bool is_shard() const { return kind == Kind::kShard; }
  [[nodiscard]] constexpr bool is_shard(int64_t d) const { return is_shard() && dim == d; }
  [[nodiscard]] constexpr bool is_partial() const { return kind == Kind::kPartial; }
  /// "R", "S(1)", "P"
  [[nodiscard]] std::string to_string() const {
    if (is_shard()) return "S(" + std::to_string(dim) + ")";
    return is_partial() ? "P" : "R";
  }
  friend constexpr bool operator==(const Placement&, const Placement&) = default;
};

}  // namespace sgactor::graph
