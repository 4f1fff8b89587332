#include "supervision/recovery/coordinator_core.h"

#include <fmt/format.h>

#include <algorithm>

namespace sgactor::supervision {

CoordinatorCore::CoordinatorCore(const CoordinatorOptions& options, const ReplayedJournal& journal,
                                 int64_t now_us)
    : options_(options),
      decided_(journal.world),
      announced_(std::make_shared<const World>(journal.world)),
      votes_(options.guards),
      worker_beats_(options.heartbeats),
      node_beats_(options.heartbeats),
      storms_(options.storms),
      next_number_(journal.next_number) {
  watch_members(now_us);
}

void CoordinatorCore::watch_members(int64_t now_us) {
  for (const Member& m : decided_.workers) worker_beats_.watch(m.worker, now_us);
  for (const NodeId n : decided_.nodes) node_beats_.watch(n, now_us);
}

void CoordinatorCore::fail(Status status) {
  if (failure_.ok()) failure_ = std::move(status);
}

void CoordinatorCore::on_vote(const Vote& vote) {
  if (!failure_.ok()) return;
  switch (votes_.on_vote(vote, decided_)) {
    case Votes::Outcome::kAll:
      break;
    case Votes::Outcome::kAhead:
      fail(internal_error(fmt::format("rank {} votes for step {} after commit {}", vote.rank,
                                      vote.step, decided_.committed)));
      return;
    default:
      return;
  }
  const CommitRecord record{decided_.committed + 1};
  if (Status s = apply_record(record, decided_); !s.ok()) return fail(std::move(s));
  pending_.emplace_back(record);
  votes_.on_commit();
  if (!options_.guards.durable_commit) {
    announced_ = std::make_shared<const World>(decided_);
    changed_ = true;
  }
  // Ranks move at a step boundary, in the same entry as the commit: no work of a step is lost.
  if (decided_.committed < options_.last_step) {
    World next = rebalance(decided_, options_.placement);
    if (next.generation != decided_.generation)
      adopt_world(std::move(next), FaultKind::kSlowWorker, 0);
  }
}

void CoordinatorCore::on_heartbeat(const Heartbeat& beat, int64_t now_us) {
  worker_beats_.heard(beat.worker, beat.sequence, now_us);
}

void CoordinatorCore::on_node_heartbeat(const NodeHeartbeat& beat, int64_t now_us) {
  if (dead_nodes_.contains(beat.node)) return;
  const bool known = decided_.has_node(beat.node);
  if (!known) {
    node_beats_.watch(beat.node, now_us);
    joining_nodes_.insert(beat.node);
  }
  if (!node_beats_.heard(beat.node, beat.sequence, now_us)) return;
  const auto listed = [&](WorkerId worker) {
    return std::any_of(beat.workers.begin(), beat.workers.end(),
                       [&](const Member& m) { return m.worker == worker; });
  };
  for (const Member& m : decided_.workers) {
    if (m.node == beat.node && !listed(m.worker)) {
      fault(m.worker, FaultKind::kWorkerExit, decide(FaultKind::kWorkerExit, Scope::kRank), now_us);
    }
  }
  std::erase_if(joining_, [&](const auto& item) {
    return item.second.node == beat.node && !listed(item.first);
  });
  for (const Member& m : beat.workers) {
    if (m.node != beat.node || decided_.find(m.worker) != nullptr) continue;
    if (dead_workers_.contains(m.worker) || quarantined_.contains({m.node, m.slot})) continue;
    joining_[m.worker] = m;
  }
  reconcile(FaultKind::kWorkerExit, now_us);
}

void CoordinatorCore::on_worker_fault(WorkerId worker, FaultKind kind, Action action,
                                      int64_t now_us) {
  fault(worker, kind, action, now_us);
  reconcile(kind, now_us);
}

void CoordinatorCore::fault(WorkerId worker, FaultKind kind, Action action, int64_t now_us) {
  const Member* member = decided_.find(worker);
  if (member == nullptr || dead_workers_.contains(worker)) return;
  if (action < Action::kReplaceWorker) return;
  const Slot slot{member->node, member->slot};
  if (action == Action::kStopJob) {
    return fail(make_status(Code::kInternal, fmt::format("worker {}: {}", worker, to_string(kind)),
                            Scope::kJob));
  }
  dead_workers_.insert(worker);
  if (action == Action::kQuarantineDevice) quarantined_.insert(slot);
  const int64_t place = (static_cast<int64_t>(member->node) << 20) + member->slot;
  switch (storms_.on_fault(place, now_us)) {
    case StormBreaker::Verdict::kGoOn:
      break;
    case StormBreaker::Verdict::kQuarantinePlace:
      quarantined_.insert(slot);
      break;
    case StormBreaker::Verdict::kStopJob:
      fail(make_status(
          Code::kOverloaded,
          fmt::format("{} faults in {} s: the last one is worker {} ({})", storms_.num_recent(),
                      options_.storms.window_us / 1'000'000, worker, to_string(kind)),
          Scope::kJob));
      break;
  }
}

void CoordinatorCore::drop_node(NodeId node, int64_t now_us) {
  if (!dead_nodes_.insert(node).second) return;
  joining_nodes_.erase(node);
  std::erase_if(joining_, [&](const auto& item) { return item.second.node == node; });
  // One fault, however many workers the host had.
  if (storms_.on_fault(static_cast<int64_t>(node) << 20, now_us) ==
      StormBreaker::Verdict::kStopJob) {
    fail(make_status(Code::kOverloaded,
                     fmt::format("{} faults in {} s: the last one is node {}", storms_.num_recent(),
                                 options_.storms.window_us / 1'000'000, node),
                     Scope::kJob));
  }
  for (const Member& m : decided_.workers) {
    if (m.node == node) dead_workers_.insert(m.worker);
  }
}

void CoordinatorCore::on_lost(const Lost& lost) {
  const auto r = static_cast<size_t>(lost.rank);
  if (lost.rank < 0 || r >= decided_.ranks.size()) return;
  if (lost.generation != decided_.generation || lost.incarnation != decided_.ranks[r].incarnation) {
    return;
  }
  if (failure_.ok()) lost_rank_ = lost.rank;
  fail(make_status(Code::kCorruption,
                   fmt::format("the state of rank {} after step {} is lost with its worker and its "
                               "mirror",
                               lost.rank, decided_.committed),
                   Scope::kJob));
}

void CoordinatorCore::tick(int64_t now_us) {
  for (const NodeId node : node_beats_.suspects(now_us)) {
    if (decided_.has_node(node)) drop_node(node, now_us);
    joining_nodes_.erase(node);
    node_beats_.forget(node);
  }
  reconcile(FaultKind::kHostLoss, now_us);
  for (const WorkerId worker : worker_beats_.suspects(now_us)) {
    fault(worker, FaultKind::kHang, decide(FaultKind::kHang, Scope::kRank), now_us);
    worker_beats_.forget(worker);
  }
  reconcile(FaultKind::kHang, now_us);
}

void CoordinatorCore::reconcile(FaultKind kind, int64_t now_us) {
  if (!failure_.ok()) return;
  std::vector<NodeId> nodes;
  for (const NodeId n : decided_.nodes) {
    if (!dead_nodes_.contains(n)) nodes.push_back(n);
  }
  nodes.insert(nodes.end(), joining_nodes_.begin(), joining_nodes_.end());
  std::sort(nodes.begin(), nodes.end());
  std::vector<Member> workers;
  for (const Member& m : decided_.workers) {
    if (!dead_workers_.contains(m.worker)) workers.push_back(m);
  }
  for (const auto& [worker, member] : joining_) workers.push_back(member);
  std::sort(workers.begin(), workers.end(),
            [](const Member& a, const Member& b) { return a.worker < b.worker; });
  if (nodes == decided_.nodes && workers == decided_.workers) return;
  auto next = replace_members(decided_, std::move(nodes), std::move(workers), options_.placement);
  if (!next.ok()) {
    // Fresh workers may be on their way; until then the world stays as it is and nothing commits
    // that the dead have not voted for.
    if (no_room_since_us_ < 0) no_room_since_us_ = now_us;
    if (now_us - no_room_since_us_ > options_.capacity_timeout_us) fail(next.status());
    return;
  }
  no_room_since_us_ = -1;
  joining_.clear();
  joining_nodes_.clear();
  adopt_world(std::move(*next), kind, now_us);
  watch_members(now_us);
}

void CoordinatorCore::adopt_world(World next, FaultKind kind, int64_t now_us) {
  RecoveryNote note;
  note.generation = next.generation;
  note.fault = kind;
  note.detected_us = now_us;
  for (const Member& m : decided_.workers) {
    if (next.find(m.worker) == nullptr) note.workers.push_back(m.worker);
  }
  for (const NodeId n : decided_.nodes) {
    if (!next.has_node(n)) note.nodes.push_back(n);
  }
  for (size_t r = 0; r < next.ranks.size(); ++r) {
    if (next.ranks[r].incarnation != decided_.ranks[r].incarnation) {
      note.ranks.push_back(static_cast<RankId>(r));
    }
  }
  if (!note.workers.empty() || !note.nodes.empty()) recoveries_.push_back(std::move(note));
  const std::vector<Record> records = difference(decided_, next);
  pending_.insert(pending_.end(), records.begin(), records.end());
  decided_ = std::move(next);
  votes_.on_membership();
  if (!options_.guards.durable_incarnation) {
    announced_ = std::make_shared<const World>(decided_);
    changed_ = true;
  }
}

std::optional<JournalEntry> CoordinatorCore::take_write(int64_t now_us) {
  if (in_flight_ || pending_.empty() || now_us < retry_us_) return std::nullopt;
  in_flight_ = JournalEntry{next_number_, std::move(pending_)};
  pending_.clear();
  in_flight_world_ = decided_;
  return in_flight_;
}

void CoordinatorCore::on_durable(int64_t number, int64_t now_us) {
  if (!in_flight_ || in_flight_->number != number) return;
  in_flight_.reset();
  ++next_number_;
  announced_ = std::make_shared<const World>(std::move(in_flight_world_));
  changed_ = true;
  for (RecoveryNote& note : recoveries_) {
    if (note.fenced_us == 0 && note.generation <= announced_->generation) note.fenced_us = now_us;
  }
}

void CoordinatorCore::on_write_failed(int64_t number, int64_t now_us) {
  if (!in_flight_ || in_flight_->number != number) return;
  pending_.insert(pending_.begin(), in_flight_->records.begin(), in_flight_->records.end());
  in_flight_.reset();
  retry_us_ = now_us + options_.write_retry_us;
}

bool CoordinatorCore::take_announcement(int64_t now_us) {
  if (!changed_ && now_us - last_announced_us_ < options_.announce_interval_us) return false;
  changed_ = false;
  last_announced_us_ = now_us;
  return true;
}

}  // namespace sgactor::supervision
