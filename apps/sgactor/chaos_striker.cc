#include "apps/sgactor/chaos_striker.h"

#include "apps/sgactor/clock.h"
#include "transport/storage/run_files.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <sstream>
#include <utility>

namespace sgactor::apps {
namespace {

using Json = nlohmann::ordered_json;
using Kind = ChaosFault::Kind;

// A heartbeat comes every 100 ms and suspicion after 300: a burst leaves room for a busy machine.
constexpr int64_t kBurstMs = 80;
constexpr int64_t kNumChanges = 12;
constexpr int64_t kStepsAhead = 50;

std::string read_text(const std::string& file) {
  std::ostringstream out;
  out << std::ifstream(file, std::ios::binary).rdbuf();
  return out.str();
}

/// 0: it has gone.
int64_t parent_of(int64_t pid) {
  const std::string stat = read_text(fmt::format("/proc/{}/stat", pid));
  const size_t at = stat.rfind(')');  // the name before it may hold anything
  if (at == std::string::npos) return 0;
  char state = 0;
  int64_t parent = 0;
  std::istringstream(stat.substr(at + 1)) >> state >> parent;
  return parent;
}

bool send_signal(int64_t pid, int signal) { return ::kill(static_cast<pid_t>(pid), signal) == 0; }

}  // namespace

int64_t ChaosStriker::LineCount::now() {
  std::ifstream in(file_, std::ios::binary);
  // A run that was started again may have cut it.
  in.seekg(0, std::ios::end);
  if (in && in.tellg() < offset_) offset_ = lines_ = 0;
  in.seekg(offset_);
  for (char c = 0; in.get(c);) {
    ++offset_;
    lines_ += c == '\n' ? 1 : 0;
  }
  return lines_;
}

ChaosStriker::ChaosStriker(const ChaosScenario& scenario, RunDirectory run)
    : scenario_(scenario), run_(std::move(run)), steps_(run_.metrics()) {}

ChaosStriker::~ChaosStriker() {
  for (const Burst& burst : bursts_) {
    if (burst.stopped && is_ours(burst.pid)) send_signal(burst.pid, SIGCONT);
  }
}

void ChaosStriker::go_on_with_bursts() {
  const int64_t now = now_ms();
  for (Burst& burst : bursts_) {
    if (burst.left == 0 || now < burst.due_ms) continue;
    if (!is_ours(burst.pid)) {
      burst.left = 0;
      continue;
    }
    burst.stopped = !burst.stopped;
    send_signal(burst.pid, burst.stopped ? SIGSTOP : SIGCONT);
    burst.due_ms = now + kBurstMs;
    --burst.left;
  }
}

void ChaosStriker::look() {
  go_on_with_bursts();
  if (next_ == scenario_.faults.size()) return;
  const int64_t step = steps_.now();
  const ChaosFault& fault = scenario_.faults[next_];
  // A trap has to be there before its step begins.
  const int64_t ahead = is_trap(fault) ? kStepsAhead : 0;
  if (!fault.in_recovery && step + ahead < fault.at_step) return;
  const std::string text = read_text(run_.state());
  const Json state = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!state.is_object()) return;
  const auto generation = state.value("generation", int64_t{0});
  // A recovery shows by the generation that follows.
  if (fault.in_recovery && generation <= last_generation_) return;
  if (!arm_next(text)) return;
  Victim who = victim(text, fault);
  if (fault.kind == Kind::kKillCoordinator) {
    if (!kill_coordinator(fault, text, who)) return;
  } else if (who.pid <= 0 || !is_ours(who.pid) || struck_before(who.pid)) {
    return;
  }
  ChaosFault due = fault;
  if (is_of_link(fault.kind) && (due.to_rank = other_end(text, fault)) < 0) return;
  const double now = unix_seconds();
  if (!strike(due, who)) return;
  strikes_.push_back({due, step, now, who.pid});
  last_generation_ = generation;
  ++next_;
  // It strikes by itself, in the recovery that follows.
  if (std::exchange(armed_, false)) strikes_.push_back({scenario_.faults[next_++], step, now, 0});
}

std::string ChaosStriker::why_not() {
  if (next_ >= scenario_.faults.size()) return "";
  const ChaosFault& fault = scenario_.faults[next_];
  const std::string step = std::to_string(fault.at_step);
  const int64_t done = steps_.now();
  if (fault.in_recovery) return "no recovery from the fault before it was seen to begin";
  if (done < fault.at_step) {
    return fmt::format("step {} was not reached, the run ended behind step {}", step, done);
  }
  if (strikes_.empty()) return "whom it names was not there behind step " + step;
  return fmt::format(
      "behind step {} whom it names was not there, had been struck before and not been replaced, "
      "or the request before it was not taken; the run ended behind step {}",
      step, done);
}

/// A fault of a phase is asked for before the one whose recovery it strikes. False: not taken yet.
bool ChaosStriker::arm_next(const std::string& state) {
  if (next_ + 1 >= scenario_.faults.size()) return true;
  const ChaosFault& after = scenario_.faults[next_ + 1];
  if (!after.in_recovery || after.phase.empty()) return true;
  std::error_code error;
  if (armed_) return !std::filesystem::exists(run_.request(), error);
  armed_ = request(after, victim(state, after).index);
  return false;
}

