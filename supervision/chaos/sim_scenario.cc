#include "supervision/chaos/sim_scenario.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace sgactor::supervision {

// splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
uint64_t SimRandom::next() {
  state_ += 0x9E3779B97F4A7C15ULL;
  uint64_t z = state_;
  z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27U)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31U);
}

int64_t SimRandom::below(int64_t n) {
  return static_cast<int64_t>(next() % static_cast<uint64_t>(n));
}

std::string_view to_string(SimFaultKind kind) {
  constexpr std::array<std::string_view, kNumSimFaultKinds> kNames = {
      "kill worker", "kill node",        "hang worker", "partition worker", "partition node",
      "slow worker", "kill coordinator", "slow disk",   "full disk"};
  return kNames[static_cast<size_t>(kind)];
}

std::string_view to_string(SimPhase phase) {
  constexpr std::array<std::string_view, kNumSimPhases> kNames = {
      "decided", "durable", "fetching", "restored", "voted", "voting", "committing"};
  return kNames[static_cast<size_t>(phase)];
}

std::string SimFault::describe() const {
  std::string at;
  if (when == When::kAtEvent) at = fmt::format("at event {}", events);
  if (when == When::kAfterEvents) at = fmt::format("{} events later", events);
  if (when == When::kAtPhase)
    at = fmt::format("when {}{}", to_string(phase), at_subject ? " (itself)" : "");
  return fmt::format("{} {}{}{}", to_string(kind), at,
                     duration_us > 0 ? fmt::format(", {} ms", duration_us / 1000) : "",
                     zombie ? ", left alive" : "");
}

std::string SimScenario::describe() const {
  std::string out = fmt::format(
      "seed {}: pp {} x dp {}, {} micro-batches, {} steps, {} workers on {} nodes, whole state "
      "every "
      "{} steps, {}respawn, drop {} %, duplicate {} %, late {} %",
      seed, mesh.pp, mesh.dp, mesh.micro_batches, steps, num_workers, num_nodes, state_interval,
      respawn ? "" : "no ", network.drop_percent, network.duplicate_percent, network.late_percent);
  for (const SimFault& fault : faults) out += "\n  " + fault.describe();
  return out;
}

