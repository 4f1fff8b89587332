// Cluster: recovery in place. Survivors keep actors, memory and results; another worker takes over
// what was lost, from the state of the committed step, and runs the open step alone.
#include "actors/protocol/status_error.h"
#include "actors/runtime/gateway.h"
#include "apps/sgactor/clock.h"
#include "apps/sgactor/cluster.h"
#include "apps/sgactor/cluster_course.h"
#include "apps/sgactor/cluster_ranks.h"
#include "graph/base/log.h"

#include <caf/send.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace sgactor::apps {

namespace wire = actors::wire;
using supervision::Action;
using Stage = AdoptionStage;

namespace {

constexpr int64_t kLoadMs = 120'000;
// A fresh worker joins within this; a spare is there at once.
constexpr int64_t kAdopterMs = 2000;
// Of what takes no time unless something is wrong: then an attempt is the safer way.
constexpr int64_t kStageMs = 5000;
// Whoever waits for a lost peer says so before the loss of its process is known.
constexpr int64_t kSuspendedMs = 300;
// A link that breaks more often in one step is not worth another.
constexpr int64_t kMostLinkFaults = 3;
// What fails more often behind one step fails again.
constexpr int64_t kMostRespawns = 2;

Status no_adoption(const std::string& why) {
  return make_status(Code::kDisconnected, "no recovery in place: " + why, Scope::kRank);
}

}  // namespace

void Cluster::listen_to_fences(Course& course, actors::CoordinatorHost& host) {
  host.on_fenced = [&course, session = session_.get()](int64_t generation, int64_t committed) {
    course.fenced_committed = committed;
    course.fenced_generation = generation;
    session->post();
  };
  host.on_suspended = [&course](int64_t generation, const Status& why) {
    if (course.suspended_generation.exchange(generation) == generation) return;
    course.note_suspended(why.message());
    log::debug("{}", why.message());
  };
  host.on_failed = [&course, session = session_.get()](int32_t rank, const Status& why) {
    course.note_failed(rank, why);
    session->post();
  };
}

actors::SpawnWorker Cluster::stand_in(const Worker& worker, const wire::Routes& routes) const {
  return [gateway = session_->gateway(), worker, routes, proxies = proxies_](
             caf::local_actor* parent, const actors::CoordinatorActor& coordinator) {
    auto proxy =
        actors::spawn_worker_proxy(parent, gateway, worker.peer, worker.ranks, coordinator);
    {
      const std::lock_guard lock(proxies->mutex);
      proxies->by_peer[worker.peer] = proxy;
    }
    // Behind the proxy's own message to the gateway, so that no answer comes before it.
    caf::anon_send(gateway, actors::SendToPeer{worker.peer, routes, 0});
    return proxy;
  };
}

/// Whether what is known can be answered by adoption.
Status Cluster::check_adoption(const Course& course) const {
  const bool first = course.in_place.stage == Stage::kNone;
  if (!course.adopts) return no_adoption("not with this job");
  if (first && course.ready_ms() == 0 && (!course.taken_over || course.all_fresh))
    return no_adoption("the attempt has not begun");
  if (course.pause || !storm_status_.ok()) return no_adoption("the attempt ends");
  for (const Fault& fault : faults_) {
    const Action action = supervision::decide(fault.kind, fault.status.scope());
    const bool of_worker = action == Action::kReplaceWorker || action == Action::kResetDevice ||
                           action == Action::kQuarantineDevice;
    if (is_broken_link(fault)) continue;
    if (is_respawn(fault) && fault.index >= 0) {
      // What fails before the first step fails again.
      const bool first_step = course.check->last_step() == course.work->first_step - 1;
      if (first_step || course.respawns > kMostRespawns) return fault.status;
      continue;
    }
    // Survivors hold what came of the wrong bits.
    if (fault.kind == supervision::FaultKind::kWrongBits) return fault.status;
    if (fault.index < 0 || !of_worker) return fault.status;
  }
  return {};
}

