#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace sgactor::supervision {

/// A collective that a rank has started and that has not ended.
struct PendingOperation {
  int32_t lane = 0;
  std::string channel;   ///< the lane's name in the plan
  std::string kind;      ///< "all_reduce", "send", …
  int64_t sequence = 0;  ///< of the rank's operations on that channel in this step, from 1
  std::string launch;    ///< its name in the plan
  uint64_t key = 0;      ///< the same on all members
  int64_t step = 0;      ///< with key and micro_batch: which execution
  int32_t micro_batch = 0;
  int64_t waited_ms = 0;
  std::vector<int32_t> members;  ///< logical ranks that take part, the rank itself among them
};

/// A collective that has ended on a rank, named as in PendingOperation.
struct DoneOperation {
  uint64_t key = 0;
  int64_t step = 0;
  int32_t micro_batch = 0;
};

/// What an actor handled last.
struct LastMessage {
  std::string actor;
  std::string message;
  int64_t step = 0;
  int64_t ago_ms = 0;
  int32_t micro_batch = 0;
};

/// What is known of one rank at one moment.
struct RankView {
  int32_t rank = 0;
  bool heard = true;  ///< false: its worker did not answer, and the rest is empty
  /// Its own work is not done: neither waits for a commit nor for the next step to begin.
  bool at_work = false;
  std::string phase;  ///< in words: "computing", "voted", …
  std::vector<PendingOperation> pending;
  std::vector<DoneOperation> done;  ///< of the open step, as far as it is known
  std::vector<LastMessage> actors;
};

/// A collective that waits for somebody.
struct StuckOperation {
  PendingOperation operation;    ///< as the member saw it that has waited longest
  std::vector<int32_t> waiting;  ///< members in it, ascending
  std::vector<int32_t> done;     ///< members that it has ended for
  std::vector<int32_t> missing;  ///< members that have not started it
};

struct HangReport {
  /// The one that has waited longest first. Operations that all members have started are under way,
  /// and not here.
  std::vector<StuckOperation> stuck;
  /// Those: what they wait for is on its way, or lost. The longest first.
  std::vector<StuckOperation> under_way;
  /// Ranks that wait for nobody themselves, ascending: those not heard, those that others wait for;
  /// where nobody waits for anybody, those that are at work. Empty with `stuck` not empty: ranks
  /// wait for each other in a circle, and all of it is in `stuck`.
  std::vector<int32_t> culprits;
};

/// Who did not join what. Pure; deterministic for equal views in any order.
HangReport find_hang(const std::vector<RankView>& views);

/// Some lines for people: culprits, what others wait in, and the last messages of the culprits.
std::string to_text(const HangReport& report, const std::vector<RankView>& views);

}  // namespace sgactor::supervision
