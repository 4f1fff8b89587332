#pragma once
#include "graph/base/status.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace sgactor::actors {

/// A place in the planned order of a lane, over all steps. Ordered by step, then position.
struct LanePoint {
  int64_t step = 0;
  int32_t position = 0;
  friend bool operator==(const LanePoint&, const LanePoint&) = default;
  friend auto operator<=>(const LanePoint&, const LanePoint&) = default;
};

/// One member's view of a lane whose turn wanders as a token from item to item of the planned
/// order. Who holds the token is the only one who may put work on the lane's stream. A member fires
/// an item when the token stands on it and the item is in its ready set; so the order on the stream
/// is the plan's, whatever order messages arrive in. No thread, no clock; one caller at a time.
class LaneCore {
 public:
  /// The token has come and stands on `at`. Errors: kInternal if it is here already, or has been at
  /// or past `at` before (a token is never taken twice).
  Status offer(LanePoint at);
  /// The item at `at` may go as soon as its turn comes. Repeating it changes nothing.
  void mark_ready(LanePoint at);
  /// The item to fire now, if the token stands on a ready one. The token then stands on the next
  /// position; the caller either finds that item its own too (call again) or passes it on with
  /// pass().
  std::optional<LanePoint> take();
  /// Gives the token away; returns where it stands. Pre: holds_token().
  LanePoint pass();

  [[nodiscard]] bool holds_token() const { return held_; }
  /// Pre: holds_token().
  [[nodiscard]] LanePoint cursor() const { return cursor_; }
  [[nodiscard]] size_t num_ready() const { return ready_.size(); }

 private:
  bool held_ = false;
  LanePoint cursor_{-1, 0};
  std::vector<LanePoint> ready_;  // a few entries: linear search beats a tree
};

}  // namespace sgactor::actors
