#include "apps/sgactor/solo_watch.h"

#include "apps/sgactor/clock.h"
#include "apps/sgactor/cluster_ranks.h"
#include "apps/sgactor/fault_injection.h"
#include "apps/sgactor/hang_views.h"
#include "graph/base/log.h"
#include "supervision/monitor/hang_report.h"
#include "transport/storage/run_files.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include <utility>

namespace sgactor::apps {
namespace {

constexpr std::chrono::milliseconds kLook{100};
// The process itself was stopped, or got no time: nobody stood still meanwhile.
constexpr int64_t kGapMs = 1000;

}  // namespace

SoloWatch::SoloWatch(const Options& options, actors::TrainingObserver& next,
                     std::function<void(const Status&)> on_hang)
    : options_(options),
      next_(next),
      on_hang_(std::move(on_hang)),
      last_step_(options.last_step),
      progress_(options.progress_factor, static_cast<int64_t>(options.progress_floor_s * 1000),
                options.expected_step_ms),
      thread_([this] { look(); }) {}

SoloWatch::~SoloWatch() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void SoloWatch::follow(actors::WorkerAssembly* assembly) {
  const std::lock_guard lock(mutex_);
  assembly_ = assembly;
  progress_.restart(now_ms());
}

void SoloWatch::on_step(const actors::StepReport& report) {
  {
    const std::lock_guard lock(mutex_);
    last_step_ = report.step;
    progress_.on_step(report.step_ms);
  }
  next_.on_step(report);
}

void SoloWatch::look() {
  std::unique_lock lock(mutex_);
  while (!over_) {
    changed_.wait_for(lock, kLook, [this] { return over_; });
    const int64_t now = now_ms();
    const int64_t gap = now - std::exchange(looked_ms_, now);
    if (assembly_ == nullptr || reported_) continue;
    if (takes_injections()) take_request();
    progress_.on_count(0, assembly_->shared().num_messages(), now);
    if (gap > kGapMs || !assembly_->shared().computes) progress_.restart(now);
    if (!progress_.stands_still(now)) continue;
    reported_ = true;
    const Status why = report(now);
    // What it looks at stays: the run is not over while its actors stand still.
    lock.unlock();
    on_hang_(why);
    lock.lock();
  }
}

/// {"inject": …} in the control directory, of the kinds that strike actors.
void SoloWatch::take_request() {
  const std::string file = options_.run.request();
  if (::access(file.c_str(), F_OK) != 0) return;
  const auto text = transport::read_file(file);
  ::unlink(file.c_str());
  const auto fault = text.ok() ? parse_injected(*text) : Result<InjectedFault>(text.status());
  FaultyFiles files;
  transport::LinkFaults links;
  const bool of_actors =
      fault.ok() && (fault->kind == "kill_actor" || fault->kind == "stall_worker");
  const Status done = !fault.ok()  ? fault.status()
                      : !of_actors ? unsupported(fault->kind + " in one process")
                                   : inject(*fault, assembly_->shared(), files, links);
  if (!done.ok()) log::warn("{}: {}", file, done.message());
}

Status SoloWatch::report(int64_t now) {
  const std::vector<supervision::RankView> views = rank_views(*assembly_);
  const supervision::HangReport found = supervision::find_hang(views);
  HangFile file;
  file.fault = "no progress";
  file.still_ms = static_cast<double>(progress_.still_ms(now));
  file.culprit = fmt::format("no progress for {:.0f} ms", file.still_ms);
  file.generation = 1;
  file.step = last_step_;
  file.detected_unix = unix_seconds();
  HangWorker& self = file.workers.emplace_back();
  self.index = 0;
  self.pid = ::getpid();
  self.host = host_name();
  for (const supervision::RankView& view : views) self.ranks.push_back(view.rank);
  file.reported_ms = static_cast<double>(now_ms() - now);
  log::warn("hang at step {} ({}): {}", file.step + 1, file.culprit,
            supervision::to_text(found, views));
  const Status written = transport::write_file_atomic(options_.run.hang_report(),
                                                      hang_json(file, found, views).dump(1) + "\n");
  if (!written.ok()) log::warn("{}", written.message());
  return make_status(Code::kTimeout, file.culprit + ": see " + options_.run.hang_report(),
                     Scope::kJob);
}

}  // namespace sgactor::apps
