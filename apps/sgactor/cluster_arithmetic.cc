// Cluster: whether the workers of a run that is resumed compute as its ranks did. Asked before
// anything that the run has left is changed.
#include "apps/sgactor/clock.h"
#include "apps/sgactor/cluster.h"
#include "apps/sgactor/cluster_standing.h"

#include <fmt/format.h>

#include <algorithm>

namespace sgactor::apps {

namespace wire = actors::wire;

namespace {

constexpr int64_t kStepMs = 20;
constexpr int64_t kAnswerMs = 60'000;  // a device may take long to open

}  // namespace

/// Who does not answer in time is not known, as one whose device does not open: its turn comes when
/// it is to load the plan.
Status Cluster::ask_arithmetic(const std::atomic<bool>& stop) {
  unknown_.clear();
  for (const auto& [index, worker] : workers_) {
    unknown_.insert(index);
    session_->send(worker.peer, wire::Opaque{kAskArithmetic, ""});
  }
  const int64_t deadline = now_ms() + kAnswerMs;
  while (!unknown_.empty() && now_ms() < deadline) {
    if (stop.load()) return make_status(Code::kCancelled, "interrupted before the first step");
    SGA_TRY(step(kStepMs));
  }
  return {};
}

void Cluster::on_arithmetic(wire::PeerId from, const std::string& fingerprint) {
  Worker* worker = find_peer(from);
  if (worker == nullptr || unknown_.erase(worker->who.hello.index) == 0) return;
  worker->fingerprint = fingerprint;
  if (!fingerprint.empty()) arithmetic_at_[kind_of(*worker)] = fingerprint;
}

/// Ranks are dealt by it from here on. With allow_inexact whoever differs says so as it loads.
Status Cluster::check_arithmetic(const RunDirectory& run, const std::atomic<bool>& stop) {
  if (fingerprints_.empty()) fingerprints_ = setup_.arithmetic;
  if (fingerprints_.empty() || setup_.allow_inexact) return {};
  SGA_TRY(ask_arithmetic(stop));
  const auto fits_some = [this](const Worker& worker) {
    return std::any_of(fingerprints_.begin(), fingerprints_.end(),
                       [&](const auto& f) { return fits(worker, f.first); });
  };
  const auto has_some = [this](int32_t rank) {
    return std::any_of(workers_.begin(), workers_.end(),
                       [&](const auto& w) { return fits(w.second, rank); });
  };
  const auto able = std::count_if(workers_.begin(), workers_.end(),
                                  [&](const auto& w) { return fits_some(w.second); });
  // One that has none, or else the first: whoever cannot help may compute as no rank did.
  auto rank = std::find_if(fingerprints_.begin(), fingerprints_.end(),
                           [&](const auto& f) { return !has_some(f.first); });
  const int64_t needed = std::min<int64_t>(setup_.num_workers, std::ssize(workers_));
  if (rank == fingerprints_.end() && able >= needed) return {};
  if (rank == fingerprints_.end()) rank = fingerprints_.begin();
  auto other = std::find_if(workers_.begin(), workers_.end(),
                            [&](const auto& w) { return !fits_some(w.second); });
  if (other == workers_.end()) other = workers_.begin();
  std::string text = arithmetic_difference(other->second.fingerprint, rank->second);
  if (num_arithmetics() > 1) text = fmt::format("rank {}: {}", rank->first, text);
  const Status refused = other_arithmetic(run, other->second.who.name(), text);
  end({});  // in order: nothing has failed, and one line is to say so
  return refused;
}

}  // namespace sgactor::apps
