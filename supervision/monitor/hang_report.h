#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace sgactor::supervision {

/// A collective that a rank has started and that has not ended.
struct PendingOperation {
  int32_t lane = 0;
  std::string launch;  ///< its name in the plan
  uint64_t key = 0;    ///< the same on all members
  int64_t step = 0;    ///< with key and micro_batch: which execution
  int32_t micro_batch = 0;
  int64_t waited_ms = 0;
  std::vector<int32_t> members;  ///< logical ranks of its group, the rank itself among them
};

/// What an actor handled last.
struct LastMessage {
  std::string actor;
  std::string message;
  int64_t step = 0;
  int64_t ago_ms = 0;
};

/// What is known of one rank at one moment.
struct RankView {
  int32_t rank = 0;
  bool heard = true;  ///< false: its worker did not answer, and the rest is empty
  std::vector<PendingOperation> pending;
  std::vector<LastMessage> actors;
};

/// A collective that waits for somebody.
struct StuckOperation {
  PendingOperation operation;    ///< as the member saw it that has waited longest
  std::vector<int32_t> waiting;  ///< members that have started it, ascending
  std::vector<int32_t> missing;  ///< members that have not
};

struct HangReport {
  /// The one that has waited longest first. Operations that all members have started are under way,
  /// and not here.
  std::vector<StuckOperation> stuck;
  /// Ranks that others wait for and that wait for nobody themselves, ascending: those not heard,
  /// those that compute for too long. Empty with `stuck` not empty: ranks wait for each other in a
  /// circle, and all of it is in `stuck`.
  std::vector<int32_t> culprits;
};

/// Who did not join what. Pure; deterministic for equal views in any order.
HangReport find_hang(const std::vector<RankView>& views);

/// Some lines for people: culprits, what others wait in, and the last messages of the culprits.
std::string to_text(const HangReport& report, const std::vector<RankView>& views);

}  // namespace sgactor::supervision
