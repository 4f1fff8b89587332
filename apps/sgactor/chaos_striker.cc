#include "apps/sgactor/chaos_striker.h"

#include "apps/sgactor/clock.h"
#include "transport/storage/run_files.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <sstream>

namespace sgactor::apps {
namespace {

using Json = nlohmann::ordered_json;
using Kind = ChaosFault::Kind;

// A heartbeat comes every 100 ms and suspicion after 300: a burst leaves room for a busy machine.
constexpr int64_t kBurstMs = 80;
constexpr int64_t kNumChanges = 12;

double unix_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

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
  if (!fault.in_recovery && step < fault.at_step) return;
  const std::string text = read_text(run_.state());
  const Json state = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!state.is_object()) return;
  const auto generation = state.value("generation", int64_t{0});
  // A recovery shows by the generation that follows.
  if (fault.in_recovery && generation <= last_generation_) return;
  Victim who = victim(text, fault);
  if (who.pid <= 0 || !is_ours(who.pid) || struck_before(who.pid)) return;
  const double now = unix_seconds();
  if (!strike(fault, who)) return;
  strikes_.push_back({fault, step, now, who.pid});
  last_generation_ = generation;
  ++next_;
}

bool ChaosStriker::strike(const ChaosFault& fault, Victim& who) {
  switch (fault.kind) {
    case Kind::kKillWorker:
      return send_signal(who.pid, SIGKILL);
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
      return request(fault, who.index);
  }
  return false;
}

/// False while the run has not taken the request before.
bool ChaosStriker::request(const ChaosFault& fault, int64_t index) const {
  std::error_code error;
  if (std::filesystem::exists(run_.request(), error)) return false;
  const Json request = {
      {"inject", to_string(fault.kind)}, {"worker", index}, {"value", fault.value}};
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

/// The system may have given a dead worker's number to another process.
bool ChaosStriker::is_ours(int64_t pid) const {
  const std::string words = read_text(fmt::format("/proc/{}/cmdline", pid));
  return words.find(std::filesystem::absolute(run_.path).string() + "/control/token") !=
         std::string::npos;
}

/// Whoever was only slowed, or asked to fail in part, may be struck again.
bool ChaosStriker::struck_before(int64_t pid) const {
  return std::any_of(strikes_.begin(), strikes_.end(), [pid](const Strike& s) {
    return s.pid == pid && s.fault.kind != Kind::kSlowWorker && s.fault.kind != Kind::kKillActor &&
           s.fault.kind != Kind::kDiskFull && s.fault.kind != Kind::kXid;
  });
}

}  // namespace sgactor::apps