namespace {

void draw_size(SimScenario& s, SimRandom& random, int32_t max_workers) {
  constexpr std::array<std::pair<int32_t, int32_t>, 8> kSmall = {
      {{2, 2}, {2, 2}, {1, 4}, {2, 3}, {3, 2}, {4, 1}, {1, 2}, {2, 1}}};
  constexpr std::array<std::pair<int32_t, int32_t>, 4> kMiddle = {
      {{2, 8}, {4, 4}, {3, 5}, {1, 12}}};
  constexpr std::array<std::pair<int32_t, int32_t>, 3> kLarge = {{{4, 12}, {8, 7}, {2, 28}}};
  const int64_t size = random.below(200);
  std::pair<int32_t, int32_t> shape;
  if (size == 0 && max_workers >= 64) {
    shape = kLarge[static_cast<size_t>(random.below(kLarge.size()))];
  } else if (size < 10 && max_workers >= 20) {
    shape = kMiddle[static_cast<size_t>(random.below(kMiddle.size()))];
  } else {
    shape = kSmall[static_cast<size_t>(random.below(kSmall.size()))];
  }
  s.mesh.pp = shape.first;
  s.mesh.dp = shape.second;
  const int32_t ranks = s.mesh.num_ranks();
  s.mesh.micro_batches = ranks > 8 ? 2 : static_cast<int32_t>(random.between(1, 3));
  s.steps = ranks > 8 ? 4 : random.between(5, 12);
  s.state_interval = random.between(1, 3);
  s.num_nodes = ranks > 8 ? static_cast<int32_t>(random.between(4, 8))
                          : static_cast<int32_t>(random.between(2, 4));
  s.num_workers = ranks + static_cast<int32_t>(random.below(3));
  // Fewer workers than ranks: some host several, and others come to grow into.
  if (ranks > 2 && random.chance(15)) s.num_workers = std::max(2, ranks / 2);
  s.num_workers = std::clamp(s.num_workers, std::min(2, ranks), max_workers);
  s.num_nodes = std::min(s.num_nodes, s.num_workers);
  s.max_ranks_per_worker = std::max(2, (ranks + 1) / 2);
  s.respawn = random.chance(70);
}

void draw_network(SimScenario& s, SimRandom& random) {
  const int64_t manners = random.below(10);
  if (manners < 2) return;
  s.network.drop_percent = 5;
  s.network.duplicate_percent = 4;
  s.network.late_percent = manners < 7 ? 4 : 20;
}

SimFaultKind draw_kind(SimRandom& random) {
  // Weights of kKillWorker ... kDiskFull.
  constexpr std::array<int32_t, kNumSimFaultKinds> kWeights = {34, 8, 12, 12, 5, 5, 16, 4, 4};
  int64_t at = random.below(100);
  for (int32_t k = 0; k < kNumSimFaultKinds; ++k) {
    at -= kWeights[static_cast<size_t>(k)];
    if (at < 0) return static_cast<SimFaultKind>(k);
  }
  return SimFaultKind::kKillWorker;
}

/// When a fault strikes: the first at any moment, the others mostly close to the one before.
void draw_moment(SimFault& fault, bool first, int64_t span, int64_t num_votes, SimRandom& random) {
  const int64_t how = random.below(10);
  if (how < (first ? 6 : 3)) {
    fault.when = first ? SimFault::When::kAtEvent : SimFault::When::kAfterEvents;
    fault.events = random.below(first ? span : span / 2);
  } else if (!first && how < 6) {
    fault.when = SimFault::When::kAfterEvents;
    fault.events = random.below(80);
  } else {
    fault.when = SimFault::When::kAtPhase;
    fault.phase = static_cast<SimPhase>(random.below(kNumSimPhases));
    // Without a recovery under way only these are reached.
    constexpr std::array<SimPhase, 3> kAlways = {SimPhase::kVoting, SimPhase::kCommitting,
                                                 SimPhase::kDurable};
    if (first) fault.phase = kAlways[static_cast<size_t>(random.below(kAlways.size()))];
    if (fault.phase == SimPhase::kVoting) fault.events = random.below(first ? num_votes : 6);
    if (first && fault.phase != SimPhase::kVoting) fault.events = random.below(5);
  }
}

}  // namespace

SimScenario scenario_of(uint64_t seed, int32_t max_faults, int32_t max_workers) {
  SimScenario s;
  s.seed = seed;
  SimRandom random(seed * 0x9E3779B97F4A7C15ULL + 77);
  s.mesh.seed = random.next();
  draw_size(s, random, max_workers);
  draw_network(s, random);
  const int32_t ranks = s.mesh.num_ranks();
  const int64_t span = s.steps * ranks * 20;  // about as many events as a run without faults
  const int64_t num_faults = max_faults <= 0 ? 0 : random.between(1, max_faults);
  for (int64_t i = 0; i < num_faults; ++i) {
    SimFault fault;
    fault.kind = draw_kind(random);
    fault.draw = random.next();
    fault.zombie = random.chance(40);
    fault.at_subject = random.chance(60);
    draw_moment(fault, i == 0, span, s.steps * ranks, random);
    // Half of them too short to be noticed by heartbeats.
    fault.duration_us =
        random.chance(50) ? random.between(5'000, 120'000) : random.between(350'000, 900'000);
    if (fault.kind == SimFaultKind::kKillWorker || fault.kind == SimFaultKind::kKillNode ||
        fault.kind == SimFaultKind::kKillCoordinator) {
      fault.duration_us = 0;
    }
    s.faults.push_back(fault);
  }
  return s;
}

}  // namespace sgactor::supervision
