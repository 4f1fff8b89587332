#include "actors/core/lane_core.h"

#include <fmt/format.h>

#include <algorithm>

namespace sgactor::actors {

Status LaneCore::offer(LanePoint at) {
  if (held_) {
    return internal_error(fmt::format(
        "second lane token, for step {} position {}, while one is held", at.step, at.position));
  }
  if (at < cursor_) {
    return internal_error(fmt::format("lane token went back from step {} position {} to step {} {}",
                                      cursor_.step, cursor_.position, at.step, at.position));
  }
  held_ = true;
  cursor_ = at;
  return {};
}

void LaneCore::mark_ready(LanePoint at) {
  if (std::find(ready_.begin(), ready_.end(), at) == ready_.end()) ready_.push_back(at);
}

std::optional<LanePoint> LaneCore::take() {
  if (!held_) return std::nullopt;
  const auto it = std::find(ready_.begin(), ready_.end(), cursor_);
  if (it == ready_.end()) return std::nullopt;
  const LanePoint fired = cursor_;
  *it = ready_.back();
  ready_.pop_back();
  ++cursor_.position;
  return fired;
}

LanePoint LaneCore::pass() {
  held_ = false;
  return cursor_;
}

}  // namespace sgactor::actors
