#include "supervision/chaos/fault_timeline.h"

#include "graph/base/units.h"
#include "supervision/policy/fault_policy.h"
#include "supervision/policy/xid_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

namespace sgactor::supervision {
namespace {

using Kind = TimelineKind;
using Copies = TimelineRun::Copies;

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kTold = 0.001;  // by a message of a process that lives

/// What a detector says of the kind, and how much must be thrown away.
Action answer_to(const TimelineFault& fault) {
  switch (fault.kind) {
    case Kind::kKillWorker:
    case Kind::kTornWrite:
      return decide(FaultKind::kWorkerExit, Scope::kRank);
    case Kind::kHangWorker:
    case Kind::kStallWorker:
      return decide(FaultKind::kHang, Scope::kRank);
    case Kind::kKillActor:
      return decide(FaultKind::kActorFailure, Scope::kActor);
    case Kind::kFullDisk:
      return decide(FaultKind::kStorageError, Scope::kActor);
    case Kind::kSlowWorker:
      return decide(FaultKind::kSlowWorker, Scope::kRank);
    case Kind::kKillHost:
    case Kind::kLoseHost:
      return decide(FaultKind::kHostLoss, Scope::kRank);
    case Kind::kKillCoordinator:
      return decide(FaultKind::kCoordinatorExit, Scope::kRank);
    case Kind::kDeviceFault:
      return action_of(xid_action(static_cast<int32_t>(fault.value)));
    case Kind::kBrokenLink:
      return decide(FaultKind::kPartition, Scope::kChannel);
    case Kind::kWrongBits:
      return decide(FaultKind::kWrongBits, Scope::kDevice);
    case Kind::kLateFrame:
    case Kind::kDuplicateFrame:
      return Action::kIgnore;
  }
  return Action::kIgnore;
}

bool waits_for_write(Kind kind) { return kind == Kind::kFullDisk || kind == Kind::kTornWrite; }

class Player {
 public:
  explicit Player(const TimelineRun& run)
      : run_(run),
        storms_(run.storms),
        hosted_(run.host_of_device.size()),
        idle_at_(run.host_of_device.size(), kNever),
        worker_of_(run.ranks.size()) {
    for (size_t r = 0; r < run_.ranks.size(); ++r) {
      hosted_[r].push_back(static_cast<int32_t>(r));
      worker_of_[r] = r;
    }
    for (size_t s = 0; s < static_cast<size_t>(run_.spares); ++s) {
      idle_at_[run_.ranks.size() + s] = 0;
    }
  }

  Timeline play(std::vector<TimelineFault> faults,
                const std::function<std::optional<TimelineFault>()>& more);

 private:
  /// Workers by device.
  using Workers = std::vector<size_t>;
  struct Loss {
    Workers workers;
    double detected_s = 0;
    bool restarts = true;          ///< a fresh worker begins on the same device
    bool in_place = false;         ///< the processes live and take their ranks over themselves
    bool everybody_again = false;  ///< the open step's results are worth nothing
  };

