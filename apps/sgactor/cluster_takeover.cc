// Cluster: a run whose coordinator has died goes on under this one. Nodes and workers wait for it
// with what they hold; the journal says what is committed; the rest is as after a fence.
#include "actors/runtime/journal.h"
#include "apps/sgactor/clock.h"
#include "apps/sgactor/cluster.h"
#include "apps/sgactor/cluster_course.h"
#include "apps/sgactor/cluster_ranks.h"
#include "graph/base/log.h"
#include "transport/storage/checkpoint.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <future>
#include <utility>

namespace sgactor::apps {

namespace wire = actors::wire;

namespace {

constexpr int64_t kStepMs = 20;
// Those that wait try every 50 ms.
constexpr int64_t kReturnMs = 5000;
constexpr int64_t kEndMs = 1300;
constexpr int64_t kFreshWorkerMs = 15'000;
constexpr int32_t kIndexBlock = 64;

Status no_takeover(const std::string& why) {
  return make_status(Code::kDisconnected, why, Scope::kRank);
}

}  // namespace

// --- what is left behind ---

bool Cluster::outlives() const { return setup_.recovers && setup_.orphan_ms > 0; }

/// From here on others wait for another coordinator if this one dies.
Status Cluster::keep_left(const Work& work, uint64_t schema_hash) {
  if (!outlives()) return {};
  left_.build = build_id(program_file());
  left_.job_hash = job_hash_;
  left_.schema_hash = schema_hash;
  left_.pid = ::getpid();
  left_.secret = secret_;
  left_.mirror = memory_ ? memory_->path() : shared_mirror_;
  left_.next_index = next_index_ + kIndexBlock;
  left_.closed = closed_devices_;
  left_.fingerprints = fingerprints_;
  left_.server = {addresses_, server_};
  left_run_ = {work.run_directory};
  SGA_TRY(write_left(left_run_, left_));
  terms_ = {setup_.orphan_ms, memory_ ? memory_->path() : ""};
  for (const auto& [id, node] : nodes_) session_->send(id, to_wire(terms_));
  for (const auto& [index, worker] : workers_) session_->send(worker.peer, to_wire(terms_));
  return {};
}

/// What has changed since keep_left. The run goes on without.
void Cluster::rewrite_left() {
  const Status written = write_left_facts(left_run_, left_);
  if (!written.ok()) log::warn("{}", written.message());
}

/// An index that was given is never given again, whoever gives the next one.
int32_t Cluster::take_index() {
  if (!left_run_.path.empty() && next_index_ + 1 >= left_.next_index) {
    left_.next_index = next_index_ + kIndexBlock;
    rewrite_left();
  }
  return next_index_++;
}

// --- who is there still ---

void Cluster::on_returned(const actors::Peer& peer) {
  const wire::Hello& hello = peer.hello;
  if (hello.role == wire::Role::kNode) {
    // Those of its workers that are there show by what it says next.
    nodes_[peer.id] = {peer, std::max<int32_t>(1, static_cast<int32_t>(hello.devices.size())), {}};
    return;
  }
  if (hello.index < 0 || hello.index >= next_index_ || workers_.contains(hello.index)) {
    session_->expel(peer.id, invalid_argument("nobody has asked for this worker"));
    return;
  }
  Worker& worker = workers_[hello.index];
  worker.peer = peer.id;
  worker.who = peer;
  worker.place = -1;
  worker.life = hello.index;
  worker.heard_ms = now_ms();
}

void Cluster::on_standing(wire::PeerId from, const std::string& payload) {
  auto standing = parse_standing(payload);
  if (!standing.ok()) return log::warn("{}", standing.status().message());
  if (const Worker* worker = find_peer(from); worker != nullptr) {
    if (settled_) return;  // it has its place
    standing->worker = worker->who.hello.index;
    standings_[standing->worker] = std::move(*standing);
  } else if (const auto node = nodes_.find(from); node != nodes_.end()) {
    node->second.devices = std::move(standing->devices);
    if (returning_) alive_[from] = std::move(standing->alive);
  }
}

void Cluster::forget_returned(int32_t index) {
  standings_.erase(index);
  workers_.erase(index);
  for (auto& [node, indices] : alive_) std::erase(indices, index);
}

/// Whether all that may come have come and said where they stand.
bool Cluster::all_returned() const {
  for (const LeftRun::Worker& w : setup_.left->workers) {
    const bool here = std::any_of(nodes_.begin(), nodes_.end(), [&](const auto& n) {
      const wire::Hello& hello = n.second.who.hello;
      return hello.pid == w.node_pid && hello.host == w.host && alive_.contains(n.first);
    });
    const bool gone = w.host == host_name() && !is_process_of(token_, w.node_pid);
    if (!here && !gone) return false;
  }
  for (const auto& [node, indices] : alive_) {
    for (const int32_t index : indices) {
      if (!standings_.contains(index)) return false;
    }
  }
  return true;
}

Status Cluster::await_returned(const std::atomic<bool>& stop) {
  returning_ = true;
  settled_ = false;
  holds_faults_ = true;
  const int64_t deadline = now_ms() + kReturnMs;
  while (!all_returned() && now_ms() < deadline) {
    if (stop.load()) return make_status(Code::kCancelled, "interrupted before the first step");
    SGA_TRY(step(kStepMs));
  }
  returning_ = false;
  return {};
}

/// Workers get their nodes and places back; what is missing is started. Before anything else of the
/// run.
void Cluster::settle_returned() {
  std::map<wire::PeerId, int64_t> hosted;
  for (const auto& [index, place] : starting_) ++hosted[places_[static_cast<size_t>(place)].node];
  for (auto it = workers_.begin(); it != workers_.end();) {
    Worker& worker = it->second;
    if (worker.place >= 0) {
      // Of a node that was started since: nobody has returned.
      ++hosted[worker.who.hello.node];
      ++it;
      continue;
    }
    const auto standing = standings_.find(it->first);
    const auto node = std::find_if(nodes_.begin(), nodes_.end(), [&](const auto& n) {
      return standing != standings_.end() && n.second.who.hello.pid == standing->second.node_pid &&
             n.second.who.hello.host == worker.who.hello.host;
    });
    const bool there = node != nodes_.end() && !standing->second.failed;
    if (there) {
      const std::vector<std::string>& devices = standing->second.devices;
      worker.who.hello.node = node->first;
      worker.place = add_place(node->second, devices.empty() ? setup_.devices : devices.front());
    }
    // Its device may have been given up a moment before the coordinator died.
    if (!there || is_closed(worker.place)) {
      session_->expel(worker.peer, make_status(Code::kCancelled, "of no use any more"));
      it = workers_.erase(it);
      continue;
    }
    ++hosted[node->first];
    ++it;
  }
  for (const auto& [node, indices] : alive_) {
    for (const int32_t index : indices) {
      if (!workers_.contains(index)) session_->send(node, wire::EndWorker{index, false});
    }
  }
  auto missing = setup_.num_workers + setup_.options.spares -
                 static_cast<int64_t>(workers_.size() + starting_.size());
  for (const auto& [id, node] : nodes_) {
    const wire::Hello& hello = node.who.hello;
    auto room =
        std::count_if(hello.devices.begin(), hello.devices.end(), [&](const std::string& d) {
          return !closed_devices_.contains({hello.host, d});
        });
    for (room -= hosted[id]; room > 0 && missing > 0; --room, --missing) {
      start_worker_at(add_place(node, free_device(id)));
    }
  }
  settled_ = true;
}

/// What was heard while nobody knew yet who hosts what.
void Cluster::answer_early_faults() {
  holds_faults_ = false;
  for (const supervision::DeviceFault& fault : std::exchange(early_faults_, {})) {
    on_device_fault(fault);
  }
}

/// Nodes that this process has not started itself, after they were told.
void Cluster::end_returned() {
  if (!setup_.left) return;
  const int64_t deadline = now_ms() + kEndMs;
  for (const auto& [id, node] : nodes_) {
    const wire::Hello& hello = node.who.hello;
    if (hello.host != host_name() || !alive_.contains(id)) continue;
    while (is_process_of(token_, hello.pid) && now_ms() < deadline) (void)session_->next(kStepMs);
    if (is_process_of(token_, hello.pid)) ::kill(static_cast<pid_t>(hello.pid), SIGKILL);
  }
}

// --- the attempt that goes on ---

/// Copies of the state that the coordinator before has told of or may have told of.
std::vector<ReplayCheck::Point> Cluster::left_points(const Course& course) const {
  std::vector<ReplayCheck::Point> out;
  const std::string disk = RunDirectory{course.work->run_directory}.checkpoints();
  for (const std::string& root : {disk, course.mirror_root}) {
    if (root.empty()) continue;
    const auto copies = transport::list_checkpoints(root);
    if (!copies.ok()) continue;
    for (const transport::CheckpointListing& copy : *copies) {
      if (copy.status.ok()) out.push_back({copy.step, copy.path, copy.step});
    }
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const auto& a, const auto& b) { return a.step < b.step; });
  return out;
}

