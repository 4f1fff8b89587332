// sgactor simulate --faults: from a job, a cluster and a scenario to a timeline, and what is
// printed of it.
#include "apps/sgactor/simulate_faults.h"

#include "apps/sgactor/resilience_price.h"
#include "graph/base/units.h"
#include "supervision/policy/xid_table.h"
#include "supervision/recovery/replicas.h"
#include "transport/storage/run_files.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace sgactor::apps {
namespace {

namespace sup = supervision;
using Json = nlohmann::ordered_json;
using sup::TimelineFault;
using sup::TimelineKind;
using sup::TimelineRecord;
using sup::TimelineRun;

// As many actors as the protocol's simulation takes within a second or two.
constexpr int32_t kMostSimulatedRanks = 64;
constexpr size_t kMostSimulatedFaults = 16;
constexpr int64_t kMostDrawn = 10'000;
constexpr size_t kMostLines = 40;

TimelineKind kind_of(ChaosFault::Kind kind) {
  using Kind = ChaosFault::Kind;
  switch (kind) {
    case Kind::kKillWorker:
      return TimelineKind::kKillWorker;
    case Kind::kHangWorker:
      return TimelineKind::kHangWorker;
    case Kind::kSlowWorker:
      return TimelineKind::kSlowWorker;
    case Kind::kKillNode:
      return TimelineKind::kKillHost;
    case Kind::kKillActor:
      return TimelineKind::kKillActor;
    case Kind::kDiskFull:
      return TimelineKind::kFullDisk;
    case Kind::kTornWrite:
      return TimelineKind::kTornWrite;
    case Kind::kXid:
      return TimelineKind::kDeviceFault;
    case Kind::kStallWorker:
      return TimelineKind::kStallWorker;
    case Kind::kDropFrame:
    case Kind::kCorruptFrame:
    case Kind::kPartition:
      return TimelineKind::kBrokenLink;
    case Kind::kDelayFrame:
      return TimelineKind::kLateFrame;
    case Kind::kDuplicateFrame:
      return TimelineKind::kDuplicateFrame;
    case Kind::kBitFlip:
      return TimelineKind::kWrongBits;
    case Kind::kKillCoordinator:
      return TimelineKind::kKillCoordinator;
    case Kind::kLoseHost:
      return TimelineKind::kLoseHost;
  }
  return TimelineKind::kKillWorker;
}

TimelineFault to_timeline(const ChaosFault& fault) {
  TimelineFault out;
  out.kind = kind_of(fault.kind);
  out.what = to_string(fault.kind);
  if (fault.kind == ChaosFault::Kind::kXid) out.what += fmt::format(" {}", fault.value);
  if (fault.host >= 0) {
    out.victim = TimelineFault::Victim::kHost;
    out.index = fault.host;
  } else if (fault.worker >= 0) {
    out.victim = TimelineFault::Victim::kWorker;
    out.index = fault.worker;
  } else {
    out.index = std::max<int64_t>(0, fault.rank);
  }
  out.step = fault.at_step;
  out.part = fault.at_part;
  out.message = fault.at_message;
  out.time_s = fault.at_time_s;
  out.in_recovery = fault.in_recovery;
  out.restoring = !fault.phase.empty() && fault.phase != "fence";
  out.of_adopter = fault.of_spare;
  out.value = fault.value;
  return out;
}

/// Devices and hosts that fail at random, each with the same rate at any moment.
class Drawn {
 public:
  Drawn(const TimelineRun& run, uint64_t seed) : random_(seed ^ 0x5EEDFA17ULL) {
    num_devices_ = static_cast<int64_t>(run.ranks.size()) + run.spares;
    num_hosts_ = 1 + run.host_of_device[static_cast<size_t>(num_devices_ - 1)];
  }

  /// Moments of a process in which devices and hosts have these means: the next one behind `at`.
  TimelineFault next(double device_mean, double host_mean, double& at) {
    const double of_devices = device_mean > 0 ? static_cast<double>(num_devices_) / device_mean : 0;
    const double of_hosts = host_mean > 0 ? static_cast<double>(num_hosts_) / host_mean : 0;
    at += -std::log(share()) / (of_devices + of_hosts);
    return share() * (of_devices + of_hosts) <= of_devices ? device_fault() : host_fault();
  }

