#include "supervision/chaos/sim_process.h"

#include <algorithm>

namespace sgactor::supervision {
namespace {

constexpr int64_t kBeatUs = 100'000;

CoordinatorOptions coordinator_options(const SimScenario& s) {
  CoordinatorOptions o;
  o.last_step = s.steps;
  o.placement.max_ranks_per_worker = s.max_ranks_per_worker;
  // The schedule's own faults are no storm.
  o.storms.max_faults = 1000;
  o.storms.max_faults_of_place = 1000;
  o.capacity_timeout_us = 5'000'000;
  o.guards = s.guards;
  return o;
}

}  // namespace

void SimProcess::send_all(Outbox& out) {
  for (Envelope& e : out) host_.send(self_, std::move(e));
  out.clear();
}

void SimProcess::wake_at(int64_t at_us) {
  if (at_us >= wake_us_) return;
  wake_us_ = at_us;
  host_.wake_at(self_, std::max(at_us, host_.now_us() + 1));
}

// --- worker ---

WorkerProcess::WorkerProcess(SimHost& host, WorkerId worker)
    : SimProcess(host, worker_address(worker)) {}

void WorkerProcess::on_start() {
  next_beat_us_ = host_.now_us();
  on_wake();
}

int64_t WorkerProcess::lives(RankId rank) const {
  const auto it = ranks_.find(rank);
  return it != ranks_.end() && it->second.first_step >= 0 ? it->second.core->options().incarnation
                                                          : 0;
}

WorkerProcess::Hosted* WorkerProcess::find(RankId rank) {
  const auto it = ranks_.find(rank);
  return it != ranks_.end() ? &it->second : nullptr;
}

void WorkerProcess::on_message(const Message& message) {
  const int64_t now = host_.now_us();
  Hosted* hosted = nullptr;
  if (const auto* world = std::get_if<WorldRef>(&message)) {
    on_world(*world);
  } else if (const auto* data = std::get_if<Data>(&message)) {
    hosted = find(data->key.to);
    if (hosted != nullptr) hosted->core->on_data(*data, out_);
  } else if (const auto* ack = std::get_if<DataAck>(&message)) {
    hosted = find(ack->key.from);
    if (hosted != nullptr) hosted->core->on_ack(*ack);
    hosted = nullptr;  // an acknowledgement enables nothing
  } else if (const auto* stored = std::get_if<MirrorAck>(&message)) {
    hosted = find(stored->rank);
    if (hosted != nullptr) hosted->core->on_mirror_ack(*stored, now, out_);
  } else if (const auto* fetched = std::get_if<Fetched>(&message)) {
    hosted = find(fetched->rank);
    if (hosted != nullptr) hosted->core->on_fetched(*fetched);
  }
  if (hosted != nullptr) pump(hosted->core->options().rank, *hosted);
  flush();
}

void WorkerProcess::on_wake() {
  woken();
  const int64_t now = host_.now_us();
  if (now >= next_beat_us_) {
    next_beat_us_ = now + kBeatUs;
    out_.push_back({coordinator_address(), Heartbeat{self_.id, ++beats_}});
  }
  for (auto& [rank, hosted] : ranks_) hosted.core->tick(now, out_);
  flush();
}

void WorkerProcess::flush() {
  for (const Envelope& e : out_) {
    const auto* vote = std::get_if<Vote>(&e.message);
    if (vote == nullptr) continue;
    host_.on_phase(SimPhase::kVoting, self_.id);
    Hosted* hosted = find(vote->rank);
    if (hosted == nullptr || std::exchange(hosted->voted, true)) continue;
    if (hosted->core->options().incarnation > 1) host_.on_phase(SimPhase::kVoted, self_.id);
  }
  send_all(out_);
  int64_t due = next_beat_us_;
  for (const auto& [rank, hosted] : ranks_) due = std::min(due, hosted.core->next_due_us());
  wake_at(due);
}

void WorkerProcess::on_world(const WorldRef& world) {
  const ProtocolGuards& guards = host_.scenario().guards;
  if (world_ && guards.monotone_world && !world->newer_than(*world_)) return;
  std::map<RankId, int64_t> lives;
  for (const auto& [rank, hosted] : ranks_) lives[rank] = hosted.core->options().incarnation;
  const HostingChange change = hosting_change(*world, self_.id, member_, lives);
  world_ = world;
  if (change.quit && guards.fencing) return host_.quit(self_);
  member_ = member_ || world->find(self_.id) != nullptr;
  for (const RankId rank : change.drop) {
    const bool replaced_here =
        std::find(change.adopt.begin(), change.adopt.end(), rank) != change.adopt.end();
    if (guards.fencing || replaced_here) ranks_.erase(rank);
  }
  for (auto& [rank, hosted] : ranks_) {
    if (Status s = hosted.core->on_world(world, host_.now_us(), out_); !s.ok()) {
      return host_.on_broken(s);
    }
  }
  for (const RankId rank : change.adopt) adopt(rank);
  for (auto& [rank, hosted] : ranks_) pump(rank, hosted);
}

void WorkerProcess::adopt(RankId rank) {
  const SimScenario& s = host_.scenario();
  RankOptions options;
  options.rank = rank;
  options.incarnation = world_->ranks[static_cast<size_t>(rank)].incarnation;
  options.worker = self_.id;
  options.state_interval = s.state_interval;
  options.log_budget_bytes = planned_log_bytes(s.mesh, rank);
  options.guards = s.guards;
  Hosted& hosted = ranks_[rank];
  hosted = {};
  hosted.core = std::make_unique<RankCore>(options, world_, host_.now_us());
  hosted.program = std::make_unique<SymbolicRank>(s.mesh, rank, s.guards);
  if (world_->committed == 0) {
    // The state before the first step comes from the plan's seed.
    State state = initial_state(s.mesh, rank);
    const Payload shard = shard_of(state);
    hosted.core->start(std::move(state), shard, host_.now_us(), out_);
  } else {
    host_.on_phase(SimPhase::kFetching, self_.id);
    hosted.core->tick(host_.now_us(), out_);
  }
}

void WorkerProcess::pump(RankId rank, Hosted& hosted) {
  RankCore& core = *hosted.core;
  const int64_t incarnation = core.options().incarnation;
  const auto phase = core.phase();
  const int64_t committed = core.committed();
  const Status status = hosted.program->pump(
      core, host_.now_us(), out_, [&](Work work, int64_t step, int32_t micro_batch) {
        host_.on_work(rank, incarnation, work, step, micro_batch);
      });
  if (!status.ok()) return host_.on_broken(status);
  const bool alive = core.phase() != RankCore::Phase::kRestoring;
  if (alive && hosted.first_step < 0) {
    hosted.first_step = core.open_step();
    if (incarnation > 1) host_.on_phase(SimPhase::kRestored, self_.id);
    host_.on_state(rank, core.committed(), core.state());
  } else if (phase == RankCore::Phase::kUpdating && core.phase() == RankCore::Phase::kExecuting) {
    host_.on_state(rank, committed, core.state());
  }
}

// --- node ---

NodeProcess::NodeProcess(SimHost& host, NodeId node)
    : SimProcess(host, node_address(node)), node_(node), mirror_(node, host.scenario().guards) {}

void NodeProcess::on_start() {
  next_beat_us_ = host_.now_us();
  on_wake();
}

void NodeProcess::on_message(const Message& message) {
  Outbox out;
  if (const auto* world = std::get_if<WorldRef>(&message)) {
    on_world(*world);
  } else if (const auto* state = std::get_if<PutState>(&message)) {
    mirror_.on_put_state(*state, out);
  } else if (const auto* inputs = std::get_if<PutInputs>(&message)) {
    mirror_.on_put_inputs(*inputs, out);
  } else if (const auto* fetch = std::get_if<Fetch>(&message)) {
    mirror_.on_fetch(*fetch, out);
  }
  send_all(out);
}

void NodeProcess::on_world(const WorldRef& world) {
  mirror_.on_world(world);
  if (world_ && !world->newer_than(*world_)) return;
  world_ = world;
  const bool member = world->has_node(node_);
  if (member_ && !member) return host_.quit(self_);
  member_ = member_ || member;
  for (const WorkerId w : were_members_) {
    if (world->find(w) == nullptr) host_.kill_if_told(w);
  }
  were_members_.clear();
  for (const Member& m : world->workers) {
    if (m.node == node_) were_members_.push_back(m.worker);
  }
}

void NodeProcess::on_workers(std::vector<Member> workers) {
  workers_ = std::move(workers);
  beat();
}

void NodeProcess::beat() {
  host_.send(self_, {coordinator_address(), NodeHeartbeat{node_, ++beats_, workers_}});
}

void NodeProcess::on_wake() {
  woken();
  if (host_.now_us() >= next_beat_us_) {
    next_beat_us_ = host_.now_us() + kBeatUs;
    beat();
  }
  wake_at(next_beat_us_);
}

// --- coordinator ---

CoordinatorProcess::CoordinatorProcess(SimHost& host, const ReplayedJournal& journal)
    : SimProcess(host, coordinator_address()),
      core_(coordinator_options(host.scenario()), journal, host.now_us()),
      generation_(journal.world.generation) {}

void CoordinatorProcess::on_start() { flush(); }

void CoordinatorProcess::on_message(const Message& message) {
  const int64_t now = host_.now_us();
  if (const auto* vote = std::get_if<Vote>(&message)) core_.on_vote(*vote);
  if (const auto* beat = std::get_if<Heartbeat>(&message)) core_.on_heartbeat(*beat, now);
  if (const auto* node = std::get_if<NodeHeartbeat>(&message)) core_.on_node_heartbeat(*node, now);
  if (const auto* lost = std::get_if<Lost>(&message)) core_.on_lost(*lost);
  flush();
}

void CoordinatorProcess::on_wake() {
  woken();
  core_.tick(host_.now_us());
  flush();
}

void CoordinatorProcess::on_written(int64_t number, bool ok) {
  if (ok) {
    core_.on_durable(number, host_.now_us());
  } else {
    core_.on_write_failed(number, host_.now_us());
  }
  flush();
}

void CoordinatorProcess::flush() {
  if (core_.decided().generation != generation_) {
    generation_ = core_.decided().generation;
    host_.on_phase(SimPhase::kDecided, kNone);
  }
  host_.on_decided(core_);
  if (auto entry = core_.take_write(host_.now_us())) {
    const bool commit =
        std::any_of(entry->records.begin(), entry->records.end(),
                    [](const Record& r) { return std::holds_alternative<CommitRecord>(r); });
    host_.write_journal(*entry);
    if (commit) host_.on_phase(SimPhase::kCommitting, kNone);
  }
  if (core_.take_announcement(host_.now_us())) host_.broadcast(core_.announced());
  wake_at(host_.now_us() + 25'000);
}

}  // namespace sgactor::supervision