/// Ranks whose worker is there, in the life that the journal names, keep it. Whoever has loaded but
/// not begun keeps its ranks if nobody else has them.
void Cluster::deal_returned(Course& course) {
  const LeftRun& left = *setup_.left;
  const size_t num_ranks = course.work->plan->ranks.size();
  course.hosts.assign(num_ranks, -1);
  course.incarnations = left.standing.incarnations;
  for (size_t r = 0; r < num_ranks; ++r) course.hosts[r] = -1 - static_cast<int32_t>(r);
  for (const LeftRun::Worker& w : left.workers) {
    for (const int32_t rank : w.ranks) {
      // Its ranks go to one that takes its place.
      if (static_cast<size_t>(rank) < num_ranks) course.hosts[static_cast<size_t>(rank)] = w.index;
    }
  }
  const auto fits = [&](const Standing& s) {
    bool fit = !s.ranks.empty();
    for (size_t i = 0; i < s.ranks.size(); ++i) {
      const auto rank = static_cast<size_t>(s.ranks[i]);
      fit = fit && rank < num_ranks && (!s.runs || s.incarnations[i] == course.incarnations[rank]);
    }
    return fit && (s.runs || s.loaded_step == left.standing.step);
  };
  std::set<int32_t> taken;
  for (const bool runs : {true, false}) {
    for (auto& [index, worker] : workers_) {
      const auto found = standings_.find(index);
      if (found == standings_.end() || found->second.runs != runs || !fits(found->second)) continue;
      const Standing& s = found->second;
      if (std::any_of(s.ranks.begin(), s.ranks.end(), [&](int32_t r) { return taken.contains(r); }))
        continue;
      worker.ranks = s.ranks;
      worker.address = s.address;
      worker.life = s.life;
      if (const auto known = fingerprints_.find(s.ranks.front()); known != fingerprints_.end()) {
        worker.fingerprint = arithmetic_at_[kind_of(worker)] = known->second;
      }
      for (const int32_t rank : s.ranks) {
        taken.insert(rank);
        course.hosts[static_cast<size_t>(rank)] = index;
        if (!runs) course.incarnations[static_cast<size_t>(rank)] = course.generation;
      }
      if (runs) course.begun = std::max(course.begun, s.begun);
    }
  }
}