 private:
  /// Above 0, up to 1.
  double share() { return static_cast<double>((random_.next() >> 11U) + 1) * 0x1p-53; }

  TimelineFault device_fault() {
    TimelineFault out;
    out.victim = TimelineFault::Victim::kDevice;
    out.index = random_.below(num_devices_);
    const int64_t how = random_.below(100);
    if (how < 40) {
      out.kind = TimelineKind::kKillWorker;
      out.what = "kill_worker";
    } else if (how < 60) {
      out.kind = TimelineKind::kHangWorker;
      out.what = "hang_worker";
    } else {
      // An error that a reset clears, or one that takes a person.
      out.kind = TimelineKind::kDeviceFault;
      out.value = how < 90 ? 95 : 54;
      out.what = fmt::format("xid {}", out.value);
    }
    return out;
  }
  TimelineFault host_fault() {
    TimelineFault out;
    out.kind = TimelineKind::kLoseHost;
    out.what = "lose_host";
    out.victim = TimelineFault::Victim::kHost;
    out.index = random_.below(num_hosts_);
    return out;
  }

  sup::SimRandom random_;
  int64_t num_devices_ = 1;
  int64_t num_hosts_ = 1;
};

void draw_by_steps(const ChaosScenario::Rates& rates, const TimelineRun& run, uint64_t seed,
                   std::vector<TimelineFault>& faults) {
  if (rates.device_steps + rates.host_steps <= 0) return;
  Drawn drawn(run, seed);
  double at = 0;
  for (int64_t i = 0; i < kMostDrawn; ++i) {
    TimelineFault fault = drawn.next(rates.device_steps, rates.host_steps, at);
    if (at >= static_cast<double>(run.steps)) break;
    fault.step = static_cast<int64_t>(at);
    fault.part = at - std::floor(at);
    faults.push_back(std::move(fault));
  }
  sort_by_step(faults, &TimelineFault::step);
}

/// The fault as the protocol's own simulation knows it; nothing if it has no such thing.
std::optional<sup::SimFault> to_protocol(const TimelineFault& fault) {
  sup::SimFault out;
  switch (fault.kind) {
    case TimelineKind::kDuplicateFrame:
      return std::nullopt;
    case TimelineKind::kHangWorker:
    case TimelineKind::kStallWorker:
      out.kind = sup::SimFaultKind::kHangWorker;
      out.duration_us = 900'000;
      break;
    case TimelineKind::kSlowWorker:
    case TimelineKind::kLateFrame:
      out.kind = sup::SimFaultKind::kSlowWorker;
      out.duration_us = 100'000;
      break;
    case TimelineKind::kKillHost:
    case TimelineKind::kLoseHost:
      out.kind = sup::SimFaultKind::kKillNode;
      break;
    case TimelineKind::kKillCoordinator:
      out.kind = sup::SimFaultKind::kKillCoordinator;
      break;
    case TimelineKind::kBrokenLink:
      out.kind = sup::SimFaultKind::kPartitionWorker;
      out.duration_us = 200'000;
      break;
    case TimelineKind::kDeviceFault:
      if (sup::xid_action(static_cast<int32_t>(fault.value)) == sup::XidAction::kIgnore) {
        return std::nullopt;
      }
      break;
    default:
      break;
  }
  out.draw = static_cast<uint64_t>(fault.index);
  return out;
}

/// The same kinds of faults, about a step apart, against the protocol on the plan's mesh.
void run_protocol(const TimelineRun& run, const graph::Plan& plan,
                  const std::vector<TimelineFault>& faults, SimulatedFaults& out) {
  if (out.num_ranks > kMostSimulatedRanks) {
    out.no_protocol =
        fmt::format("{} logical ranks; up to {} are simulated", out.num_ranks, kMostSimulatedRanks);
    return;
  }
  if (run.copies != TimelineRun::Copies::kMirror) {
    out.no_protocol = "only with resilience.mode \"mirror\" or \"auto\"";
    return;
  }
  sup::SimScenario s;
  s.seed = out.seed;
  s.mesh.pp = plan.mesh.pp;
  s.mesh.dp = plan.mesh.dp * plan.mesh.tp;
  s.mesh.micro_batches = std::clamp(plan.programs[0].num_micro_batches, 1, 2);
  s.mesh.seed = out.seed;
  s.state_interval = std::clamp<int64_t>(run.mirror_interval, 1, 3);
  s.num_workers = out.num_workers;
  s.num_nodes = 1 + run.host_of_device[static_cast<size_t>(out.num_workers - 1)];
  s.max_ranks_per_worker = out.num_ranks;
  const int64_t events_of_step = int64_t{out.num_ranks} * (20 + 4 * int64_t{s.mesh.dp});
  for (const TimelineFault& fault : faults) {
    if (s.faults.size() == kMostSimulatedFaults) break;
    auto known = to_protocol(fault);
    if (!known) continue;
    known->when =
        s.faults.empty() ? sup::SimFault::When::kAtEvent : sup::SimFault::When::kAfterEvents;
    known->events = events_of_step;
    if (fault.in_recovery && !s.faults.empty()) {
      known->when = sup::SimFault::When::kAtPhase;
      known->phase = fault.restoring ? sup::SimPhase::kFetching : sup::SimPhase::kDecided;
      known->at_subject = fault.of_adopter;
      known->events = 0;
    }
    s.faults.push_back(*known);
  }
  if (s.faults.empty()) {
    out.no_protocol = "no fault touches it";
    return;
  }
  s.steps = 3 + static_cast<int64_t>(s.faults.size());
  out.protocol = sup::run_scenario(s);
}

TimelineRun::Copies copies_of(const JobSpec& job) {
  if (job.resilience.mode == "off") return TimelineRun::Copies::kNone;
  return job.resilience.mode == "replicas" ? TimelineRun::Copies::kReplicas
                                           : TimelineRun::Copies::kMirror;
}

std::string percent(double share) { return fmt::format("{:.2f} %", 100 * share); }

double goodput(const SimulatedFaults& f) {
  const sup::Timeline& t = f.timeline;
  return t.seconds > 0 ? static_cast<double>(t.steps_done) * f.step_s / t.seconds : 1;
}

std::vector<double> recoveries(const sup::Timeline& timeline) {
  std::vector<double> out;
  for (const TimelineRecord& r : timeline.records) {
    if (r.recovers && r.recovery_s >= 0) out.push_back(r.recovery_s);
  }
  std::sort(out.begin(), out.end());
  return out;
}

Json to_json(const TimelineRecord& r) {
  const auto after_detection = [&](double s) { return (s - r.detected_s) * 1e3; };
  Json out = {{"time_s", r.time_s}, {"step", r.step},      {"part", r.part},
              {"fault", r.what},    {"culprit", r.victim}, {"action", r.action}};
  for (const char* key : {"detected_ms", "fenced_ms", "placed_ms", "restored_ms", "recovery_ms"}) {
    out[key] = nullptr;
  }
  if (r.recovers) {
    out["detected_ms"] = r.detected_s * 1e3;
    out["fenced_ms"] = after_detection(r.fenced_s);
    out["placed_ms"] = after_detection(r.placed_s);
    out["restored_ms"] = after_detection(r.restored_s);
    if (r.recovery_s >= 0) out["recovery_ms"] = r.recovery_s * 1e3;
  }
  out["ranks_moved"] = r.ranks_moved;
  out["state_moved_bytes"] = r.state_moved_bytes;
  out["state_moved_ms"] = r.moved_s * 1e3;
  out["updates_again"] = r.updates_again;
  out["replayed_ms"] = r.replayed_s * 1e3;
  out["lost_ms"] = r.lost_s * 1e3;
  out["workers"] = r.workers;
  out["spares"] = r.spares;
  return out;
}

std::string line_of(const TimelineRecord& r) {
  const auto after = [&](double s) { return r.recovers ? format_seconds(s) : std::string("-"); };
  std::string recovery = after(r.recovery_s);
  if (r.recovers && r.recovery_s < 0) recovery = "struck";
  return fmt::format(
      "{:>10} {:>10.2f}  {:<16} {:<26} {:>9} {:>9} {:>9} {:>11} {:>9} {:>9} {:>9}  "
      "{}; {} workers, {} spares\n",
      format_seconds(r.time_s), static_cast<double>(r.step) + r.part, r.what, r.victim,
      after(r.detected_s), after(r.fenced_s), after(r.placed_s),
      r.state_moved_bytes > 0 ? format_bytes(r.state_moved_bytes) : "-",
      r.state_moved_bytes > 0 ? format_seconds(r.moved_s) : "-",
      r.replayed_s > 0 ? format_seconds(r.replayed_s) : "-", recovery, r.action, r.workers,
      r.spares);
}

std::string protocol_text(const SimulatedFaults& f) {
  if (!f.protocol) return fmt::format("protocol    not simulated: {}\n", f.no_protocol);
  const sup::SimResult& p = *f.protocol;
  return fmt::format(
      "protocol    in virtual time on {} ranks: {} faults, {} recoveries, {} adoptions, {} pieces "
      "of work repeated by survivors; state {}{}{}\n",
      f.num_ranks, p.faults, p.recoveries, p.adoptions, p.survivors_reexecuted,
      p.outcome == sup::SimOutcome::kEqual ? "of every rank equal to the run without faults"
                                           : to_string(p.outcome),
      p.message.empty() ? "" : ": ", p.message);
}

int64_t steps_again(const sup::Timeline& t) {
  return t.ended.empty() ? 0 : t.steps_done - t.checkpoint;
}

}  // namespace

