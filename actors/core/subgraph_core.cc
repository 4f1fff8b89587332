#include "actors/core/subgraph_core.h"

#include <fmt/format.h>

#include <algorithm>

namespace sgactor::actors {

SubgraphCore::SubgraphCore(int32_t rank, graph::LaunchId launch, const LaunchWiring& wiring)
    : rank_(rank),
      launch_(launch),
      num_firings_(wiring.num_firings),
      num_awaited_(static_cast<int32_t>(wiring.awaited.size())),
      awaited_index_(wiring.awaited_index),
      places_(static_cast<size_t>(wiring.num_firings) * 2) {
  for (Place& p : places_) p.arrived.assign(wiring.awaited.size(), false);
}

std::string SubgraphCore::identity(int64_t step, int32_t micro_batch) const {
  return fmt::format("rank {} launch {} step {} micro-batch {}", rank_, launch_, step, micro_batch);
}

int32_t SubgraphCore::place(int64_t step, int32_t micro_batch) const {
  return static_cast<int32_t>(step % 2) * num_firings_ + micro_batch;
}

Result<SubgraphCore::Place*> SubgraphCore::open(int64_t step, int32_t micro_batch) {
  if (step < 0 || micro_batch < 0 || micro_batch >= num_firings_) {
    return internal_error(
        fmt::format("{}: there is no such execution", identity(step, micro_batch)));
  }
  Place& p = places_[static_cast<size_t>(place(step, micro_batch))];
  if (p.step >= step) return &p;
  if (p.phase != Phase::kComplete) {
    return internal_error(
        fmt::format("{} while step {} is still open", identity(step, micro_batch), p.step));
  }
  p.step = step;
  p.phase = Phase::kCollecting;
  p.num_arrived = 0;
  std::fill(p.arrived.begin(), p.arrived.end(), false);
  return &p;
}

Result<SubgraphCore::Taken> SubgraphCore::on_input(int32_t input, int64_t step,
                                                   int32_t micro_batch) {
  if (input < 0 || static_cast<size_t>(input) >= awaited_index_.size() ||
      awaited_index_[static_cast<size_t>(input)] < 0) {
    return internal_error(
        fmt::format("{}: input {} is not awaited", identity(step, micro_batch), input));
  }
  SGA_ASSIGN(Place * p, open(step, micro_batch));
  Taken taken;
  taken.place = place(step, micro_batch);
  taken.awaited = awaited_index_[static_cast<size_t>(input)];
  const bool known = p->arrived[static_cast<size_t>(taken.awaited)];
  if (p->step > step || p->phase >= Phase::kFired) {
    taken.arrival = Arrival::kLate;
  } else if (known) {
    taken.arrival = Arrival::kRepeated;
  } else {
    p->arrived[static_cast<size_t>(taken.awaited)] = true;
    taken.arrival = ++p->num_arrived == num_awaited_ ? Arrival::kComplete : Arrival::kWaiting;
  }
  return taken;
}

bool SubgraphCore::inputs_ready(int64_t step, int32_t micro_batch) const {
  if (num_awaited_ == 0) return true;
  const Place& p = places_[static_cast<size_t>(place(step, micro_batch))];
  return p.step == step && p.num_arrived == num_awaited_;
}

bool SubgraphCore::claim_leases(int64_t step, int32_t micro_batch) {
  Result<Place*> p = open(step, micro_batch);
  if (!p.ok() || (*p)->step != step || (*p)->phase != Phase::kCollecting) return false;
  if ((*p)->num_arrived != num_awaited_) return false;
  (*p)->phase = Phase::kClaimed;
  return true;
}

Status SubgraphCore::on_fired(int64_t step, int32_t micro_batch) {
  SGA_ASSIGN(Place * p, open(step, micro_batch));
  if (p->step > step || p->phase >= Phase::kFired) {
    return internal_error(fmt::format("{}: executed twice", identity(step, micro_batch)));
  }
  if (p->num_arrived != num_awaited_) {
    return internal_error(fmt::format("{}: fired with {} of {} inputs", identity(step, micro_batch),
                                      p->num_arrived, num_awaited_));
  }
  p->phase = Phase::kFired;
  if (fired_step_ != step) {
    fired_step_ = step;
    fired_in_step_ = 0;
  }
  ++fired_in_step_;
  ++num_executed_;
  return {};
}

bool SubgraphCore::last_of_step(int64_t step) const {
  return fired_step_ == step && fired_in_step_ == num_firings_;
}

bool SubgraphCore::last_complete(int64_t step) const {
  return complete_step_ == step && complete_in_step_ == num_firings_;
}

Status SubgraphCore::on_complete(int64_t step, int32_t micro_batch) {
  SGA_ASSIGN(Place * p, open(step, micro_batch));
  if (p->step != step || p->phase != Phase::kFired) {
    return internal_error(
        fmt::format("{}: completion of what is not running", identity(step, micro_batch)));
  }
  p->phase = Phase::kComplete;
  if (complete_step_ != step) {
    complete_step_ = step;
    complete_in_step_ = 0;
  }
  ++complete_in_step_;
  return {};
}

int64_t SubgraphCore::num_open() const {
  return std::count_if(places_.begin(), places_.end(),
                       [](const Place& p) { return p.phase == Phase::kFired; });
}

}  // namespace sgactor::actors