/// Loaded for what is another's now: its data plane is known under a name that cannot be used
/// again.
void Cluster::expel_stale() {
  for (auto it = workers_.begin(); it != workers_.end();) {
    const auto found = standings_.find(it->first);
    const bool stale =
        found != standings_.end() && !found->second.ranks.empty() && it->second.ranks.empty();
    if (!stale) {
      ++it;
      continue;
    }
    session_->expel(it->second.peer, make_status(Code::kCancelled, "of no use any more"));
    const int32_t place = it->second.place;
    it = workers_.erase(it);
    start_worker_at(place);
  }
}

/// The ranks that nobody holds are loaded by others, at the committed step.
Status Cluster::load_missing(Course& course, int64_t committed, const std::atomic<bool>& stop) {
  const auto held = [&](int32_t index) { return workers_.contains(index); };
  if (std::all_of(course.hosts.begin(), course.hosts.end(), held)) return {};
  if (const auto point = course.check->reaching(committed)) {
    course.in_place.point = *point;
  } else if (!setup_.replicas) {
    return no_takeover(fmt::format("step {} cannot be restored", committed));
  } else {
    SGA_TRY(copy_now(course, committed));
    course.in_place.point = {committed, copy_.path, committed};
  }
  const int64_t deadline = now_ms() + kFreshWorkerMs;
  const auto over = [&] { return stop.load() || !faults_.empty() || now_ms() > deadline; };
  while (!find_adopters(course)) {
    if (over() || starting_.empty()) return no_takeover("no worker is free");
    SGA_TRY(step(kStepMs));
  }
  while (!loading_.empty()) {
    if (stop.load() || !faults_.empty()) return no_takeover("a worker was lost meanwhile");
    SGA_TRY(step(kStepMs));
  }
  for (size_t r = 0; r < course.hosts.size(); ++r) {
    if (course.in_place.waiting.contains(course.hosts[r])) {
      course.incarnations[r] = course.generation;
    }
  }
  course.in_place.waiting.clear();
  return {};
}

