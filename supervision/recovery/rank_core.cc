#include "supervision/recovery/rank_core.h"

#include "graph/base/hash.h"

#include <fmt/format.h>

#include <algorithm>

namespace sgactor::supervision {

RankCore::RankCore(const RankOptions& options, WorldRef world, int64_t now_us)
    : options_(options),
      world_(std::move(world)),
      committed_(world_->committed),
      log_(options.log_budget_bytes, options.resend),
      mirror_(options.rank, options.incarnation, options.resend, options.guards),
      next_fetch_us_(now_us) {
  mirror_.retarget(place().mirror);
}

void RankCore::start(State state, const Payload& shard, int64_t now_us, Outbox& out) {
  install(std::move(state), shard);
  phase_ = Phase::kExecuting;
  seed_mirror(now_us);
  tick(now_us, out);
}

void RankCore::install(State state, const Payload& shard) {
  state_ = std::move(state);
  shard_ = shard;
}

/// A mirror that has nothing gets the state as it is now, and the open step's inputs if they are
/// there already.
void RankCore::seed_mirror(int64_t now_us) {
  mirror_.put_state(committed_, state_, now_us);
  if (phase_ == Phase::kVoting) mirror_.put_inputs(open_step(), inputs_, now_us);
}

void RankCore::send(const LogicalKey& key, const Payload& payload, Outbox& out) const {
  const WorkerId to = world_->ranks[static_cast<size_t>(key.to)].worker;
  out.push_back({worker_address(to), Data{key, world_->generation, payload}});
}

Status RankCore::post(const LogicalKey& key, Retain retain, const Payload& payload, int64_t now_us,
                      Outbox& out) {
  if (phase_ != Phase::kExecuting || key.step != open_step() ||
      static_cast<size_t>(key.to) >= world_->ranks.size()) {
    return internal_error(fmt::format("rank {} posts for step {} while step {} is open",
                                      options_.rank, key.step, open_step()));
  }
  SGA_ASSIGN(const bool fresh, log_.post(key, retain, payload, now_us));
  if (fresh) send(key, retain == Retain::kRegather ? shard_ : payload, out);
  return {};
}

const RankCore::Arrived* RankCore::received(const LogicalKey& key) const {
  const auto it = inbox_.find(key);
  return it != inbox_.end() ? &it->second : nullptr;
}

Status RankCore::inputs_ready(const Payload& inputs, int64_t now_us, Outbox& out) {
  if (phase_ != Phase::kExecuting) {
    return internal_error(
        fmt::format("rank {}: inputs of step {} come twice", options_.rank, open_step()));
  }
  inputs_ = inputs;
  phase_ = options_.guards.commit_gate ? Phase::kVoting : Phase::kUpdating;
  early_update_ = !options_.guards.commit_gate;
  next_vote_us_ = now_us;
  mirror_.put_inputs(open_step(), inputs_, now_us);
  tick(now_us, out);
  return {};
}

void RankCore::restored(State state, const Payload& shard, int64_t now_us, Outbox& out) {
  install(std::move(state), shard);
  if (!options_.guards.committed_restore) {
    committed_ = fetched_.state_step + static_cast<int64_t>(fetched_.inputs.size());
  }
  phase_ = Phase::kExecuting;
  // A mirror that was dismissed and called back since has forgotten what it served.
  if (fetched_.mirror == mirror_.mirror() && fetched_.generation == world_->generation) {
    mirror_.assume(fetched_.state_step, committed_);
  } else {
    seed_mirror(now_us);
  }
  fetched_ = {};
  tick(now_us, out);
}

void RankCore::updated(State state, const Payload& shard, int64_t now_us, Outbox& out) {
  install(std::move(state), shard);
  if (early_update_) {
    phase_ = Phase::kVoting;
    return;
  }
  phase_ = Phase::kExecuting;
  if (committed_ % options_.state_interval == 0 || !mirror_.holds(committed_)) {
    mirror_.put_state(committed_, state_, now_us);
  }
  tick(now_us, out);
}

Status RankCore::on_commit(int64_t step, int64_t now_us, Outbox& out) {
  if (phase_ != Phase::kVoting || step != open_step()) {
    return internal_error(fmt::format("rank {}.{}: COMMIT {} while step {} is open in phase {}",
                                      options_.rank, options_.incarnation, step, open_step(),
                                      static_cast<int>(phase_)));
  }
  committed_ = step;
  log_.commit(step);
  while (!inbox_.empty() && inbox_.begin()->first.step <= step) inbox_.erase(inbox_.begin());
  if (early_update_) {
    early_update_ = false;
    phase_ = Phase::kExecuting;
    if (committed_ % options_.state_interval == 0) mirror_.put_state(committed_, state_, now_us);
    tick(now_us, out);
  } else {
    phase_ = Phase::kUpdating;
  }
  return {};
}

Status RankCore::on_world(const WorldRef& world, int64_t now_us, Outbox& out) {
  const bool newer = world->newer_than(*world_);
  if (options_.guards.monotone_world && !newer) return {};
  const WorldRef before = std::exchange(world_, world);
  // The commit comes first: a peer's new life starts after it, and wants shards of the new state.
  if (world->committed > committed_) SGA_TRY(on_commit(world->committed, now_us, out));
  for (size_t r = 0; r < world->ranks.size() && r < before->ranks.size(); ++r) {
    if (world->ranks[r].incarnation == before->ranks[r].incarnation) continue;
    if (options_.guards.unack_on_adopt) log_.unack(static_cast<RankId>(r), now_us);
  }
  if (place().mirror != mirror_.mirror()) {
    mirror_.retarget(place().mirror);
    // While an update is under way the state is neither the old nor the new one: updated() seeds.
    if (phase_ == Phase::kExecuting || phase_ == Phase::kVoting) seed_mirror(now_us);
  }
  if (world->generation != before->generation) {
    log_.hurry(now_us);
    mirror_.hurry(now_us);
    missing_.clear();
    next_vote_us_ = now_us;
    next_fetch_us_ = now_us;
  }
  tick(now_us, out);
  return {};
}

void RankCore::on_data(const Data& data, Outbox& out) {
  if (options_.guards.fencing && data.generation != world_->generation) return;
  if (static_cast<size_t>(data.key.from) >= world_->ranks.size()) return;
  // A peer is at most one commit ahead.
  if (data.key.step > open_step() + 1) return;
  if (data.key.step > committed_) {
    const auto [it, fresh] = inbox_.try_emplace(data.key, Arrived{data.payload, arrivals_});
    ++arrivals_;
    if (!fresh && !options_.guards.idempotence) {
      it->second.payload.word = mix64(it->second.payload.word, data.payload.word);
    }
  }
  out.push_back({worker_address(world_->ranks[static_cast<size_t>(data.key.from)].worker),
                 DataAck{data.key, world_->generation, options_.incarnation}});
}

void RankCore::on_ack(const DataAck& ack) {
  if (static_cast<size_t>(ack.key.to) >= world_->ranks.size()) return;
  const bool current =
      ack.generation == world_->generation &&
      ack.incarnation == world_->ranks[static_cast<size_t>(ack.key.to)].incarnation;
  if (options_.guards.fencing && options_.guards.ack_generation && !current) return;
  if (options_.guards.log_retention) {
    log_.on_ack(ack.key);
  } else {
    log_.drop(ack.key);
  }
}

void RankCore::on_mirror_ack(const MirrorAck& ack, int64_t now_us, Outbox& out) {
  const bool current = ack.generation == world_->generation &&
                       ack.incarnation == options_.incarnation && ack.mirror == mirror_.mirror();
  if (options_.guards.fencing && options_.guards.ack_generation && !current) return;
  mirror_.on_ack(ack);
  tick(now_us, out);
}

std::vector<NodeId> RankCore::sources() const {
  std::vector<NodeId> out;
  if (place().source != kNone) out.push_back(place().source);
  if (place().mirror != kNone && place().mirror != place().source) out.push_back(place().mirror);
  return out;
}

bool RankCore::lost() const {
  if (phase_ != Phase::kRestoring) return false;
  const auto all = sources();
  return std::all_of(all.begin(), all.end(), [&](NodeId n) {
    return std::find(missing_.begin(), missing_.end(), n) != missing_.end();
  });
}

void RankCore::on_fetched(const Fetched& reply) {
  if (phase_ != Phase::kRestoring || reply.incarnation != options_.incarnation) return;
  if (options_.guards.fencing && reply.generation != world_->generation) return;
  if (reply.found) {
    fetched_ = reply;
    phase_ = Phase::kRedoing;
  } else if (std::find(missing_.begin(), missing_.end(), reply.mirror) == missing_.end()) {
    missing_.push_back(reply.mirror);
  }
}

void RankCore::tick(int64_t now_us, Outbox& out) {
  if (phase_ == Phase::kRestoring) {
    if (now_us < next_fetch_us_) return;
    next_fetch_us_ = now_us + options_.resend.first_us * 2;
    if (lost()) {
      out.push_back(
          {coordinator_address(), Lost{options_.rank, options_.incarnation, world_->generation}});
    }
    for (const NodeId node : sources()) {
      out.push_back({node_address(node), Fetch{options_.rank, options_.incarnation,
                                               world_->generation, committed_, options_.worker}});
    }
    return;
  }
  log_.take_due(now_us, [&](const ReplayLog::Due& due) {
    send(due.key, due.retain == Retain::kRegather ? shard_ : due.payload, out);
  });
  mirror_.take_due(now_us, world_->generation, out);
  if (phase_ == Phase::kVoting && now_us >= next_vote_us_ && mirror_.holds(open_step())) {
    next_vote_us_ = now_us + options_.vote_interval_us;
    out.push_back({coordinator_address(),
                   Vote{options_.rank, options_.incarnation, world_->generation, open_step()}});
  }
}

int64_t RankCore::next_due_us() const {
  if (phase_ == Phase::kRestoring) return next_fetch_us_;
  int64_t due = std::min(log_.next_due_us(), mirror_.next_due_us());
  // A vote that waits for the mirror is sent by the acknowledgement's handler.
  if (phase_ == Phase::kVoting && mirror_.holds(open_step())) due = std::min(due, next_vote_us_);
  return due;
}

HostingChange hosting_change(const World& world, WorkerId self, bool was_member,
                             const std::map<RankId, int64_t>& hosted) {
  HostingChange out;
  const bool member = world.find(self) != nullptr;
  if (was_member && !member) {
    out.quit = true;
    return out;
  }
  for (const auto& [rank, incarnation] : hosted) {
    const RankPlace& place = world.ranks[static_cast<size_t>(rank)];
    if (place.incarnation > incarnation) out.drop.push_back(rank);
  }
  for (size_t r = 0; r < world.ranks.size(); ++r) {
    const RankPlace& place = world.ranks[r];
    if (place.worker != self) continue;
    const auto it = hosted.find(static_cast<RankId>(r));
    if (it == hosted.end() || it->second < place.incarnation) {
      out.adopt.push_back(static_cast<RankId>(r));
    }
  }
  return out;
}

}  // namespace sgactor::supervision