  [[nodiscard]] double step_s() const {
    return run_.step_s + run_.further_rank_s * static_cast<double>(most_hosted() - 1);
  }
  [[nodiscard]] size_t most_hosted() const {
    size_t most = 1;
    for (const auto& ranks : hosted_) most = std::max(most, ranks.size());
    return most;
  }
  [[nodiscard]] bool is_active(size_t device) const { return !hosted_[device].empty(); }
  [[nodiscard]] bool is_idle(size_t device) const { return idle_at_[device] < kNever; }
  [[nodiscard]] double position() const { return static_cast<double>(step_) + part_; }
  [[nodiscard]] double part_of(const TimelineFault& fault) const;
  [[nodiscard]] int64_t write_behind(int64_t step) const;
  [[nodiscard]] double due(const TimelineFault& fault) const;
  void go_to(double at_s);
  void strike(const TimelineFault& fault, double at_s);
  void act(const TimelineFault& fault, TimelineRecord& record, double at_s);
  void lose_host(const TimelineFault& fault, TimelineRecord& record, double at_s, size_t host);
  void drain(TimelineRecord& record, double at_s, size_t host);
  void end_coordinator(const TimelineFault& fault, TimelineRecord& record, double at_s);
  void cut_link(const TimelineFault& fault, TimelineRecord& record);
  void find_wrong_bits(TimelineRecord& record, size_t device, double at_s);
  void delay(TimelineRecord& record, double seconds);
  /// Takes them out; what they hosted is in `lost`.
  bool take_out(const Loss& loss, TimelineRecord& record, double at_s,
                std::vector<std::vector<int32_t>>& lost, Workers& were);
  void recover(const Loss& loss, TimelineRecord& record, double at_s);
  bool place(const std::vector<std::vector<int32_t>>& lost, const Workers& were, double by_s,
             double& latest_s);
  bool deal(const std::vector<std::vector<int32_t>>& lost);
  void read_state(const std::set<int32_t>& ranks, bool whole_run, int64_t again,
                  TimelineRecord& record);
  void remember(const TimelineRecord& record, double at_s, std::set<int32_t> restores);
  [[nodiscard]] bool recovers_still() const { return last_begin_ >= 0 && now_ == last_end_; }
  [[nodiscard]] std::string no_copy(const std::set<int32_t>& ranks) const;
  void end(std::string why, double at_s);

  [[nodiscard]] size_t victim_device(const TimelineFault& fault) const;
  [[nodiscard]] std::string name_of(size_t device) const;
  [[nodiscard]] size_t host_of(size_t device) const {
    return static_cast<size_t>(run_.host_of_device[device]);
  }

