// Cluster: who does not move, asked of all workers, and what is said about it.
#include "apps/sgactor/clock.h"
#include "apps/sgactor/cluster.h"
#include "apps/sgactor/cluster_course.h"
#include "apps/sgactor/fault_injection.h"
#include "apps/sgactor/hang_views.h"
#include "graph/base/log.h"
#include "transport/storage/run_files.h"

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <set>

namespace sgactor::apps {

namespace wire = actors::wire;
using supervision::FaultKind;

namespace {

// With what it took to ask, within three heartbeats of the detection.
constexpr int64_t kAnswerMs = 200;
// Answers that are older tell of another moment.
constexpr int64_t kFreshMs = 1000;

}  // namespace

/// Asks all that host ranks, unless that has just been done. What comes of it is written only if
/// the suspicion proves right.
void Cluster::ask_views() {
  const int64_t now = now_ms();
  if (hang_.inquiry && (hang_.confirmed || now - hang_.inquiry->begun_ms() < kFreshMs)) return;
  hang_ = {};
  std::map<int32_t, std::vector<int32_t>> asked;
  for (const auto& [index, worker] : workers_) {
    if (worker.ranks.empty()) continue;
    asked[index] = worker.ranks;
    hang_.workers.push_back({index, worker.who.hello.pid, worker.who.hello.host, worker.ranks, 0});
    session_->send(worker.peer, wire::Opaque{kAskViews, ""});
  }
  hang_.inquiry.emplace(std::move(asked), now);
}

void Cluster::on_views(wire::PeerId peer, const std::string& payload) {
  const auto it = std::find_if(workers_.begin(), workers_.end(),
                               [peer](const auto& w) { return w.second.peer == peer; });
  if (it == workers_.end() || !hang_.inquiry) return;
  auto views = decode_views(payload);
  if (!views.ok()) return log::warn("{}: {}", it->second.who.name(), views.status().message());
  hang_.inquiry->answer(it->first, std::move(*views));
}

/// `index` was silent, or ended because it was.
void Cluster::confirm_silence(int32_t index, const Worker& worker, const Status& why) {
  if (!hang_.inquiry || hang_.confirmed) return;
  hang_.confirmed = true;
  hang_.fault = "silence";
  hang_.culprit = worker.who.name() + ": " + why.message();
  hang_.silent = {index};
  hang_.detected_ms = worker.suspected_ms;
  hang_.still_ms = static_cast<double>(worker.suspected_ms - worker.heard_ms);
}

/// Workers beat, and nothing happens in them.
void Cluster::check_progress(Course& course) {
  const int64_t now = now_ms();
  for (const double ms : course.check->take_step_times()) progress_.on_step(ms);
  const int64_t done = course.check->at_step();
  if (done != course.progress_step) {
    course.progress_step = done;
    progress_.restart(now);
  }
  const bool computes = course.ready_ms() != 0 && course.shared->computes &&
                        course.in_place.stage == AdoptionStage::kNone && faults_.empty();
  if (!computes) progress_.restart(now);
  if (hang_.confirmed || !computes || !progress_.stands_still(now)) return;
  ask_views();
  hang_.confirmed = true;
  hang_.fault = "no progress";
  hang_.detected_ms = now;
  hang_.still_ms = static_cast<double>(progress_.still_ms(now));
}

/// Reports a hang once the answers are there, or will not come any more; then, if nobody is to
/// answer for it yet, blames those who keep all others waiting.
void Cluster::settle_hang(Course& course) {
  if (!hang_.inquiry) return;
  const int64_t now = now_ms();
  if (!hang_.confirmed) {
    const bool suspects = std::any_of(workers_.begin(), workers_.end(),
                                      [](const auto& w) { return w.second.suspected_ms > 0; });
    if (!suspects) hang_ = {};
    return;
  }
  // The recovery that follows begins another one before all have answered.
  if (hang_.generation == 0) hang_.generation = course.generation;
  if (hang_.reported) {
    // One report a hang: what it led to shows in the recovery.
    if (now - hang_.detected_ms > kFreshMs) hang_ = {};
    return;
  }
  const int64_t due = std::max(hang_.detected_ms, hang_.inquiry->begun_ms()) + kAnswerMs;
  if (!hang_.inquiry->complete(hang_.silent) && now < due) return;
  hang_.reported = true;
  const std::vector<supervision::RankView> views = hang_.inquiry->views();
  const supervision::HangReport report = supervision::find_hang(views);
  if (hang_.fault == "no progress") blame(course, report);
  report_hang(course, report, views);
}

/// All ranks of a worker that others wait for are its fault.
void Cluster::blame(Course& course, const supervision::HangReport& report) {
  std::set<int32_t> at_fault;
  for (const int32_t rank : report.culprits) {
    at_fault.insert(course.hosts[static_cast<size_t>(rank)]);
  }
  const std::string text = fmt::format("no progress for {:.0f} ms", hang_.still_ms);
  progress_.restart(now_ms());
  if (lost_.empty()) lost_ = text;
  // Where all seem to be at fault nobody is: the attempt ends, and all begin again.
  const bool all = static_cast<int64_t>(at_fault.size()) == num_active() && num_active() > 1;
  if (at_fault.empty() || all) at_fault = {-1};
  for (const int32_t index : at_fault) {
    const auto it = workers_.find(index);
    const bool there = it != workers_.end();
    const std::string culprit = there ? it->second.who.name() + ": " + text : text;
    Fault fault = make_fault(FaultKind::kHang, make_status(Code::kTimeout, culprit, Scope::kRank),
                             there ? index : -1, "", hang_.detected_ms);
    fault.silent_ms = hang_.still_ms;
    hang_.culprit += (hang_.culprit.empty() ? "" : "; ") + fault.culprit;
    faults_.push_back(std::move(fault));
  }
}

void Cluster::report_hang(const Course& course, const supervision::HangReport& report,
                          const std::vector<supervision::RankView>& views) {
  const int64_t now = now_ms();
  HangFile file;
  file.fault = hang_.fault;
  file.culprit = hang_.culprit;
  file.generation = hang_.generation;
  file.step = course.check->last_step();
  file.detected_unix = unix_seconds() - static_cast<double>(now - hang_.detected_ms) / 1e3;
  file.still_ms = hang_.still_ms;
  file.reported_ms = static_cast<double>(now - hang_.detected_ms);
  file.workers = hang_.workers;
  for (HangWorker& w : file.workers) {
    const bool silent =
        std::find(hang_.silent.begin(), hang_.silent.end(), w.index) != hang_.silent.end();
    const auto it = workers_.find(w.index);
    if (it != workers_.end()) w.silent_ms = now - it->second.heard_ms;
    if (silent) w.silent_ms = static_cast<int64_t>(file.still_ms + file.reported_ms);
  }
  log::warn("hang at step {} ({}, {}): {}", file.step + 1, file.fault, file.culprit,
            supervision::to_text(report, views));
  const std::string path = RunDirectory{course.work->run_directory}.hang_report();
  const Status written =
      transport::write_file_atomic(path, hang_json(file, report, views).dump(1) + "\n");
  if (!written.ok()) log::warn("{}", written.message());
}

/// What is under way is reported before the attempt's end hides it.
void Cluster::finish_hang(Course& course) {
  while (hang_.confirmed && !hang_.reported) {
    (void)step(10);
    settle_hang(course);
  }
}

}  // namespace sgactor::apps
