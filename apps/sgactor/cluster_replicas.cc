// Cluster: the state of lost ranks, from ranks that have the same. Behind a fence nothing commits,
// so that survivors stay at the step committed last for as long as they are read.
#include "actors/runtime/coordinator.h"
#include "apps/sgactor/clock.h"
#include "apps/sgactor/cluster.h"
#include "apps/sgactor/cluster_course.h"
#include "apps/sgactor/cluster_ranks.h"
#include "graph/base/log.h"
#include "supervision/recovery/replicas.h"
#include "transport/storage/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <system_error>
#include <utility>

namespace sgactor::apps {

namespace fs = std::filesystem;
using supervision::Holder;

namespace {

constexpr int64_t kStepMs = 20;
constexpr int64_t kCopyMs = 60'000;
// Storage that is slower than 20 MB/s is taken for one that stands still.
constexpr int64_t kSlowestBytesPerMs = 20'000;
constexpr int64_t kExplainMs = 200;
constexpr std::string_view kPrefix = "replica-";

int64_t unix_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

/// Grows with the state; whose process does not move is found by other means.
int64_t Cluster::copy_limit_ms(const Course& course) {
  const graph::Plan& plan = *course.work->plan;
  int64_t bytes = 0;
  for (size_t r = 0; r < plan.ranks.size(); ++r)
    bytes += state_bytes(plan, static_cast<int32_t>(r));
  return kCopyMs + bytes / kSlowestBytesPerMs;
}

Holder Cluster::holder_of(const Course& course, int32_t rank) const {
  if (static_cast<size_t>(rank) >= course.hosts.size()) return Holder::kGone;
  const int32_t index = course.hosts[static_cast<size_t>(rank)];
  const auto it = workers_.find(index);
  if (it == workers_.end() || course.in_place.waiting.contains(index)) return Holder::kGone;
  const std::vector<int32_t>& ranks = it->second.ranks;
  if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) return Holder::kGone;
  const bool failed = std::any_of(faults_.begin(), faults_.end(), [index](const Fault& f) {
    return f.index == index && f.kind == supervision::FaultKind::kActorFailure;
  });
  return failed ? Holder::kDoubtful : Holder::kWhole;
}

/// Asks for a copy of the state after `step`, without `excluded` ranks.
Status Cluster::begin_copy(const Course& course, int64_t step, const std::set<int32_t>& excluded) {
  const graph::Plan& plan = *course.work->plan;
  std::vector<Holder> holders;
  for (int32_t rank = 0; rank < static_cast<int32_t>(plan.ranks.size()); ++rank) {
    holders.push_back(excluded.contains(rank) ? Holder::kGone : holder_of(course, rank));
  }
  SGA_ASSIGN(const std::vector<int32_t> chosen, supervision::choose_replicas(plan, holders));
  drop_copy();
  const int64_t number = std::max(unix_ms(), copy_.number() + 1);
  const std::string root = fmt::format("{}/{}{}", course.mirror_root, kPrefix, number);
  std::error_code error;
  fs::create_directories(root, error);
  if (error) return internal_error(root + ": " + error.message());
  std::map<int32_t, int32_t> writers;
  for (const int32_t rank : chosen) writers[rank] = course.hosts[static_cast<size_t>(rank)];
  copy_.begin(number, step, root, writers);
  for (const auto& [rank, index] : writers) {
    session_->send(workers_[index].peer, to_wire(ReplicaOrder{number, step, rank, root}));
  }
  return {};
}

void Cluster::on_state_copied(const std::string& payload) {
  const auto answer = parse_replica_answer(payload);
  if (!answer.ok()) return log::warn("{}", answer.status().message());
  copy_.on_answer(*answer);
}

/// Pre: the copy is settled. Afterwards copy_.path is there to be loaded.
Status Cluster::finish_copy(const Course& course) {
  SGA_TRY(copy_.status());
  transport::CheckpointInfo info = course.work->spec.checkpoint_template;
  info.step = info.data_position = copy_.step();
  SGA_ASSIGN(copy_.path,
             transport::commit_checkpoint(copy_.root(), std::move(info), copy_.parts()));
  return {};
}

/// Whoever was to read it has.
void Cluster::drop_copy() {
  if (copy_.root().empty()) return;
  std::error_code ignored;
  fs::remove_all(copy_.root(), ignored);
  copy_.clear();
}

/// Of a coordinator before this one.
void Cluster::remove_left_copies(const std::string& mirror_root) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator it(mirror_root, error), end; !error && it != end;
       it.increment(error)) {
    if (it->path().filename().string().starts_with(kPrefix)) found.push_back(it->path());
  }
  for (const fs::path& path : found) fs::remove_all(path, error);
}

