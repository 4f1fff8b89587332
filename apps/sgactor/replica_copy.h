#pragma once
#include "actors/protocol/wire.h"
#include "graph/base/status.h"

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sgactor::apps {

/// `resilience.mode = "replicas"`: what the coordinator's process and workers say to each other
/// when the state of lost ranks is copied from those that have the same. Payloads of wire::Opaque.
inline constexpr uint32_t kCopyState = 48;    ///< coordinator -> worker: ReplicaOrder
inline constexpr uint32_t kStateCopied = 49;  ///< worker -> coordinator: ReplicaAnswer

/// Write the state of `rank` after `step`, which is committed, below `root`. Implies the commit.
struct ReplicaOrder {
  int64_t copy = 0;  ///< its number, never used again in a run
  int64_t step = 0;
  int32_t rank = -1;
  std::string root;
};
actors::wire::Opaque to_wire(const ReplicaOrder& order);
/// Errors: kCorruption.
Result<ReplicaOrder> parse_replica_order(std::string_view payload);

struct ReplicaAnswer {
  int64_t copy = 0;
  int32_t rank = -1;
  std::string failure;  ///< empty: written
  std::string part;     ///< transport::WrittenPart::part
  /// What the step has given, if the rank has done it: numbers, tokens and samples count.
  std::optional<actors::StepDone> done;
};
actors::wire::Opaque to_wire(const ReplicaAnswer& answer);
/// Errors: kCorruption.
Result<ReplicaAnswer> parse_replica_answer(std::string_view payload);

/// One copy of the state at a time, from what several ranks write, as the coordinator's process
/// sees it. One thread.
class ReplicaCopy {
 public:
  /// `writers`: for each rank that writes the worker that hosts it. What is known of the copy
  /// before is forgotten; its answers are waited for still, since they say that nobody reads the
  /// state any more.
  void begin(int64_t number, int64_t step, std::string root,
             const std::map<int32_t, int32_t>& writers);
  void on_answer(const ReplicaAnswer& answer);
  /// Its worker is lost: nothing comes of it any more.
  void forget(int32_t worker);
  /// No answer is waited for.
  [[nodiscard]] bool settled() const { return pending_.empty(); }
  /// Of this copy, once settled: not ok: it came to nothing, for this reason.
  [[nodiscard]] const Status& status() const { return status_; }
  /// Ranks that could not write their state.
  [[nodiscard]] const std::set<int32_t>& failed() const { return failed_; }
  [[nodiscard]] std::vector<std::string> parts() const;
  [[nodiscard]] const std::optional<actors::StepDone>& done() const { return done_; }
  [[nodiscard]] int64_t number() const { return number_; }
  [[nodiscard]] int64_t step() const { return step_; }
  [[nodiscard]] const std::string& root() const { return root_; }
  /// The checkpoint directory, once somebody has made it whole; empty: it is not.
  std::string path;
  /// As if there had been none. Pre: settled().
  void clear();

 private:
  int64_t number_ = 0;
  int64_t step_ = -1;
  std::string root_;
  Status status_;
  std::map<int32_t, std::string> parts_;                    // by rank
  std::map<std::pair<int64_t, int32_t>, int32_t> pending_;  // (number, rank): worker
  std::set<int32_t> failed_;
  std::optional<actors::StepDone> done_;
};

}  // namespace sgactor::apps