  const TimelineRun& run_;
  StormBreaker storms_;
  std::vector<std::vector<int32_t>> hosted_;  // by device
  std::vector<double> idle_at_;               // by device: since when its worker hosts nothing
  std::vector<size_t> worker_of_;             // by rank
  double now_ = 0;                            // when work that had never been done goes on
  int64_t step_ = 0;
  double part_ = 0;
  // The recovery that was last: until when it goes on, and what had no state yet before.
  double last_begin_ = -1;
  double last_end_ = -1;
  double last_known_ = -1;
  double last_placed_ = -1;
  double last_restored_ = -1;
  std::set<int32_t> last_restores_;
  size_t last_record_ = 0;
  Workers last_adopters_;
  double last_position_ = -1;
  Timeline out_;
};

double Player::part_of(const TimelineFault& fault) const {
  if (fault.message <= 0) return fault.part;
  return std::min(1.0, static_cast<double>(fault.message) / static_cast<double>(run_.firings));
}

/// The first step from `step` on behind which workers write.
int64_t Player::write_behind(int64_t step) const {
  int64_t next = run_.steps;
  for (const int64_t interval :
       {run_.copies == Copies::kMirror ? run_.mirror_interval : 0, run_.checkpoint_interval}) {
    if (interval <= 0) continue;
    next = std::min(next, (std::max<int64_t>(1, step) + interval - 1) / interval * interval);
  }
  return next;
}

double Player::due(const TimelineFault& fault) const {
  if (fault.in_recovery) {
    if (!recovers_still()) return now_;
    return fault.restoring ? last_placed_ : last_known_;
  }
  if (fault.time_s >= 0) {
    return std::max(fault.time_s, recovers_still() ? last_begin_ : now_);
  }
  const int64_t step = waits_for_write(fault.kind) ? write_behind(fault.step) : fault.step;
  const double at = static_cast<double>(step) + part_of(fault);
  // Two at one moment strike together, so that the second meets the recovery from the first.
  if (at <= last_position_ && recovers_still()) return last_begin_;
  return now_ + std::max(0.0, at - position()) * step_s();
}

void Player::go_to(double at_s) {
  if (at_s <= now_) return;
  const double moved = (at_s - now_) / step_s();
  out_.smaller_s += moved * (step_s() - run_.step_s);
  double at = position() + moved;
  // Sums of doubles end a hair before or behind a step.
  if (std::abs(at - std::round(at)) < 1e-9 * std::max(1.0, at)) at = std::round(at);
  step_ = static_cast<int64_t>(std::floor(at));
  part_ = at - static_cast<double>(step_);
  now_ = at_s;
}

std::string Player::name_of(size_t device) const {
  const auto& ranks = hosted_[device];
  const size_t host = host_of(device);
  size_t first = device;
  while (first > 0 && host_of(first - 1) == host) --first;
  const std::string place = fmt::format("{}:{}", run_.hosts[host], device - first);
  if (ranks.empty()) return "spare on " + place;
  return fmt::format("rank{} {} on {}", ranks.size() > 1 ? "s" : "", fmt::join(ranks, ", "), place);
}

size_t Player::victim_device(const TimelineFault& fault) const {
  if (fault.of_adopter && !last_adopters_.empty()) return last_adopters_[0];
  if (fault.victim == TimelineFault::Victim::kDevice) return static_cast<size_t>(fault.index);
  if (fault.victim == TimelineFault::Victim::kRank) {
    return worker_of_[static_cast<size_t>(fault.index)];
  }
  int64_t left = fault.index;
  for (size_t d = 0; d < hosted_.size(); ++d) {
    if (is_active(d) && left-- == 0) return d;
  }
  // Fewer are left: the last one.
  for (size_t d = hosted_.size(); d-- > 0;) {
    if (is_active(d)) return d;
  }
  return 0;
}

void Player::end(std::string why, double at_s) {
  if (!out_.ended.empty()) return;
  out_.ended = std::move(why);
  const int64_t every = run_.checkpoint_interval;
  out_.checkpoint = every > 0 ? step_ / every * every : 0;
  now_ = at_s;
}

void Player::delay(TimelineRecord& record, double seconds) {
  record.lost_s = seconds;
  now_ += seconds;
}

bool Player::take_out(const Loss& loss, TimelineRecord& record, double at_s,
                      std::vector<std::vector<int32_t>>& lost, Workers& were) {
  for (const size_t device : loss.workers) {
    if (!is_active(device) && !is_idle(device)) continue;
    const double known = at_s + loss.detected_s;
    const auto verdict = storms_.on_fault(static_cast<int64_t>(device), std::llround(known * 1e6));
    if (verdict == StormBreaker::Verdict::kStopJob) {
      end(fmt::format("{} faults within a minute (resilience.max_faults)", storms_.num_recent()),
          known);
      return false;
    }
    if (loss.in_place) {
      lost.push_back(hosted_[device]);
      were.push_back(device);
      continue;
    }
    const bool again = loss.restarts && verdict == StormBreaker::Verdict::kGoOn;
    if (loss.restarts && !again) record.action += ", and use the device no more";
    if (is_active(device)) {
      lost.push_back(std::exchange(hosted_[device], {}));
      were.push_back(device);
    }
    idle_at_[device] = again ? known + run_.times.fresh_s : kNever;
  }
  return true;
}

/// Each lost worker's ranks to one that hosts nothing: of the same host first, then by number.
/// False, and nothing is changed, if there are too few up to `by_s`.
bool Player::place(const std::vector<std::vector<int32_t>>& lost, const Workers& were, double by_s,
                   double& latest_s) {
  Workers chosen;
  for (const size_t old : were) {
    size_t best = hosted_.size();
    // One that is there already before one that is still to come.
    const auto cost = [&](size_t d) {
      return std::tuple(std::max(idle_at_[d], latest_s), host_of(d) == host_of(old) ? 0 : 1, d);
    };
    for (size_t d = 0; d < hosted_.size(); ++d) {
      const bool taken = std::find(chosen.begin(), chosen.end(), d) != chosen.end();
      if (taken || idle_at_[d] > by_s) continue;
      if (best == hosted_.size() || cost(d) < cost(best)) best = d;
    }
    if (best == hosted_.size()) return false;
    chosen.push_back(best);
  }
  for (size_t i = 0; i < chosen.size(); ++i) {
    latest_s = std::max(latest_s, idle_at_[chosen[i]]);
    idle_at_[chosen[i]] = kNever;
    hosted_[chosen[i]] = lost[i];
    for (const int32_t rank : lost[i]) worker_of_[static_cast<size_t>(rank)] = chosen[i];
  }
  last_adopters_ = chosen;
  return true;
}

/// The same with too few: idle workers first, then those with the fewest ranks. False: there is no
/// worker.
bool Player::deal(const std::vector<std::vector<int32_t>>& lost) {
  for (const auto& ranks : lost) {
    for (const int32_t rank : ranks) {
      size_t best = hosted_.size();
      for (size_t d = 0; d < hosted_.size(); ++d) {
        if (!is_active(d) && idle_at_[d] > now_) continue;
        if (best == hosted_.size() || hosted_[d].size() < hosted_[best].size()) best = d;
      }
      if (best == hosted_.size()) return false;
      idle_at_[best] = kNever;
      hosted_[best].push_back(rank);
      worker_of_[static_cast<size_t>(rank)] = best;
    }
  }
  return true;
}

std::string Player::no_copy(const std::set<int32_t>& ranks) const {
  if (run_.copies == Copies::kNone) return "resilience.mode is \"off\"";
  if (run_.copies == Copies::kMirror) return {};
  std::set<int32_t> left;
  for (size_t r = 0; r < run_.ranks.size(); ++r) {
    if (!ranks.contains(static_cast<int32_t>(r))) left.insert(run_.ranks[r].group);
  }
  for (const int32_t rank : ranks) {
    if (!left.contains(run_.ranks[static_cast<size_t>(rank)].group)) {
      return fmt::format("no data-parallel replica of rank {} is left", rank);
    }
  }
  return {};
}

/// How long those read that take over (after an attempt: all), and do updates again.
void Player::read_state(const std::set<int32_t>& ranks, bool whole_run, int64_t again,
                        TimelineRecord& record) {
  int64_t total = 0;
  double longest_s = 0;
  double updates_s = 0;
  for (const auto& hosted : hosted_) {
    int64_t bytes = 0;
    double own_s = 0;
    for (const int32_t r : hosted) {
      if (!whole_run && !ranks.contains(r)) continue;
      const TimelineRun::Rank& rank = run_.ranks[static_cast<size_t>(r)];
      bytes += rank.state_bytes + (again * rank.input_bytes);
      own_s += static_cast<double>(again) * rank.update_s;
      if (ranks.contains(r)) record.state_moved_bytes += rank.state_bytes;
    }
    total += bytes;
    longest_s = std::max(longest_s, static_cast<double>(bytes) / run_.times.read_bytes_per_s);
    updates_s = std::max(updates_s, own_s);
  }
  // Replicas write first what is read then.
  const double passes = run_.copies == Copies::kMirror ? 1 : 2;
  const double link_s = static_cast<double>(total) / run_.network_bytes_per_s;
  record.updates_again = again;
  record.moved_s = total > 0 ? passes * (run_.latency_s + std::max(longest_s, link_s)) : 0;
  record.restored_s = record.placed_s + run_.times.ready_s + record.moved_s + updates_s;
}

/// Until work goes on that had never been done, what strikes meets this recovery.
void Player::remember(const TimelineRecord& record, double at_s, std::set<int32_t> restores) {
  last_begin_ = at_s;
  last_end_ = now_;
  last_known_ = at_s + record.detected_s;
  last_placed_ = at_s + record.placed_s;
  last_restored_ = at_s + record.restored_s;
  last_restores_ = std::move(restores);
  last_record_ = out_.records.size();
  last_position_ = position();
}

void Player::recover(const Loss& loss, TimelineRecord& record, double at_s) {
  std::vector<std::vector<int32_t>> lost;
  Workers were;
  record.detected_s = loss.detected_s;
  if (!take_out(loss, record, at_s, lost, were)) return;
  const bool meanwhile = at_s < now_;
  if (lost.empty()) {
    record.action += ": it hosts nothing";
    return;
  }
  std::set<int32_t> moved;
  for (const auto& ranks : lost) moved.insert(ranks.begin(), ranks.end());
  record.ranks_moved = static_cast<int64_t>(moved.size());
  // What was being restored is begun again.
  double placed_before = 0;
  if (meanwhile) {
    placed_before = at_s < last_restored_ ? last_placed_ : 0;
    if (at_s < last_restored_) moved.insert(last_restores_.begin(), last_restores_.end());
    TimelineRecord& before = out_.records[last_record_];
    before.lost_s -= now_ - at_s;
    before.recovery_s = -1;
    now_ = at_s;
  }
  const double known = at_s + loss.detected_s;
  if (const std::string why = no_copy(moved); !why.empty()) {
    return end(fmt::format("{} is lost, and {}", record.victim, why), known);
  }
  const TimelineRun::Times& t = run_.times;
  record.fenced_s = loss.detected_s + t.fence_s + (2 * run_.latency_s);
  double latest = std::max(at_s + record.fenced_s, placed_before);
  last_adopters_ = were;
  const bool attempt = loss.everybody_again ||
                       (!loss.in_place && !place(lost, were, latest + t.adopter_wait_s, latest));
  record.placed_s = latest - at_s;
  if (attempt) {
    const double waited = loss.everybody_again ? 0 : t.adopter_wait_s;
    record.placed_s = record.fenced_s + waited + t.attempt_s;
    now_ = at_s + record.placed_s;
    if (!deal(lost)) return end("no worker is left: " + record.victim + " was the last", now_);
    const auto bytes = static_cast<int64_t>(most_hosted()) * run_.rank_bytes;
    if (bytes > run_.device_bytes) {
      return end(fmt::format("{} is lost, and {} ranks take {} of a device's {}", record.victim,
                             most_hosted(), format_bytes(bytes), format_bytes(run_.device_bytes)),
                 now_);
    }
    record.action += loss.everybody_again ? ", begin the step again" : ", go on with fewer workers";
  }
  read_state(moved, attempt, run_.copies == Copies::kMirror ? step_ % run_.mirror_interval : 0,
             record);
  record.recovers = true;
  record.replayed_s = part_ * step_s();
  record.recovery_s = record.restored_s + record.replayed_s;
  record.lost_s = record.recovery_s;
  now_ = at_s + record.recovery_s;
  remember(record, at_s, std::move(moved));
}

void Player::lose_host(const TimelineFault& fault, TimelineRecord& record, double at_s,
                       size_t host) {
  record.victim = run_.hosts[host];
  Loss loss;
  loss.restarts = false;
  loss.detected_s =
      fault.kind == Kind::kKillHost ? run_.times.exit_seen_s : run_.times.host_silent_s;
  for (size_t d = 0; d < hosted_.size(); ++d) {
    if (host_of(d) == host && (is_active(d) || is_idle(d))) loss.workers.push_back(d);
  }
  // The coordinator runs on the first host, and the copies lie there.
  if (fault.kind == Kind::kLoseHost && host == 0) {
    return end(record.victim + " is lost, with the coordinator and the copies of the state", at_s);
  }
  if (loss.workers.empty()) {
    record.action += ": nothing of the run is there";
    return;
  }
  recover(loss, record, at_s);
}

/// At the end of the step all ranks leave the host, if there is anybody to take them.
void Player::drain(TimelineRecord& record, double at_s, size_t host) {
  record.victim += " (" + run_.hosts[host] + ")";
  std::vector<std::vector<int32_t>> leaving;
  Workers from;
  bool others = false;
  for (size_t d = 0; d < hosted_.size(); ++d) {
    if (host_of(d) != host) others = others || is_active(d) || is_idle(d);
    if (host_of(d) != host || !is_active(d)) continue;
    leaving.push_back(hosted_[d]);
    from.push_back(d);
  }
  if (!others) {
    record.action += ": refused, no worker would be left";
    return;
  }
  for (size_t d = 0; d < hosted_.size(); ++d) {
    if (host_of(d) == host) idle_at_[d] = kNever;
  }
  if (leaving.empty()) return;
  if (at_s >= now_ && part_ > 0) go_to(now_ + (1 - part_) * step_s());
  const double boundary = std::max(at_s, now_);
  record.detected_s = record.fenced_s = boundary - at_s;
  for (const size_t d : from) hosted_[d].clear();
  double latest = boundary;
  now_ = boundary;
  std::set<int32_t> moved;
  for (const auto& ranks : leaving) moved.insert(ranks.begin(), ranks.end());
  record.ranks_moved = static_cast<int64_t>(moved.size());
  if (!place(leaving, from, boundary, latest) && !deal(leaving)) {
    return end("no worker is left to take what leaves " + run_.hosts[host], boundary);
  }
  record.placed_s = record.fenced_s + run_.times.attempt_s;
  // The copy is written for the purpose: nothing is done again.
  read_state(moved, true, 0, record);
  if (run_.copies == Copies::kMirror) {
    record.restored_s += record.moved_s;
    record.moved_s *= 2;
  }
  record.recovers = true;
  record.recovery_s = record.restored_s;
  record.lost_s = record.restored_s - record.fenced_s;
  now_ = boundary + record.lost_s;
  remember(record, at_s, std::move(moved));
}

/// Workers go on up to the vote.
void Player::end_coordinator(const TimelineFault& fault, TimelineRecord& record, double at_s) {
  record.victim = "coordinator";
  const double gone = static_cast<double>(fault.value) / 1e3;
  if (gone > run_.orphan_s) {
    return end(fmt::format("the coordinator was gone for {} s, and workers wait {} s "
                           "(resilience.orphan_timeout)",
                           gone, run_.orphan_s),
               at_s + run_.orphan_s);
  }
  const double back = gone + run_.times.takeover_s;
  record.recovers = true;
  record.detected_s = gone;
  record.fenced_s = record.placed_s = record.restored_s = record.recovery_s = back;
  if (at_s < now_) return delay(record, back);
  const double to_vote = (1 - part_) * step_s();
  go_to(at_s + std::min(back, to_vote));
  if (back > to_vote) delay(record, back - to_vote);
}

/// Nobody is lost: links are made again, and the step's operations run again from the log.
void Player::cut_link(const TimelineFault& fault, TimelineRecord& record) {
  const TimelineRun::Times& t = run_.times;
  record.recovers = true;
  record.detected_s = static_cast<double>(fault.value) / 1e3 + t.broken_link_s;
  record.fenced_s = record.detected_s + t.fence_s + (2 * run_.latency_s);
  record.placed_s = record.fenced_s;
  record.restored_s = record.placed_s + t.links_s;
  record.replayed_s = part_ * run_.communication_s;
  record.recovery_s = record.restored_s + record.replayed_s;
  const double at_s = now_;
  delay(record, record.recovery_s);
  remember(record, at_s, {});
}

void Player::find_wrong_bits(TimelineRecord& record, size_t device, double at_s) {
  const int64_t every = run_.verify_interval;
  if (every <= 0 || (step_ + 1) % every != 0) {
    record.action = every > 0 ? "not noticed: the step is not executed again"
                              : "not noticed: resilience.verify_interval is 0";
    return;
  }
  Loss loss;
  loss.workers = {device};
  loss.restarts = false;
  loss.everybody_again = true;
  if (at_s < now_) return recover(loss, record, at_s);
  // Found before the vote; the step is executed again by all, from its beginning.
  loss.detected_s = (1 - part_) * step_s();
  const double done = part_ * step_s();
  part_ = 0;
  recover(loss, record, at_s);
  if (!record.recovers) return;
  record.replayed_s = step_s();
  record.recovery_s = record.restored_s + record.replayed_s;
  record.lost_s = record.restored_s + done;
}

void Player::act(const TimelineFault& fault, TimelineRecord& record, double at_s) {
  const TimelineRun::Times& t = run_.times;
  if (fault.kind == Kind::kKillCoordinator) return end_coordinator(fault, record, at_s);
  const bool of_host = fault.kind == Kind::kKillHost || fault.kind == Kind::kLoseHost;
  if (fault.victim == TimelineFault::Victim::kHost) {
    return lose_host(fault, record, at_s, static_cast<size_t>(fault.index));
  }
  const size_t device = victim_device(fault);
  record.victim = name_of(device);
  if (of_host) return lose_host(fault, record, at_s, host_of(device));
  Loss loss;
  loss.workers = {device};
  switch (fault.kind) {
    case Kind::kHangWorker:
      loss.detected_s =
          static_cast<double>(t.heartbeats.interval_us) * (t.heartbeats.missed - 0.5) / 1e6;
      return recover(loss, record, at_s);
    case Kind::kStallWorker:
      if (run_.progress_factor <= 0) {
        return end(record.victim +
                       " stands still, and resilience.progress_factor is 0: nobody "
                       "looks",
                   at_s);
      }
      loss.detected_s = std::max(run_.progress_factor * step_s(), run_.progress_floor_s);
      return recover(loss, record, at_s);
    case Kind::kKillActor:
    case Kind::kFullDisk:
      loss.in_place = true;
      loss.detected_s = kTold;
      if (is_active(device)) return recover(loss, record, at_s);
      record.action += ": it hosts nothing";
      return;
    case Kind::kSlowWorker:
      return is_active(device) ? delay(record, t.slow_s) : void();
    case Kind::kLateFrame:
      return delay(record, static_cast<double>(fault.value) / 1e3);
    case Kind::kDuplicateFrame:
      return;
    case Kind::kBrokenLink:
      return cut_link(fault, record);
    case Kind::kWrongBits:
      return find_wrong_bits(record, device, at_s);
    case Kind::kDeviceFault: {
      const Action action = answer_to(fault);
      if (action == Action::kIgnore) return;
      if (action == Action::kDrainHost) return drain(record, at_s, host_of(device));
      loss.restarts = action != Action::kQuarantineDevice;
      loss.detected_s = kTold;
      return recover(loss, record, at_s);
    }
    default:
      loss.detected_s = t.exit_seen_s;
      return recover(loss, record, at_s);
  }
}

void Player::strike(const TimelineFault& fault, double at_s) {
  go_to(at_s);
  TimelineRecord record;
  record.what = fault.what;
  record.time_s = at_s;
  record.step = step_;
  record.part = part_;
  record.action = to_string(answer_to(fault));
  act(fault, record, at_s);
  for (size_t d = 0; d < hosted_.size(); ++d) {
    record.workers += is_active(d) ? 1 : 0;
    record.spares += is_idle(d) ? 1 : 0;
  }
  out_.records.push_back(std::move(record));
}

Timeline Player::play(std::vector<TimelineFault> faults,
                      const std::function<std::optional<TimelineFault>()>& more) {
  // Those with a time go by it; the others keep their order.
  const auto timed = std::stable_partition(faults.begin(), faults.end(),
                                           [](const auto& f) { return f.time_s < 0; });
  std::stable_sort(timed, faults.end(),
                   [](const auto& a, const auto& b) { return a.time_s < b.time_s; });
  auto next = faults.begin();
  auto next_timed = timed;
  std::optional<TimelineFault> drawn = more ? more() : std::nullopt;
  while (out_.ended.empty()) {
    const double last = now_ + (static_cast<double>(run_.steps) - position()) * step_s();
    const double at = next != timed ? due(*next) : kNever;
    const double at_timed = next_timed != faults.end() ? due(*next_timed) : kNever;
    const double at_drawn = drawn ? due(*drawn) : kNever;
    const double soonest = std::min({at, at_timed, at_drawn});
    if (soonest >= last) break;  // also where nothing is left
    if (soonest == at) {
      strike(*next++, at);
    } else if (soonest == at_timed) {
      strike(*next_timed++, at_timed);
    } else {
      // A device or host that is gone already does not fail again.
      const auto i = static_cast<size_t>(drawn->index);
      if (drawn->victim != TimelineFault::Victim::kDevice || is_active(i) || is_idle(i)) {
        strike(*drawn, at_drawn);
      }
      drawn = more();
    }
  }
  out_.missed = (timed - next) + (faults.end() - next_timed);
  if (out_.ended.empty()) {
    go_to(now_ + (static_cast<double>(run_.steps) - position()) * step_s());
    step_ = run_.steps;
  }
  out_.steps_done = step_;
  out_.seconds = now_;
  for (size_t d = 0; d < hosted_.size(); ++d) {
    out_.workers += is_active(d) ? 1 : 0;
    out_.spares += is_idle(d) ? 1 : 0;
  }
  return std::move(out_);
}

}  // namespace

Timeline play_faults(const TimelineRun& run, std::vector<TimelineFault> faults,
                     const std::function<std::optional<TimelineFault>()>& more) {
  return Player(run).play(std::move(faults), more);
}

}  // namespace sgactor::supervision