/// All its workers are there: their links are made again, and what was on them is sent again.
bool Cluster::is_broken_link(const Fault& fault) {
  return fault.kind == supervision::FaultKind::kPartition &&
         supervision::decide(fault.kind, fault.status.scope()) == Action::kRetry;
}

/// The process is well, and takes its ranks over itself.
bool Cluster::is_respawn(const Fault& fault) {
  const Action action = supervision::decide(fault.kind, fault.status.scope());
  return fault.kind == supervision::FaultKind::kActorFailure &&
         (action == Action::kRespawnActor || action == Action::kRetry);
}

/// An actor has failed in a process that lives.
void Cluster::note_failure(Course& course, int32_t rank, const Status& why) {
  const int32_t index = course.hosts[static_cast<size_t>(rank)];
  const auto it = workers_.find(index);
  const Course::InPlace& p = course.in_place;
  // It is lost, begins again already, or has told of another of its actors.
  const bool begins =
      p.waiting.contains(index) || (p.respawns.contains(index) && course.ready_ms() == 0);
  const bool told = std::any_of(
      faults_.begin() + static_cast<std::ptrdiff_t>(std::min(p.num_faults, faults_.size())),
      faults_.end(), [index](const Fault& f) { return f.index == index && is_respawn(f); });
  if (it == workers_.end() || begins || told) return;
  const int64_t step = course.check->last_step();
  course.respawns = step == course.respawn_step ? course.respawns + 1 : 1;
  course.respawn_step = step;
  count_storm(it->second.place);
  faults_.push_back(make_fault(supervision::FaultKind::kActorFailure, why, index,
                               it->second.who.name() + ": " + why.message()));
}

/// Somebody waits for a recovery, and no process is lost.
Status Cluster::note_broken_link(Course& course) {
  const int64_t step = course.check->last_step();
  course.link_faults = step == course.link_fault_step ? course.link_faults + 1 : 1;
  course.link_fault_step = step;
  const std::string text = "a link between workers is broken: " + course.suspended_why();
  if (!course.adopts || course.link_faults > kMostLinkFaults) {
    return make_status(Code::kDisconnected, text, Scope::kRank);
  }
  ++num_faults_;
  faults_.push_back(make_fault(supervision::FaultKind::kPartition,
                               make_status(Code::kDisconnected, text, Scope::kChannel), -1, "",
                               course.suspended_ms));
  return {};
}

bool Cluster::is_hosted(const Course& course, int32_t rank) const {
  const int32_t index = course.hosts[static_cast<size_t>(rank)];
  const Course::InPlace& p = course.in_place;
  return workers_.contains(index) && !p.waiting.contains(index) && !p.respawns.contains(index);
}

/// Nothing commits from here on until the ranks that were lost vote again.
Status Cluster::begin_fence(Course& course, const actors::CoordinatorActor& coordinator) {
  SGA_TRY(check_adoption(course));
  end_workers_at_fault();
  SGA_TRY(check_adoption(course));  // of what has become known meanwhile
  open_recovery(course);
  Course::InPlace& p = course.in_place;
  p.num_faults = faults_.size();
  p.stage = Stage::kFence;
  p.since_ms = now_ms();
  for (const Fault& fault : faults_) {
    if (is_respawn(fault) && workers_.contains(fault.index)) p.respawns.insert(fault.index);
  }
  actors::Fence fence;
  fence.generation = course.generation;
  bool survives = false;
  for (int32_t rank = 0; rank < static_cast<int32_t>(course.hosts.size()); ++rank) {
    if (is_hosted(course, rank)) {
      survives = true;
    } else {
      fence.ranks.push_back(rank);
    }
  }
  const bool of_links = std::all_of(faults_.begin(), faults_.end(), is_broken_link);
  if (!survives || (fence.ranks.empty() && !of_links)) {
    return no_adoption("nobody is left, or nothing is lost");
  }
  caf::anon_send(coordinator, std::move(fence));
  p.adopters.clear();
  strike_at(course, "fence");
  return {};
}