/// On disk before anybody hears of it.
Status Cluster::journal_standing(Course& course, actors::CommitRecord record) {
  std::promise<Status> written;
  course.journal_service->submit(
      [journal = course.journal, record = std::move(record)] { return journal->append(record); },
      [&written](const Status& status) { written.set_value(status); });
  return written.get_future().get();
}

/// Prepares the attempt that goes on where the coordinator before has stopped. Not ok: it must
/// begin from a copy of the state.
Status Cluster::take_over(Course& course, const std::atomic<bool>& stop) {
  const LeftRun& left = *setup_.left;
  course.generation = std::max(course.generation, left.generation);
  open_recovery(course);
  Recovery& recovery = *course.recovery;
  recovery.fault = supervision::to_string(supervision::FaultKind::kCoordinatorExit);
  recovery.culprit = fmt::format("the coordinator (pid {}) has ended", left.facts.pid);
  recovery.detected_unix -= static_cast<double>(now_ms() - created_ms_) / 1e3;
  course.recovery_ms = created_ms_;
  session_->set_generation(course.generation);
  const int64_t committed = left.standing.step;
  if (left.standing.incarnations.size() != course.work->plan->ranks.size()) {
    return no_takeover("nothing was committed");
  }
  if (!course.adopts || left.facts.mirror != course.mirror_root) {
    return no_takeover("no copy in memory is left");
  }
  if (committed < course.work->first_step - 1) return no_takeover("the journal is older");
  course.committed = committed;
  deal_returned(course);
  expel_stale();
  SGA_TRY(load_missing(course, committed, stop));
  keep_fingerprints(course, committed + 1);
  recovery.fenced_ms = static_cast<double>(now_ms() - course.recovery_ms);
  recovery.from_step = committed;
  recovery.workers = num_active();
  const int64_t reported = course.check->last_step();
  actors::TakenOver at;
  at.committed = committed;
  at.owes_done = reported < committed;
  at.begun = course.begun > committed;
  const auto copies = transport::list_checkpoints(course.mirror_root);
  at.mirrored = copies.ok() && std::any_of(copies->begin(), copies->end(), [&](const auto& c) {
                  return c.step == committed && c.status.ok();
                });
  at.validated = course.check->validated(committed);
  course.taken_over = at;
  course.check->begin_attempt(reported, committed);
  course.loss_bits = left.standing.loss_bits;
  SGA_TRY(journal_standing(course,
                           {committed, course.generation, course.incarnations, course.loss_bits}));
  write_state(course);
  log::info("goes on after step {} with {} of {} ranks where they were", committed,
            static_cast<int64_t>(course.hosts.size()) - recovery.ranks_moved, course.hosts.size());
  return {};
}

}  // namespace sgactor::apps
