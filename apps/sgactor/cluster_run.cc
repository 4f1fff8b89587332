// Cluster: the attempts of a run, and what lies between them.
#include "actors/runtime/gateway.h"
#include "actors/runtime/journal.h"
#include "actors/runtime/services.h"
#include "actors/runtime/training_system.h"
#include "apps/sgactor/clock.h"
#include "apps/sgactor/cluster.h"
#include "apps/sgactor/cluster_course.h"
#include "apps/sgactor/cluster_ranks.h"
#include "apps/sgactor/status_board.h"
#include "graph/base/log.h"
#include "graph/plan/serial.h"
#include "transport/storage/run_files.h"

#include <caf/send.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <future>
#include <limits>
#include <sstream>

namespace sgactor::apps {

namespace wire = actors::wire;
using supervision::Action;
using supervision::FaultKind;

namespace {

constexpr int64_t kStepMs = 20;
constexpr int64_t kLoadMs = 120'000;
constexpr int64_t kExplainMs = 200;
constexpr int64_t kEndWorkerMs = 2000;
constexpr int64_t kFreshWorkerMs = 15'000;
// Three heartbeats: its node is asked whether it is stopped. Slow machines are silent longer.
constexpr int64_t kSuspectMs = 300;
constexpr int64_t kSilentMs = 5000;
constexpr int64_t kUnheardMs = 1000;
constexpr int64_t kKeepMirrors = 2;

double since(int64_t then_ms) { return static_cast<double>(now_ms() - then_ms); }

}  // namespace

// --- before the first attempt ---

Status Cluster::start_course(const Work& work, Course& course) {
  course.work = &work;
  course.storage = actors::create_thread_service("sga-storage");
  course.journal_service = actors::create_thread_service("sga-journal");
  SGA_ASSIGN(course.journal, actors::open_journal(work.spec.journal_file));
  course.shared = std::make_shared<actors::RunShared>();
  const RunDirectory run{work.run_directory};
  SGA_TRY(course.log.open(run.recoveries()));
  if (setup_.recovers && setup_.mirror_interval > 0) {
    // Memory of this host serves workers of this host; others share the run directory.
    if (on_this_host_) {
      if (setup_.left && !setup_.left->facts.mirror.empty()) {
        auto again = MirrorDirectory::adopt(setup_.left->facts.mirror);
        if (again.ok()) memory_ = std::move(*again);
      }
      if (!memory_) {
        SGA_ASSIGN(memory_, MirrorDirectory::create());
      }
      course.mirror_root = memory_->path();
    } else {
      course.mirror_root = shared_mirror_ = run.path + "/mirror";
    }
  }
  course.from = {work.first_step - 1, work.checkpoint, work.first_step - 1};
  course.adopts = !course.mirror_root.empty() && !work.spec.behaviours;
  course.check = std::make_unique<ReplayCheck>(work.observer, course.from, course.mirror_root,
                                               work.spec.validation_interval, work.plan);
  course.committed = work.first_step - 1;
  course.taking_over = setup_.left.has_value();
  if (setup_.replicas) remove_left_copies(course.mirror_root);
  if (course.taking_over) {
    course.check->recall(work.recorded.steps, work.recorded.validated, left_points(course));
  }
  wire::LoadPlan& message = course.message;
  message.job_hash = job_hash_;
  message.job = setup_.job;
  message.job_name = setup_.job_name;
  message.plan = graph::serialize_plan(*work.plan);
  if (work.validation_plan != nullptr) {
    message.validation_plan = graph::serialize_plan(*work.validation_plan);
  }
  message.run_directory = work.run_directory;
  message.secret = secret_;
  message.mirror_root = course.mirror_root;
  SGA_TRY(keep_left(work, work.plan->schema_hash));
  if (course.taking_over) settle_returned();
  if (setup_.recovers) {
    for (auto& [id, node] : nodes_) {
      const auto room = static_cast<int64_t>(node.who.hello.devices.size());
      if (node.num_started == 0) start_workers_of(id, node, room);
    }
  }
  return {};
}

// --- one attempt ---

int64_t Cluster::num_active() const {
  return std::count_if(workers_.begin(), workers_.end(),
                       [](const auto& w) { return !w.second.ranks.empty(); });
}

bool Cluster::should_deal_again() const {
  if (!setup_.recovers || (memory_ == nullptr && shared_mirror_.empty())) return false;
  const int64_t there = num_staying();
  const int64_t active = num_active();
  const bool leaves = std::any_of(workers_.begin(), workers_.end(), [this](const auto& w) {
    return is_leaving(w.second) && !w.second.ranks.empty();
  });
  if (leaves && there > 0) return true;
  if (active > num_wanted()) return true;
  // Once for all that are on their way.
  return active < std::min(num_wanted(), there) && starting_.empty();
}

/// Who shall host ranks: those that do so already before others, never one that computes as no rank
/// does; of each arithmetic that ranks have at least one, if there is one.
std::vector<int32_t> Cluster::choose_hosts() const {
  const bool all_leave = num_staying() == 0;
  std::vector<int32_t> able;
  for (const bool active : {true, false}) {
    for (const auto& [index, worker] : workers_) {
      if (worker.ranks.empty() == active || (is_leaving(worker) && !all_leave)) continue;
      const bool fits_one =
          fingerprints_.empty() ||
          std::any_of(fingerprints_.begin(), fingerprints_.end(),
                      [&, &w = worker](const auto& f) { return fits(w, f.first); });
      if (fits_one) able.push_back(index);
    }
  }
  std::vector<int32_t> chosen;
  std::set<std::string> kinds;
  if (num_arithmetics() > 1) {
    for (const int32_t index : able) {
      if (kinds.insert(workers_.at(index).fingerprint).second) chosen.push_back(index);
    }
  }
  for (const int32_t index : able) {
    if (static_cast<int64_t>(chosen.size()) >= num_wanted()) break;
    if (std::find(chosen.begin(), chosen.end(), index) == chosen.end()) chosen.push_back(index);
  }
  return chosen;
}

/// Ranks of one arithmetic over the workers that have it.
Result<std::map<int32_t, std::vector<int32_t>>> Cluster::deal_apart(
    const std::vector<int32_t>& chosen) const {
  std::vector<std::string> kinds;
  for (const auto& [rank, fingerprint] : fingerprints_) kinds.push_back(fingerprint);
  std::vector<std::pair<int32_t, std::string>> workers;
  for (const int32_t index : chosen) workers.emplace_back(index, workers_.at(index).fingerprint);
  auto given = deal_by_kind(kinds, workers);
  if (given.ok()) return given;
  return make_status(Code::kDisconnected, given.status().message() + ": " + lost_, Scope::kJob);
}

/// Deals all ranks over the workers that are there. Who hosted the same ranks before keeps them.
Status Cluster::deal(Course& course) {
  const int64_t deadline = now_ms() + kFreshWorkerMs;
  while (workers_.empty() && !starting_.empty() && now_ms() < deadline) SGA_TRY(step(kStepMs));
  if (workers_.empty()) {
    return make_status(Code::kDisconnected, "no worker is left: " + lost_, Scope::kJob);
  }
  const std::vector<int32_t> chosen = choose_hosts();
  if (chosen.empty()) {
    return make_status(Code::kDisconnected,
                       "no worker is left whose arithmetic is that of the ranks: " + lost_,
                       Scope::kJob);
  }
  std::map<int32_t, std::vector<int32_t>> given;
  const bool known = fingerprints_.size() == course.work->plan->ranks.size();
  if (known && num_arithmetics() > 1) {
    SGA_ASSIGN(given, deal_apart(chosen));
  } else {
    auto dealt = deal_ranks(*course.work->plan, static_cast<int32_t>(chosen.size()));
    for (const int32_t index : chosen) {
      const auto same = std::find(dealt.begin(), dealt.end(), workers_[index].ranks);
      if (same == dealt.end()) continue;
      given[index] = *same;
      dealt.erase(same);
    }
    for (const int32_t index : chosen) {
      if (given.contains(index)) continue;
      given[index] = dealt.front();
      dealt.erase(dealt.begin());
    }
  }
  for (auto& [index, worker] : workers_) worker.ranks = given[index];
  std::vector<int32_t> hosts(course.work->plan->ranks.size());
  int64_t moved = 0;
  for (const auto& [index, ranks] : given) {
    for (const int32_t rank : ranks) {
      hosts[static_cast<size_t>(rank)] = index;
      if (!course.hosts.empty() && course.hosts[static_cast<size_t>(rank)] != index) ++moved;
    }
  }
  course.hosts = std::move(hosts);
  if (setup_.replicas) warn_of_parts(course);
  if (course.recovery) {
    course.recovery->ranks_moved = moved;
    course.recovery->workers = static_cast<int64_t>(chosen.size());
  }
  return {};
}

wire::Routes Cluster::routes() const {
  wire::Routes out;
  for (const auto& [index, worker] : workers_) {
    if (worker.ranks.empty()) continue;  // a spare: a later generation may route to it
    out.routes.push_back({data_peer(worker.life), worker.address, worker.ranks});
  }
  return out;
}

/// Returns ok also if a fault ended it early: faults_ says so.
Status Cluster::load(Course& course, const std::atomic<bool>& stop) {
  SGA_TRY(deal(course));
  end_leaving();
  write_state(course);
  begin_at(course.from, course.message);
  if (course.recovery) {
    course.recovery->placed_ms = since(course.recovery_ms);
    for (size_t r = 0; r < course.hosts.size(); ++r) {
      course.recovery->state_moved_bytes +=
          state_bytes(*course.work->plan, static_cast<int32_t>(r));
    }
  }
  loading_.clear();
  for (auto& [index, worker] : workers_) {
    if (worker.ranks.empty()) continue;
    course.message.ranks = worker.ranks;
    course.message.worker = worker.life;
    ++worker.num_asked;
    loading_.insert(index);
    session_->ask(worker.peer, course.message, kLoadMs);
  }
  while (!loading_.empty() && faults_.empty()) {
    if (stop.load() && course.generation == 1) {
      return make_status(Code::kCancelled, "interrupted before the first step");
    }
    SGA_TRY(step(kStepMs));
    check_silence();
  }
  if (course.recovery) course.recovery->loaded_ms = since(course.recovery_ms);
  keep_fingerprints(course, course.from.redo_to + 1);
  return {};
}

/// A run that shall stop does so when it is past what it had done before.
void Cluster::watch(Course& course, const std::atomic<bool>& stop) {
  const bool caught_up = course.check->at_step() >= course.check->last_step();
  if (stop.load() && caught_up) course.stop = true;
  const bool settled = course.in_place.stage == AdoptionStage::kNone;
  const bool asked = setup_.recovers && take_request(*course.work);
  const bool changed = settled && std::exchange(state_stale_, false);
  if (asked || changed) write_state(course);
  if (caught_up && settled && should_deal_again()) course.pause = true;
  check_silence();
  for (const Course::RankFault& f : course.take_failed()) note_failure(course, f.rank, f.why);
  if (const auto wrong = course.take_wrong_bits()) on_wrong_bits(course, wrong->rank, wrong->why);
  check_progress(course);
  settle_hang(course);
  note_progress(course);
  prepare_spares(course);
  if (settled && course.ready_ms() != 0 && copy_.settled()) drop_copy();
}

/// What is due behind the step committed last may not have been done, and there is no other state
/// to do it with: the attempt goes on where the one before has ended.
void Cluster::begin_fresh(Course& course, const std::vector<int64_t>& lives) {
  actors::TakenOver at;
  at.committed = course.from.redo_to;
  at.mirrored = true;
  // Of the step that the run began behind nothing is owed.
  at.validated = at.committed < course.work->first_step || course.check->validated(at.committed);
  course.taken_over = at;
  course.all_fresh = true;
  course.loss_bits.clear();
  course.incarnations = lives;
  course.check->begin_attempt(at.committed, at.committed);
}

/// Gives all ranks a worker that holds their state.
Status Cluster::prepare(Course& course, const std::atomic<bool>& stop) {
  course.taken_over.reset();
  course.all_fresh = false;
  if (std::exchange(course.taking_over, false)) {
    const Status taken = take_over(course, stop);
    if (taken.ok()) {
      answer_early_faults();
      return {};
    }
    log::info("the run goes on from a copy of its state: {}", taken.message());
    course.taken_over.reset();
    if (setup_.replicas) {
      if (course.check->last_step() < course.committed) {
        course.owed = actors::owed_report(course.work->plan->ranks, setup_.left->standing);
        course.owed_whole = false;
      }
      const Status restored = restore_from_replicas(course);
      if (!restored.ok()) return beyond_replicas(course, restored);
    } else {
      course.from = course.check->newest(course.last_step());
    }
    course.recovery->from_step = course.from.redo_to;
    course.in_place = {};
    end_workers_at_fault();
    faults_.clear();
    for (auto& [index, worker] : workers_) worker.ranks.clear();
    answer_early_faults();
  }
  SGA_TRY(load(course, stop));
  if (!faults_.empty()) return faults_.front().status;
  // What a coordinator after this one reads must not be older than what workers have heard.
  if (course.generation == 1 && course.from.redo_to == 0) return {};
  const std::vector<int64_t> lives(course.work->plan->ranks.size(), course.generation);
  if (setup_.replicas && course.generation > 1) begin_fresh(course, lives);
  return journal_standing(course, {course.from.redo_to, course.generation, lives});
}

/// What the coordinator's actor is told of the attempt, but its workers.
Result<std::shared_ptr<actors::CoordinatorHost>> Cluster::make_host(Course& course) {
  actors::TrainingInputs inputs;
  inputs.plan = course.work->plan;
  inputs.validation_plan = course.work->validation_plan;
  inputs.observer = course.check.get();
  inputs.stop = &course.stop;
  actors::TrainingSpec spec = course.work->spec;
  spec.first_step = course.from.redo_to + 1;
  const actors::Services services{nullptr, nullptr, course.storage.get(),
                                  course.journal_service.get()};
  SGA_ASSIGN(const auto host, actors::create_coordinator_host(spec, inputs, services,
                                                              course.journal, course.shared));
  host->generation = course.generation;
  host->policy.checkpointed = course.check->on_disk();
  if (course.taken_over) {
    host->taken_over = course.taken_over;
    host->incarnations = course.incarnations;
    host->loss_bits = course.loss_bits;
    host->trace_steps = 0;
  }
  if (!course.mirror_root.empty()) host->pause = &course.pause;
  if (!course.mirror_root.empty() && !setup_.replicas) {
    host->policy.mirror_interval = setup_.mirror_interval;
    host->mirror = {course.mirror_root, kKeepMirrors, {}};
  }
  host->on_ready = [&course, session = session_.get()](int64_t generation) {
    course.note_ready(generation);
    session->post();
  };
  host->on_wrong_bits = [&course, session = session_.get()](int32_t rank, const Status& why) {
    course.note_wrong_bits(rank, why);
    session->post();
  };
  if (course.adopts) listen_to_fences(course, *host);
  if (takes_injections()) {
    host->on_journalled = [this](int64_t /*step*/, int64_t /*fence*/) {
      if (strikes_journalled_) ::kill(::getpid(), SIGKILL);
    };
  }
  return host;
}

Result<actors::RunOutcome> Cluster::attempt(Course& course, const std::atomic<bool>& stop) {
  SGA_TRY(prepare(course, stop));
  SGA_ASSIGN(const auto host, make_host(course));
  wire::Routes routes = this->routes();
  routes.generation = course.generation;
  for (const auto& [index, worker] : workers_) {
    if (!worker.ranks.empty()) host->workers.push_back(stand_in(worker, routes));
  }
  auto promise = std::make_shared<std::promise<actors::RunOutcome>>();
  std::future<actors::RunOutcome> future = promise->get_future();
  host->on_finished = [promise, session = session_.get()](const actors::RunOutcome& outcome) {
    promise->set_value(outcome);
    session->post();
  };
  if (!course.taken_over) {
    course.check->begin_attempt(course.from.redo_to, course.check->last_step());
  }
  const actors::CoordinatorActor coordinator = actors::spawn_coordinator(session_->system(), host);
  bool told = false;
  while (future.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
    Status broken = step(kStepMs);
    watch(course, stop);
    if (broken.ok() && !told) {
      broken = recover_in_place(course, coordinator);
      if (!broken.ok()) {
        log::info("a new attempt: {}", broken.message());
        // What answers the newest fault begins anew; one that another has cut short is written.
        const Course::InPlace& p = course.in_place;
        const bool newest = faults_.size() <= p.num_faults;
        if (p.stage != AdoptionStage::kNone && newest) course.recovery.reset();
      }
    }
    if (broken.ok()) broken = course.check->status();
    if (broken.ok() || told) continue;
    told = true;
    // Ends the attempt with this Status unless it has ended by itself.
    caf::anon_send(coordinator, actors::FaultReport{-1, broken});
  }
  actors::RunOutcome outcome = future.get();
  host->workers.clear();
  {
    const std::lock_guard lock(proxies_->mutex);
    proxies_->by_peer.clear();
  }
  finish_hang(course);
  // Of the ranks' hosts in this attempt; what has failed in it all begins again.
  if (const auto wrong = course.take_wrong_bits()) on_wrong_bits(course, wrong->rank, wrong->why);
  (void)course.take_failed();
  course.committed = outcome.committed;
  course.owed = outcome.owed;
  course.owed_whole = outcome.owed_whole;
  note_progress(course);
  course.step_seconds += outcome.step_seconds;
  course.kernel_seconds += outcome.kernel_seconds;
  if (!outcome.status.ok()) return outcome.status;
  return outcome;
}

/// A worker that is not heard: its node looks whether it is stopped, and ends it then.
void Cluster::check_silence() {
  const int64_t now = now_ms();
  const int64_t gap = looked_ms_ == 0 ? 0 : now - looked_ms_;
  looked_ms_ = now;
  for (auto& [index, worker] : workers_) {
    // What this process slept through it cannot have heard.
    if (gap > 2 * kStepMs) worker.heard_ms = std::min(now, worker.heard_ms + gap);
    if (worker.ranks.empty()) continue;
    const int64_t silent = now - worker.heard_ms;
    // Where the run would end with it a worker is not given up before it must be.
    if (silent < (setup_.recovers ? kSuspectMs : kSilentMs)) continue;
    if (now - worker.suspected_ms < 100) continue;
    ask_views();
    if (worker.suspected_ms == 0) {
      log::debug("{} has not been heard for {} ms", worker.who.name(), silent);
    }
    session_->send(worker.who.hello.node, wire::EndWorker{index, silent < kSilentMs});
    if (worker.suspected_ms == 0) worker.suspected_ms = now;
  }
}

// --- between attempts ---

/// Who was lost is often known a moment after what broke because of it.
void Cluster::find_cause(const Status& failure) {
  const int64_t deadline = now_ms() + kExplainMs;
  while (faults_.empty() && now_ms() < deadline) {
    if (!step(10).ok()) break;
    check_silence();
  }
  if (!faults_.empty()) return;
  const bool link = failure.code() == Code::kDisconnected;
  const int32_t rank = failure.origin().rank;
  int32_t culprit = -1;
  for (const auto& [index, worker] : workers_) {
    if (std::find(worker.ranks.begin(), worker.ranks.end(), rank) != worker.ranks.end()) {
      culprit = index;
    }
  }
  faults_.push_back(
      make_fault(link ? FaultKind::kPartition : FaultKind::kActorFailure, failure, culprit));
}

/// Whoever has been silent for longest, if that is long; "" if nobody.
std::string Cluster::longest_unheard() const {
  std::string out;
  int64_t longest = kUnheardMs;
  for (const auto& [index, worker] : workers_) {
    const int64_t silent = now_ms() - worker.heard_ms;
    if (worker.ranks.empty() || silent < longest) continue;
    longest = silent;
    out = fmt::format("{} has not been heard for {} ms", worker.who.name(), silent);
  }
  return out;
}

/// Ok if the run can go on.
Status Cluster::judge(Course& course, const Status& failure) {
  SGA_TRY(course.check->status());
  find_cause(failure);
  const auto named = [&](const Status& why) {
    std::string culprit = faults_.empty() ? lost_ : faults_.front().culprit;
    if (!faults_.empty() && endings_.contains(faults_.front().index)) {
      culprit = endings_[faults_.front().index];
    }
    if (culprit.empty() || why.message().find(culprit) != std::string::npos) return why;
    return Status(why.code(), why.scope(), culprit + "; " + why.message(), why.origin());
  };
  if (!setup_.recovers) {
    // How a process ended is said a moment after its link broke.
    const int64_t deadline = now_ms() + kExplainMs;
    while (lost_.find("has ended") == std::string::npos && !lost_.empty() && now_ms() < deadline &&
           step(10).ok()) {
    }
    // A cable may be gone: links between workers are given up before the one to their node.
    if (lost_.empty() && failure.code() == Code::kDisconnected) lost_ = longest_unheard();
    return Status(failure.code(), failure.scope(),
                  lost_.empty() || failure.message().find(lost_) != std::string::npos
                      ? failure.message()
                      : lost_ + "; " + failure.message(),
                  failure.origin());
  }
  if (!storm_status_.ok()) return named(storm_status_);
  for (const Fault& fault : faults_) {
    if (supervision::decide(fault.kind, fault.status.scope()) == Action::kStopJob) {
      return named(fault.status);
    }
    if (fault.kind != FaultKind::kActorFailure) continue;
    // What fails before the first step fails again, and so does what has failed twice in a row.
    const bool replaced =
        fault.index >= 0 &&
        supervision::decide(fault.kind, fault.status.scope()) >= Action::kReplaceWorker;
    const bool again = !replaced && course.last_failure_step == course.check->last_step() &&
                       course.last_failure == fault.culprit;
    if (again || course.check->last_step() == course.work->first_step - 1) return fault.status;
    course.last_failure = fault.culprit;
    course.last_failure_step = course.check->last_step();
  }
  return {};
}

/// A fault that its worker is to blame for, which runs still: it is ended before its ranks go
/// elsewhere. Others may become known meanwhile.
void Cluster::end_workers_at_fault() {
  while (end_those_at_fault()) {
  }
}

/// False if there are none.
bool Cluster::end_those_at_fault() {
  std::set<int32_t> ends;
  for (const Fault& fault : faults_) {
    const Action action = supervision::decide(fault.kind, fault.status.scope());
    if (action >= Action::kReplaceWorker && workers_.contains(fault.index))
      ends.insert(fault.index);
  }
  if (ends.empty()) return false;
  for (const int32_t index : ends) {
    session_->send(workers_[index].who.hello.node, wire::EndWorker{index, false});
  }
  const int64_t deadline = now_ms() + kEndWorkerMs;
  const auto left = [&] {
    return std::any_of(ends.begin(), ends.end(), [&](int32_t i) { return workers_.contains(i); });
  };
  while (left() && now_ms() < deadline && step(kStepMs).ok()) {
  }
  for (const int32_t index : ends) {
    const auto it = workers_.find(index);
    if (it == workers_.end()) continue;
    session_->expel(it->second.peer, make_status(Code::kCancelled, "replaced", Scope::kRank));
    (void)lose(index, FaultKind::kWorkerExit,
               make_status(Code::kDisconnected, it->second.who.name() + " does not end"));
  }
  return true;
}

/// The next generation, and the record of what leads to it.
void Cluster::open_recovery(Course& course) {
  // Struck again on the way: the record of the one before ends here.
  if (course.recovery) write_recovery(course);
  ++course.generation;
  moved_inexactly_ = false;
  course.replayed_before = course.check->num_replayed();
  Recovery& recovery = course.recovery.emplace();
  recovery.generation = course.generation;
  recovery.step = course.check->last_step();
  recovery.restored_ms = recovery.first_new_step_ms = std::numeric_limits<double>::quiet_NaN();
  course.recovery_ms = now_ms();
  course.recovery_index = -1;
  recovery.detected_unix = unix_seconds();
  if (faults_.empty()) {
    recovery.fault = "resize";
    recovery.culprit = "another number of workers";
    return;
  }
  // Of those that are known the newest is what this answers; the others have records of their own.
  const Fault& fault = faults_[std::min(course.in_place.num_faults, faults_.size() - 1)];
  recovery.fault = supervision::to_string(fault.kind);
  recovery.culprit = fault.culprit;
  course.recovery_index = fault.index;
  recovery.detected_unix = fault.detected_unix;
  recovery.detected_ms = fault.silent_ms;
  course.recovery_ms = fault.detected_ms;
}

/// Closes the attempt that ended with `failure` (ok: it was paused) and prepares the next, or says
/// why there is none.
Status Cluster::go_on(Course& course, const Status& failure) {
  if (!failure.ok()) {
    const Status judged = judge(course, failure);
    // Who was silent may have become known only there, and no attempt follows to report it.
    if (!judged.ok()) finish_hang(course);
    SGA_TRY(judged);
  }
  open_recovery(course);
  course.in_place = {};
  session_->set_generation(course.generation);
  Recovery& recovery = *course.recovery;
  end_workers_at_fault();
  recovery.fenced_ms = since(course.recovery_ms);
  // What the attempt before was writing is over before the next one writes.
  std::promise<void> quiet;
  course.storage->submit([] { return Status(); }, [&quiet](const Status&) { quiet.set_value(); });
  quiet.get_future().wait();
  if (setup_.replicas) {
    const Status restored = restore_from_replicas(course);
    if (!restored.ok()) return beyond_replicas(course, restored);
  } else {
    course.from = course.check->newest(course.last_step());
  }
  recovery.from_step = course.from.redo_to;
  course.pause = false;
  end_workers_at_fault();  // those of which that became known meanwhile
  faults_.clear();
  lost_.clear();
  return {};
}

void Cluster::note_progress(Course& course) {
  if (!course.recovery) return;
  Recovery& recovery = *course.recovery;
  const int64_t ready = course.ready_ms();
  if (ready == 0) return;
  recovery.restored_ms = static_cast<double>(ready - course.recovery_ms);
  const int64_t done = course.check->new_step_ms();
  if (done == 0) return;
  recovery.first_new_step_ms = static_cast<double>(done - course.recovery_ms);
  recovery.steps_again = course.check->num_replayed() - course.replayed_before;
  recovery.survivors_reexecuted = course.check->reexecuted();
  write_recovery(course);
}

void Cluster::write_recovery(Course& course) {
  Recovery& recovery = *course.recovery;
  recovery.inexact = moved_inexactly_;
  // What a device has reported says more than that its worker was ended for it.
  const bool of_device = recovery.fault == supervision::to_string(FaultKind::kDeviceFault);
  if (const auto it = endings_.find(course.recovery_index); it != endings_.end() && !of_device) {
    recovery.culprit = it->second;
  }
  course.log.write(recovery);
  if (setup_.status != nullptr) setup_.status->add_recovery(recovery_line(recovery));
  std::printf("%s\n", recovery_text(recovery).c_str());
  std::fflush(stdout);
  course.recovery.reset();
}

/// For whoever looks at the run from outside: who hosts what now.
void Cluster::write_state(const Course& course) {
  show_status(/*at_once=*/true);
  nlohmann::ordered_json out;
  out["generation"] = course.generation;
  out["coordinator"] = ::getpid();
  out["num_ranks"] = course.work->plan->ranks.size();
  out["committed"] = course.check->last_step();
  out["workers"] = nlohmann::ordered_json::array();
  for (const auto& [index, worker] : workers_) {
    nlohmann::ordered_json w;
    w["index"] = index;
    w["pid"] = worker.who.hello.pid;
    w["host"] = worker.who.hello.host;
    const auto node = nodes_.find(worker.who.hello.node);
    w["node"] = node == nodes_.end() ? 0 : node->second.who.hello.pid;
    w["ranks"] = worker.ranks;
    out["workers"].push_back(std::move(w));
  }
  const std::string file = RunDirectory{course.work->run_directory}.state();
  const Status written = transport::write_file_atomic(file, out.dump() + "\n");
  if (!written.ok()) log::warn("{}", written.message());
}

Result<actors::TrainingSummary> Cluster::run(const Work& work, const std::atomic<bool>& stop) {
  Course course;
  SGA_TRY(start_course(work, course));
  running_ = true;
  shown_ = &course;
  const std::unique_ptr<Cluster, void (*)(Cluster*)> shown(
      this, [](Cluster* self) { self->shown_ = nullptr; });
  while (true) {
    auto outcome = attempt(course, stop);
    if (!outcome.ok() && outcome.status().code() == Code::kCancelled && faults_.empty()) {
      return outcome.status();
    }
    if (!outcome.ok() || outcome->paused) {
      SGA_TRY(go_on(course, outcome.status()));
      continue;
    }
    if (!course.check->status().ok()) return course.check->status();
    actors::TrainingSummary summary;
    summary.last_step = outcome->last_step;
    summary.interrupted = outcome->interrupted;
    for (const actors::PoolStats& pool : outcome->pools) {
      summary.arena_high_water_bytes =
          std::max(summary.arena_high_water_bytes, pool.high_water_bytes);
    }
    summary.seconds = course.step_seconds;
    summary.kernel_seconds = course.kernel_seconds;
    summary.num_messages = course.shared->num_messages();
    return summary;
  }
}

}  // namespace sgactor::apps