TimelineRun timeline_run(const JobSpec& job, const graph::Plan& plan,
                         const graph::ClusterSpec& cluster, const graph::SimulatedStep& step,
                         int64_t spares) {
  TimelineRun run;
  run.steps = job.training.steps;
  run.step_s = step.step_s;
  run.further_rank_s = step.compute_s;
  run.communication_s = step.communication_s;
  run.spares = static_cast<int32_t>(spares);
  const std::vector<RankBytes> bytes = bytes_of_ranks(plan);
  for (size_t r = 0; r < plan.ranks.size(); ++r) {
    const graph::RankPlacement& place = plan.ranks[r];
    const graph::RankProgram& program = plan.programs[static_cast<size_t>(place.program)];
    TimelineRun::Rank rank{bytes[r].state, bytes[r].inputs, 0,
                           (place.pp * plan.mesh.tp) + place.tp};
    const auto& firings = step.ranks[static_cast<size_t>(place.pp)].firings;
    for (const graph::TimedFiring& f : firings) {
      const graph::Launch& launch = program.launches[static_cast<size_t>(f.launch)];
      if (launch.phase == graph::Phase::kUpdate) rank.update_s += f.end_s - f.start_s;
    }
    run.firings = std::max(run.firings, static_cast<int64_t>(firings.size()));
    run.ranks.push_back(rank);
    run.rank_bytes = std::max(run.rank_bytes, program.arena_bytes);
  }
  for (size_t h = 0; h < cluster.hosts.size(); ++h) {
    const graph::HostSpec& host = cluster.hosts[h];
    run.hosts.push_back(host.name);
    run.host_of_device.insert(run.host_of_device.end(), host.devices.size(),
                              static_cast<int32_t>(h));
  }
  const graph::DeviceSpec& device = cluster.hosts[0].devices[0];
  run.device_bytes = device.memory_bytes;
  const size_t last = plan.ranks.size() + static_cast<size_t>(spares) - 1;
  const bool one_host = run.host_of_device[last] == 0;
  run.latency_s = one_host ? cluster.hosts[0].link.latency_s : cluster.network.latency_s;
  if (!one_host) run.network_bytes_per_s = cluster.network.bytes_per_s;
  run.copies = copies_of(job);
  run.mirror_interval = job.resilience.mirror_interval;
  run.checkpoint_interval = job.checkpoint.interval;
  run.verify_interval = job.resilience.verify_interval;
  // As the coordinator sets it.
  run.storms.max_faults = static_cast<int32_t>(job.resilience.max_faults);
  run.storms.max_faults_of_place =
      std::max(run.storms.max_faults_of_place, run.storms.max_faults / 5);
  run.orphan_s = job.resilience.orphan_timeout;
  run.progress_factor = job.resilience.progress_factor;
  run.progress_floor_s = job.resilience.progress_floor;
  if (!device.kind.starts_with("cpu")) {
    // Measured on H200 (docs/benchmarks/recovery.md and cuda.md): a spare takes a small model over
    // in 0.4 s, a process begins in 0.8 s.
    run.times.ready_s = 0.4;
    run.times.fresh_s = 0.8;
  }
  return run;
}