/// Where the state after `committed` comes from, for those that take over.
Status Cluster::find_state(Course& course, int64_t committed) {
  Course::InPlace& p = course.in_place;
  p.copies = false;
  if (const auto point = course.check->reaching(committed)) {
    p.point = *point;
    return {};
  }
  if (!setup_.replicas) {
    return no_adoption(fmt::format("step {} cannot be restored", committed));
  }
  bool lost = false;
  for (int32_t rank = 0; rank < static_cast<int32_t>(course.hosts.size()); ++rank) {
    lost = lost || !is_hosted(course, rank);
  }
  p.point = {committed, copy_.path, committed};
  // One that a recovery before this one has made is as good: nothing has been committed since.
  if (!lost || (!copy_.path.empty() && copy_.step() == committed)) return {};
  p.copies = true;
  return begin_copy(course, committed, {});
}

/// The fence stands: where those begin that take over.
Status Cluster::on_fenced(Course& course) {
  Recovery& recovery = *course.recovery;
  const int64_t committed = course.fenced_committed;
  if (committed < 0) return no_adoption("the run is finishing");
  session_->set_generation(course.generation);
  SGA_TRY(find_state(course, committed));
  recovery.fenced_ms = static_cast<double>(now_ms() - course.recovery_ms);
  recovery.from_step = committed;
  course.check->begin_attempt(course.check->last_step(), committed);
  return {};
}

/// Gives the ranks of each lost worker to one that hosts nothing, as far as there are such. True
/// if none is left over.
bool Cluster::find_adopters(Course& course) {
  bool all = true;
  for (size_t r = 0; r < course.hosts.size(); ++r) {
    const int32_t lost = course.hosts[r];
    if (workers_.contains(lost)) continue;
    const auto adopter = std::find_if(workers_.begin(), workers_.end(), [&](const auto& w) {
      return w.second.ranks.empty() && !is_leaving(w.second) &&
             fits(w.second, static_cast<int32_t>(r));
    });
    if (adopter == workers_.end()) {
      all = false;
      continue;
    }
    auto& [index, worker] = *adopter;
    for (size_t other = r; other < course.hosts.size(); ++other) {
      if (course.hosts[other] != lost) continue;
      course.hosts[other] = index;
      worker.ranks.push_back(static_cast<int32_t>(other));
    }
    course.recovery->ranks_moved += static_cast<int64_t>(worker.ranks.size());
    course.in_place.waiting.insert(index);
    course.in_place.adopters.insert(index);
    load_adopter(course, index, worker);
  }
  return all;
}

void Cluster::load_adopter(Course& course, int32_t index, Worker& worker) {
  wire::LoadPlan message = course.message;
  begin_at(course.in_place.point, message);
  message.ranks = worker.ranks;
  message.worker = worker.life;
  ++worker.num_asked;
  loading_.insert(index);
  session_->ask(worker.peer, std::move(message), kLoadMs);
}

/// Ranks whose actors have failed stay where they are. Peers know the process by another name from
/// here on: what is on its way under the old one is nobody's.
void Cluster::load_respawns(Course& course) {
  for (const int32_t index : course.in_place.respawns) {
    const auto it = workers_.find(index);
    if (it == workers_.end() || course.in_place.waiting.contains(index)) continue;
    it->second.life = take_index();
    course.in_place.waiting.insert(index);
    course.in_place.adopters.insert(index);
    load_adopter(course, index, it->second);
  }
}

/// What stood for the worker's actors that have failed ends as another takes its place.
actors::SpawnWorker Cluster::in_place_of(const Worker& worker, actors::SpawnWorker spawn) const {
  return [peer = worker.peer, proxies = proxies_, spawn = std::move(spawn)](
             caf::local_actor* parent, const actors::CoordinatorActor& coordinator) {
    actors::WorkerActor before;
    {
      const std::lock_guard lock(proxies->mutex);
      if (const auto it = proxies->by_peer.find(peer); it != proxies->by_peer.end()) {
        before = it->second;
      }
    }
    if (before) {
      parent->send_exit(
          before, actors::to_caf(make_status(Code::kCancelled, "begins again", Scope::kRank)));
    }
    return spawn(parent, coordinator);
  };
}

