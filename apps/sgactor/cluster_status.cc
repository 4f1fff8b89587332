// Cluster: what the status page shows of its members.
#include "apps/sgactor/clock.h"
#include "apps/sgactor/cluster.h"
#include "apps/sgactor/cluster_course.h"
#include "apps/sgactor/status_board.h"

namespace sgactor::apps {

namespace {

constexpr int64_t kShowMs = 100;  // a heartbeat

}  // namespace

/// Frozen until each lost rank has somebody who takes it over.
RunState Cluster::run_state() const {
  if (shown_ == nullptr) return RunState::kReady;
  if (shown_->ready_ms() != 0 && shown_->in_place.stage == AdoptionStage::kNone) {
    return RunState::kRunning;
  }
  if (!shown_->recovery) return RunState::kReady;
  const bool in_place = shown_->in_place.stage != AdoptionStage::kNone;
  const bool placed =
      in_place ? shown_->in_place.stage >= AdoptionStage::kLoad : shown_->recovery->placed_ms >= 0;
  return placed ? RunState::kMigrating : RunState::kFrozen;
}

/// Copies what is known of the members for whoever looks; at most as often as heartbeats come,
/// unless `at_once`.
void Cluster::show_status(bool at_once) {
  const int64_t now = now_ms();
  if (setup_.status == nullptr || (!at_once && now - shown_ms_ < kShowMs)) return;
  shown_ms_ = now;
  MemberFacts out;
  out.state = run_state();
  out.num_faults = num_faults_;
  if (shown_ != nullptr) {
    out.generation = shown_->generation;
    if (out.state != RunState::kRunning && shown_->recovery) {
      out.trouble = shown_->recovery->fault + ": " + shown_->recovery->culprit;
    }
  }
  if (hang_.confirmed && !hang_.reported) out.trouble = hang_.fault + ": " + hang_.culprit;
  const auto device_at = [this](int32_t place) {
    return place < 0 ? std::string() : places_[static_cast<size_t>(place)].device;
  };
  for (const auto& [index, worker] : workers_) {
    WorkerFacts w;
    w.index = index;
    w.host = worker.who.hello.host;
    w.pid = worker.who.hello.pid;
    w.device = device_at(worker.place);
    w.ranks = worker.ranks;
    w.state = worker.suspected_ms > 0    ? "silent"
              : loading_.contains(index) ? "loading"
              : worker.ranks.empty()     ? "spare"
                                         : "running";
    w.heard_ms = worker.heard_ms;
    out.workers.push_back(std::move(w));
  }
  for (const auto& [index, place] : starting_) {
    WorkerFacts w;
    w.index = index;
    if (place >= 0) w.host = places_[static_cast<size_t>(place)].host;
    w.device = device_at(place);
    w.state = "starting";
    out.workers.push_back(std::move(w));
  }
  setup_.status->set_members(std::move(out));
}

}  // namespace sgactor::apps