Result<SimulatedFaults> simulate_faults(const JobSpec& job, const graph::Plan& plan,
                                        const graph::ClusterSpec& cluster,
                                        const graph::SimulatedStep& step,
                                        const FaultOptions& options) {
  if (job.resilience.mode == "replicas") {
    if (const std::string why = sup::no_replicas(plan); !why.empty()) {
      return invalid_argument(job.at("resilience.mode") + ": no replicas: " + why);
    }
  }
  SimulatedFaults out;
  out.seed = options.seed.value_or(1);
  out.steps = job.training.steps;
  out.step_s = step.step_s;
  out.num_ranks = plan.mesh.num_ranks();
  ChaosScenario scenario;
  if (options.file.empty()) {
    out.source = fmt::format("a device fails once in {:.0f} hours", kDeviceMtbfHours);
    scenario.rates.device_hours = kDeviceMtbfHours;
  } else {
    out.source = options.file;
    ChaosLimits limits{out.num_ranks, job.training.steps, job.resilience.verify_interval > 0};
    ChaosLimits::Cluster& there = limits.simulated.emplace();
    for (const graph::HostSpec& host : cluster.hosts) there.hosts.push_back(host.name);
    there.idle_devices = cluster.num_devices() - out.num_ranks;
    there.seconds = static_cast<double>(out.steps) * out.step_s;
    SGA_ASSIGN(const std::string text, transport::read_file(options.file));
    SGA_ASSIGN(scenario, parse_scenario(text, options.file, limits, out.seed));
  }
  const TimelineRun run = timeline_run(job, plan, cluster, step, scenario.spares);
  out.num_workers = out.num_ranks + run.spares;
  std::vector<TimelineFault> faults;
  for (const ChaosFault& fault : scenario.faults) faults.push_back(to_timeline(fault));
  draw_by_steps(scenario.rates, run, out.seed, faults);
  std::vector<TimelineFault> struck = faults;
  Drawn drawn(run, out.seed + 1);
  double hours = 0;
  int64_t num_drawn = 0;
  const auto more = [&]() -> std::optional<TimelineFault> {
    const bool fails = scenario.rates.device_hours + scenario.rates.host_hours > 0;
    if (!fails || num_drawn++ == kMostDrawn) return std::nullopt;
    TimelineFault next = drawn.next(scenario.rates.device_hours, scenario.rates.host_hours, hours);
    next.time_s = hours * 3600;
    struck.push_back(next);
    return next;
  };
  out.timeline = sup::play_faults(run, faults, more);
  // The one that was drawn last may lie behind the end.
  if (num_drawn > 0 && num_drawn <= kMostDrawn && !struck.empty() &&
      struck.back().time_s >= out.timeline.seconds) {
    struck.pop_back();
  }
  run_protocol(run, plan, struck, out);
  return out;
}