/// Spares read plan and data before they are needed: once each, and not while others recover.
void Cluster::prepare_spares(const Course& course) {
  if (course.ready_ms() == 0 || course.in_place.stage != Stage::kNone) return;
  for (auto& [index, worker] : workers_) {
    if (worker.prepared || !worker.ranks.empty()) continue;
    worker.prepared = true;
    wire::LoadPlan message = course.message;
    message.ranks.clear();
    message.worker = index;
    session_->send(worker.peer, std::move(message));
  }
}

/// Everybody learns where everybody is now; the coordinator goes on when all have said so.
void Cluster::join_adopters(Course& course, const actors::CoordinatorActor& coordinator) {
  wire::Routes routes = this->routes();
  routes.generation = course.generation;
  for (const auto& [index, worker] : workers_) {
    if (worker.ranks.empty()) continue;
    if (course.in_place.waiting.contains(index)) {
      caf::anon_send(coordinator, actors::Adopt{in_place_of(worker, stand_in(worker, routes))});
    } else {
      session_->send(worker.peer, routes);
    }
  }
  course.in_place.waiting.clear();
  keep_fingerprints(course, course.in_place.point.redo_to + 1);
  course.recovery->workers = num_active();
  write_state(course);
}

/// One look at a recovery: goes on as far as what is there allows. Not ok: the attempt must end.
Status Cluster::recover_in_place(Course& course, const actors::CoordinatorActor& coordinator) {
  Course::InPlace& p = course.in_place;
  if (faults_.size() > p.num_faults) return begin_fence(course, coordinator);
  const int64_t now = now_ms();
  const auto enter = [&](Stage stage) {
    p.stage = stage;
    p.since_ms = now;
  };
  if (p.stage == Stage::kNone) {
    const bool waits = course.suspended_generation == course.generation;
    if (!waits || now - course.suspended_ms < kSuspendedMs) return {};
    // A worker that is not heard may be what is at the other end: it comes back, or is lost.
    const bool suspects = std::any_of(workers_.begin(), workers_.end(),
                                      [](const auto& w) { return w.second.suspected_ms > 0; });
    if (suspects) return {};
    return note_broken_link(course);
  }
  if (p.stage == Stage::kFence && course.fenced_generation == course.generation) {
    SGA_TRY(on_fenced(course));
    enter(p.copies ? Stage::kCopy : Stage::kAdopters);
  }
  if (p.stage == Stage::kCopy && copy_.settled()) {
    const Status copied = finish_copy(course);
    if (!copied.ok()) return no_adoption(copied.message());
    p.point.path = copy_.path;
    enter(Stage::kAdopters);
  }
  if (p.stage == Stage::kAdopters) {
    load_respawns(course);
    if (find_adopters(course)) {
      enter(Stage::kLoad);
      course.recovery->placed_ms = static_cast<double>(now - course.recovery_ms);
      for (const int32_t index : p.waiting) {
        for (const int32_t rank : workers_[index].ranks) {
          course.recovery->state_moved_bytes += state_bytes(*course.work->plan, rank);
        }
      }
      strike_at(course, "restore");
    } else if (starting_.empty() || now - p.since_ms > kAdopterMs) {
      return no_adoption("no worker is free");
    }
  }
  if (p.stage == Stage::kLoad && loading_.empty()) {
    join_adopters(course, coordinator);
    enter(Stage::kJoin);
    course.recovery->loaded_ms = static_cast<double>(now - course.recovery_ms);
    strike_at(course, "resume");
  }
  if (p.stage == Stage::kJoin && course.ready_ms() != 0) {
    strike_at(course, "replay");
    faults_.clear();
    lost_.clear();
    p = {};
    return {};
  }
  const bool timed = p.stage == Stage::kFence || p.stage == Stage::kJoin;
  if (timed && now - p.since_ms > kStageMs) return no_adoption("it takes too long");
  if (p.stage == Stage::kCopy && now - p.since_ms > copy_limit_ms(course)) {
    return no_adoption("the state of survivors is not copied in time");
  }
  return {};
}

}  // namespace sgactor::apps