/// As begin_copy, until it is whole; others write where one cannot.
Status Cluster::copy_now(const Course& course, int64_t step) {
  std::set<int32_t> excluded;
  const int64_t deadline = now_ms() + copy_limit_ms(course);
  // One that a recovery in place has begun is waited for.
  bool begun = !copy_.root().empty() && copy_.path.empty() && copy_.step() == step;
  while (true) {
    if (!std::exchange(begun, false)) SGA_TRY(begin_copy(course, step, excluded));
    while (!copy_.settled()) {
      if (now_ms() > deadline) {
        return make_status(Code::kTimeout, "the state of survivors is not copied in time",
                           Scope::kJob);
      }
      SGA_TRY(this->step(kStepMs));
      check_silence();
    }
    const Status status = finish_copy(course);
    if (status.ok()) return {};
    log::info("the state is copied again: {}", status.message());
    // Neither a rank that failed nor one that was lost: the disk, or the parts themselves.
    if (copy_.status().ok()) return status;
    excluded.insert(copy_.failed().begin(), copy_.failed().end());
  }
}

/// Between attempts: where the next one begins, which is behind the step committed last. That step
/// is reported first if it was not.
Status Cluster::restore_from_replicas(Course& course) {
  const int64_t step = course.committed;
  if (course.check->last_step() < step && !course.owed) {
    return make_status(Code::kDisconnected,
                       fmt::format("step {} is committed, and its loss is not known", step),
                       Scope::kJob);
  }
  const auto point = course.owed ? std::nullopt : course.check->reaching(step);
  if (point) {
    course.from = *point;
    return {};
  }
  if (copy_.path.empty() || copy_.step() != step) {
    const Status copied = copy_now(course, step);
    // How processes have ended is said a moment after their links broke.
    const int64_t deadline = now_ms() + kExplainMs;
    const auto unsaid = [this](const Fault& f) {
      return f.index >= 0 && !workers_.contains(f.index) && !endings_.contains(f.index);
    };
    while (!copied.ok() && std::any_of(faults_.begin(), faults_.end(), unsaid) &&
           now_ms() < deadline && this->step(kStepMs).ok()) {
    }
    SGA_TRY(copied);
  }
  course.from = {step, copy_.path, step};
  if (!course.owed) return {};
  if (!course.owed_whole) {
    if (!copy_.done()) {
      return make_status(Code::kDisconnected,
                         fmt::format("step {} is committed, and nobody can tell of it", step),
                         Scope::kJob);
    }
    actors::complete_report(*course.owed, *copy_.done());
  }
  course.check->on_step(*std::exchange(course.owed, std::nullopt));
  return {};
}

/// The end of a run whose state is lost: what was lost, and what is left.
Status Cluster::beyond_replicas(const Course& course, const Status& why) const {
  const auto copies =
      transport::list_checkpoints(RunDirectory{course.work->run_directory}.checkpoints());
  std::string newest;
  if (copies.ok()) {
    for (const transport::CheckpointListing& copy : *copies) {
      if (copy.status.ok()) newest = copy.path;
    }
  }
  std::string culprits;
  std::set<int32_t> named;
  for (const Fault& fault : faults_) {
    if (fault.index >= 0 && !named.insert(fault.index).second) continue;
    const auto ending = endings_.find(fault.index);
    culprits += (ending == endings_.end() ? fault.culprit : ending->second) + "; ";
  }
  if (culprits.empty() && !lost_.empty()) culprits = lost_ + "; ";
  return Status(why.code(), Scope::kJob,
                fmt::format("{}{}; {}", culprits, why.message(),
                            newest.empty() ? "there is no checkpoint to resume from"
                                           : "train --resume goes on from " + newest),
                why.origin());
}

/// Says at once what will not be survived.
void Cluster::warn_of_parts(const Course& course) const {
  const graph::Plan& plan = *course.work->plan;
  for (const auto& [index, worker] : workers_) {
    if (worker.ranks.empty()) continue;
    std::vector<Holder> holders;
    for (const int32_t host : course.hosts) {
      holders.push_back(host == index ? Holder::kGone : Holder::kWhole);
    }
    const auto chosen = supervision::choose_replicas(plan, holders);
    if (!chosen.ok()) {
      log::warn("the loss of {} cannot be survived: {}", worker.who.name(),
                chosen.status().message());
    }
  }
}

}  // namespace sgactor::apps