void add_json(const SimulatedFaults& f, Json& out) {
  const sup::Timeline& t = f.timeline;
  out["faults_from"] = f.source;
  out["seed"] = f.seed;
  out["model"] = "timeline";
  out["faults"] = Json::array();
  for (const TimelineRecord& r : t.records) out["faults"].push_back(to_json(r));
  out["faults_missed"] = t.missed;
  const std::vector<double> times = recoveries(t);
  out["recoveries"] = times.size();
  out["recovery_ms"] = {{"median", nullptr}, {"max", nullptr}};
  if (!times.empty()) {
    out["recovery_ms"] = {{"median", times[times.size() / 2] * 1e3}, {"max", times.back() * 1e3}};
  }
  out["steps"] = f.steps;
  out["steps_done"] = t.steps_done;
  out["steps_again"] = steps_again(t);
  out["seconds"] = t.seconds;
  out["seconds_without_faults"] = static_cast<double>(f.steps) * f.step_s;
  out["seconds_for_want_of_workers"] = t.smaller_s;
  out["goodput"] = goodput(f);
  out["workers"] = t.workers;
  out["spares_left"] = t.spares;
  out["ended"] = t.ended.empty() ? Json() : Json(t.ended);
  out["checkpoint"] = t.checkpoint > 0 ? Json(t.checkpoint) : Json();
  out["protocol"] = nullptr;
  if (f.protocol) {
    const sup::SimResult& p = *f.protocol;
    out["protocol"] = {{"ranks", f.num_ranks},
                       {"workers", f.num_workers},
                       {"faults", p.faults},
                       {"recoveries", p.recoveries},
                       {"adoptions", p.adoptions},
                       {"coordinator_restarts", p.coordinator_restarts},
                       {"reexecuted", p.reexecuted},
                       {"survivors_reexecuted", p.survivors_reexecuted},
                       {"outcome", to_string(p.outcome)}};
  }
}