/// By a request where a phase is waited for, else by a signal that strike() sends.
bool ChaosStriker::kill_coordinator(const ChaosFault& fault, const std::string& text,
                                    Victim& who) const {
  const Json state = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  who.pid = state.value("coordinator", int64_t{0});
  who.index = -1;
  return who.pid > 1 && parent_of(who.pid) == ::getpid() &&
         (fault.phase.empty() || request(fault, -1));
}

bool ChaosStriker::strike(const ChaosFault& fault, Victim& who) {
  if (is_trap(fault)) return request(fault, who.index);
  switch (fault.kind) {
    case Kind::kKillWorker:
      return send_signal(who.pid, SIGKILL);
    case Kind::kKillCoordinator:
      return !fault.phase.empty() || send_signal(who.pid, SIGKILL);
    case Kind::kHangWorker:
      return send_signal(who.pid, SIGSTOP);
    case Kind::kSlowWorker:
      bursts_.push_back({who.pid, kNumChanges, 0, false});
      return true;
    case Kind::kKillNode: {
      const int64_t node = parent_of(who.pid);
      if (node <= 1 || !is_ours(node) || !send_signal(node, SIGKILL)) return false;
      who.pid = node;
      return true;
    }
    case Kind::kKillActor:
    case Kind::kDiskFull:
    case Kind::kTornWrite:
    case Kind::kXid:
    case Kind::kStallWorker:
    case Kind::kDropFrame:
    case Kind::kDelayFrame:
    case Kind::kDuplicateFrame:
    case Kind::kCorruptFrame:
    case Kind::kPartition:
    case Kind::kBitFlip:
    case Kind::kLoseHost:  // never here: only simulations read it
      return request(fault, who.index);
  }
  return false;
}

/// False while the run has not taken the request before.
bool ChaosStriker::request(const ChaosFault& fault, int64_t index) const {
  std::error_code error;
  if (std::filesystem::exists(run_.request(), error)) return false;
  Json request = {{"inject", to_string(fault.kind)}, {"worker", index}, {"value", fault.value}};
  if (fault.at_message > 0) {
    request["message"] = fault.at_message;
    request["step"] = fault.at_step + 1;
  }
  if (fault.to_rank >= 0) request["to_rank"] = fault.to_rank;
  if (!fault.phase.empty()) request["phase"] = fault.phase;
  if (fault.of_spare) request["spare"] = true;
  return transport::write_file_atomic(run_.request(), request.dump() + "\n").ok();
}

ChaosStriker::Victim ChaosStriker::victim(const std::string& text, const ChaosFault& fault) {
  const Json state = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  int64_t active = 0;
  for (const Json& worker : state.value("workers", Json::array())) {
    const auto ranks = worker.value("ranks", std::vector<int64_t>());
    if (ranks.empty()) continue;
    const bool named = fault.rank >= 0
                           ? std::find(ranks.begin(), ranks.end(), fault.rank) != ranks.end()
                           : active == fault.worker;
    if (named) return {worker.value("pid", int64_t{0}), worker.value("index", int64_t{-1})};
    ++active;
  }
  return {};
}

int64_t ChaosStriker::other_end(const std::string& text, const ChaosFault& fault) {
  const Json state = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  std::vector<std::vector<int64_t>> hosts;
  for (const Json& worker : state.value("workers", Json::array())) {
    auto ranks = worker.value("ranks", std::vector<int64_t>());
    if (!ranks.empty()) hosts.push_back(std::move(ranks));
  }
  const auto host_of = [&](int64_t rank) {
    return std::find_if(hosts.begin(), hosts.end(), [rank](const auto& ranks) {
      return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
    });
  };
  const auto own = host_of(fault.rank);
  if (own == hosts.end() || hosts.size() < 2) return -1;
  if (fault.to_rank >= 0) {
    const auto other = host_of(fault.to_rank);
    return other == hosts.end() || other == own ? -1 : fault.to_rank;
  }
  const auto next = static_cast<size_t>(own - hosts.begin() + 1) % hosts.size();
  return hosts[next].front();
}

/// The system may have given a dead worker's number to another process.
bool ChaosStriker::is_ours(int64_t pid) const {
  const std::string words = read_text(fmt::format("/proc/{}/cmdline", pid));
  return words.find(std::filesystem::absolute(run_.path).string() + "/control/token") !=
         std::string::npos;
}

/// Whoever was only slowed, or asked to fail in part, may be struck again.
bool ChaosStriker::struck_before(int64_t pid) const {
  const auto survives = [](Kind kind) {
    return kind == Kind::kSlowWorker || kind == Kind::kKillActor || kind == Kind::kDiskFull ||
           kind == Kind::kXid || is_of_link(kind);
  };
  return std::any_of(strikes_.begin(), strikes_.end(),
                     [&](const Strike& s) { return s.pid == pid && !survives(s.fault.kind); });
}

}  // namespace sgactor::apps
