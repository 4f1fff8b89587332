#pragma once
#include "graph/base/status.h"
#include "supervision/membership/guards.h"
#include "supervision/recovery/messages.h"
#include "supervision/recovery/mirror_client.h"
#include "supervision/recovery/replay_log.h"

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace sgactor::supervision {

struct RankOptions {
  RankId rank = 0;
  int64_t incarnation = 1;
  WorkerId worker = kNone;     ///< the worker that hosts it
  int64_t state_interval = 4;  ///< steps between whole states at the mirror (M); at least 1
  int64_t log_budget_bytes = INT64_MAX;
  int64_t vote_interval_us = 16'000;
  ResendPolicy resend;
  ProtocolGuards guards;
};

/// One life of one logical rank, seen from the protocol: survivor and adopter in one. It keeps what
/// the rank has sent and received, tells its mirror, votes, learns of commits and of other ranks'
/// new lives, and brings the rank's state back when it is an adopter. What the rank computes is its
/// program's affair: the program looks at phase(), reads received() and reports what it has done.
/// Calls that send append to `out`. Times are microseconds. Pure; one caller at a time.
///
///   kRestoring --on_fetched--> kRedoing --restored--> kExecuting --inputs_ready--> kVoting
///     kVoting --on_world(COMMIT)--> kUpdating --updated--> kExecuting (the next step)
class RankCore {
 public:
  enum class Phase : uint8_t { kRestoring = 0, kRedoing, kExecuting, kVoting, kUpdating };

  /// An adopter: fetches S(world->committed) from the rank's source or mirror.
  RankCore(const RankOptions& options, WorldRef world, int64_t now_us);
  /// The rank's state after `world->committed` is at hand (the start of the job, a checkpoint).
  void start(State state, const Payload& shard, int64_t now_us, Outbox& out);

  // --- the program's side ---
  [[nodiscard]] Phase phase() const { return phase_; }
  [[nodiscard]] int64_t committed() const { return committed_; }
  [[nodiscard]] int64_t open_step() const { return committed_ + 1; }
  /// Sends a message of the open step (again: no effect). For kRegather the payload is the shard
  /// given with the state. Errors: kOutOfMemory beyond the log's budget; kInternal in other phases
  /// than kExecuting, or for another step.
  Status post(const LogicalKey& key, Retain retain, const Payload& payload, int64_t now_us,
              Outbox& out);
  struct Arrived {
    Payload payload;
    int64_t order = 0;  ///< of arrival; never to be used in a sum
  };
  /// What has come under `key`, or null. Stays readable until the step's commit.
  [[nodiscard]] const Arrived* received(const LogicalKey& key) const;
  /// R(open_step()) is there: everything before the commit is done. Errors: kInternal in another
  /// phase.
  Status inputs_ready(const Payload& inputs, int64_t now_us, Outbox& out);
  /// In kRedoing: S(j) and the inputs since.
  [[nodiscard]] const Fetched& fetched() const { return fetched_; }
  /// S(committed()) has been made of fetched().
  void restored(State state, const Payload& shard, int64_t now_us, Outbox& out);
  /// In kUpdating: R of the step just committed.
  [[nodiscard]] const Payload& update_inputs() const { return inputs_; }
  /// The update is done; `shard` is what others gather of the new state.
  void updated(State state, const Payload& shard, int64_t now_us, Outbox& out);
  [[nodiscard]] const State& state() const { return state_; }

  // --- the network's side ---
  /// A world has been told. Older ones are ignored. In one go: COMMIT, new lives of peers (all that
  /// was sent to them is unsent), a new mirror. Errors: kInternal if a step commits that this life
  /// has not voted for: the protocol is broken, the state not to be trusted.
  Status on_world(const WorldRef& world, int64_t now_us, Outbox& out);
  void on_data(const Data& data, Outbox& out);
  void on_ack(const DataAck& ack);
  void on_mirror_ack(const MirrorAck& ack, int64_t now_us, Outbox& out);
  void on_fetched(const Fetched& reply);
  /// Sends again what is due. next_due_us() says when it wants to be called next.
  void tick(int64_t now_us, Outbox& out);
  [[nodiscard]] int64_t next_due_us() const;

  [[nodiscard]] const ReplayLog& log() const { return log_; }
  [[nodiscard]] const MirrorClient& mirror() const { return mirror_; }
  [[nodiscard]] const RankOptions& options() const { return options_; }
  /// All nodes that could hold the state have said that they do not.
  [[nodiscard]] bool lost() const;

 private:
  [[nodiscard]] const RankPlace& place() const {
    return world_->ranks[static_cast<size_t>(options_.rank)];
  }
  [[nodiscard]] std::vector<NodeId> sources() const;
  Status on_commit(int64_t step, int64_t now_us, Outbox& out);
  void install(State state, const Payload& shard);
  void seed_mirror(int64_t now_us);
  void send(const LogicalKey& key, const Payload& payload, Outbox& out) const;

  RankOptions options_;
  WorldRef world_;
  Phase phase_ = Phase::kRestoring;
  int64_t committed_ = 0;
  State state_;
  Payload shard_;
  Payload inputs_;
  bool early_update_ = false;  ///< only without commit_gate
  ReplayLog log_;
  MirrorClient mirror_;
  std::map<LogicalKey, Arrived> inbox_;
  int64_t arrivals_ = 0;
  Fetched fetched_;
  std::vector<NodeId> missing_;  ///< sources that have said in this generation that they lack it
  int64_t next_vote_us_ = 0;
  int64_t next_fetch_us_ = 0;
};

/// What a worker has to do about the ranks it hosts when it hears of a world. Pure.
struct HostingChange {
  std::vector<RankId> drop;   ///< another life has taken over (or is about to, here)
  std::vector<RankId> adopt;  ///< this worker is to host a new life
  bool quit = false;          ///< it has been taken for dead: its place is not its any more
};
/// `hosted`: incarnation by rank. `was_member`: some earlier world had it as a member.
HostingChange hosting_change(const World& world, WorkerId self, bool was_member,
                             const std::map<RankId, int64_t>& hosted);

}  // namespace sgactor::supervision