std::string to_text(const SimulatedFaults& f) {
  const sup::Timeline& t = f.timeline;
  std::string out = fmt::format(
      "\nfaults      {} struck{}; {}, seed {}\n"
      "            times by a timeline of phases, from the plan, the cluster and measured "
      "constants\n",
      t.records.size(), t.missed > 0 ? fmt::format(", {} were due behind the end", t.missed) : "",
      f.source, f.seed);
  if (!t.records.empty()) {
    out +=
        fmt::format("\n{:>10} {:>10}  {:<16} {:<26} {:>9} {:>9} {:>9} {:>11} {:>9} {:>9} {:>9}\n",
                    "time", "step", "fault", "culprit", "detected", "fenced", "placed",
                    "state moved", "in", "replayed", "recovery");
  }
  for (size_t i = 0; i < std::min(kMostLines, t.records.size()); ++i) {
    out += line_of(t.records[i]);
  }
  if (t.records.size() > kMostLines) {
    out += fmt::format("{:>10} and {} more; --json has all\n", "…", t.records.size() - kMostLines);
  }
  if (!t.records.empty()) out += "\n";
  const double without = static_cast<double>(f.steps) * f.step_s;
  out += fmt::format("steps       {} of {}, {} of them to be done again\n", t.steps_done, f.steps,
                     steps_again(t));
  out += fmt::format(
      "time        {}, {} without faults{}\n", format_seconds(t.seconds), format_seconds(without),
      t.smaller_s > 0 ? fmt::format("; {} of it for want of workers", format_seconds(t.smaller_s))
                      : "");
  out += fmt::format("goodput     {}\n", percent(goodput(f)));
  const std::vector<double> times = recoveries(t);
  if (!times.empty()) {
    out += fmt::format("recoveries  {}, median {}, longest {}\n", times.size(),
                       format_seconds(times[times.size() / 2]), format_seconds(times.back()));
  }
  out += fmt::format("left        {} workers for {} ranks, {} spares\n", t.workers, f.num_ranks,
                     t.spares);
  if (!t.ended.empty()) {
    out += fmt::format("ended       {}; it goes on from {}\n", t.ended,
                       t.checkpoint > 0 ? fmt::format("the checkpoint of step {}", t.checkpoint)
                                        : "the beginning: there is no checkpoint");
  }
  return out + protocol_text(f);
}

}  // namespace sgactor::apps
