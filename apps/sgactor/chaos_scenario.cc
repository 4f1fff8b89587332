#include "apps/sgactor/chaos_scenario.h"

#include "graph/base/hash.h"

#include <fmt/ranges.h>
#include <toml++/toml.h>

#include <algorithm>
#include <array>
#include <exception>
#include <initializer_list>

namespace sgactor::apps {
namespace {

constexpr std::array<std::string_view, 17> kKinds = {
    "kill_worker",      "hang_worker",     "slow_worker",   "kill_node",    "kill_actor",
    "disk_full",        "torn_write",      "xid",           "stall_worker", "drop_frame",
    "delay_frame",      "duplicate_frame", "corrupt_frame", "partition",    "bit_flip",
    "kill_coordinator", "lose_host"};
// Those that a draw may give: first of workers, then of links between two, then what a replica
// finds.
constexpr std::array<ChaosFault::Kind, 10> kDrawn = {
    ChaosFault::Kind::kKillWorker,     ChaosFault::Kind::kHangWorker,
    ChaosFault::Kind::kSlowWorker,     ChaosFault::Kind::kKillActor,
    ChaosFault::Kind::kDropFrame,      ChaosFault::Kind::kDelayFrame,
    ChaosFault::Kind::kDuplicateFrame, ChaosFault::Kind::kCorruptFrame,
    ChaosFault::Kind::kPartition,      ChaosFault::Kind::kBitFlip};
constexpr int64_t kNumOfWorkers = 4;
constexpr int64_t kMostNodes = 16;
constexpr int64_t kMostXid = 1023;
constexpr int64_t kMostFaults = 10'000;
constexpr std::array<std::string_view, 5> kPhases = {"fence", "restore", "resume", "replay",
                                                     "journalled"};
constexpr int64_t kMostMessages = 1'000'000;
// The step of the message, the one in which feeders are early, and the one that strikes in any
// case.
constexpr int64_t kStepsOfTrap = 3;
constexpr int64_t kDelayMs = 50;
constexpr int64_t kPartitionMs = 1000;
constexpr int64_t kMostMs = 60'000;
constexpr int64_t kCoordinatorMs = 1000;
constexpr int64_t kMostCoordinatorMs = 7 * 86'400'000;
constexpr std::array<std::string_view, 3> kSimulatedKeys = {"host", "at_part", "at_time_s"};
constexpr std::string_view kOnlySimulated = "only for sgactor simulate --faults";

class Reader {
 public:
  Reader(std::string file, const ChaosLimits& limits, uint64_t seed)
      : file_(std::move(file)), limits_(limits), state_(mix64(0, seed)) {
    out_.workers = std::min<int64_t>(2, limits.num_ranks);
  }

  Result<ChaosScenario> read(const toml::table& root) {
    SGA_TRY(check_keys(root, {"workers", "spares", "nodes", "fault", "random"}));
    SGA_TRY(limits_.simulated ? read_size_of_simulation(root) : read_size(root));
    if (const toml::node* faults = root.get("fault")) {
      const toml::array* list = faults->as_array();
      if (list == nullptr) return wrong(*faults, "fault: expected [[fault]]");
      for (const toml::node& node : *list) {
        const toml::table* table = node.as_table();
        if (table == nullptr) return wrong(node, "fault: expected [[fault]]");
        SGA_TRY(read_fault(*table));
      }
    }
    if (const toml::node* random = root.get("random")) SGA_TRY(read_random(*random));
    if (out_.faults.empty() && !out_.rates.any()) return invalid_argument(file_ + ": no fault");
    const int64_t killed = std::count_if(
        out_.faults.begin(), out_.faults.end(),
        [](const ChaosFault& fault) { return fault.kind == ChaosFault::Kind::kKillNode; });
    if (killed >= out_.nodes && !limits_.simulated) {
      return invalid_argument(fmt::format("{}: {} of {} nodes are killed; one must be left", file_,
                                          killed, out_.nodes));
    }
    sort_by_step(out_.faults, &ChaosFault::at_step);
    return out_;
  }

 private:
  Status wrong(const toml::node& node, const std::string& what) const {
    return invalid_argument(fmt::format("{}:{}: {}", file_, node.source().begin.line, what));
  }
  Status check_keys(const toml::table& table, std::initializer_list<std::string_view> known) const {
    for (const auto& [key, node] : table) {
      if (std::find(known.begin(), known.end(), std::string_view(key)) != known.end()) continue;
      return wrong(node, fmt::format("no key \"{}\" here", std::string_view(key)));
    }
    return {};
  }
  Status number(const toml::table& table, std::string_view key, int64_t low, int64_t high,
                int64_t& out) const {
    const toml::node* node = table.get(key);
    if (node == nullptr) return {};
    const auto value = node->value_exact<int64_t>();
    if (value && *value >= low && *value <= high) {
      out = *value;
      return {};
    }
    return wrong(*node, fmt::format("{}: expected a number from {} to {}", key, low, high));
  }
  /// From `low` on, below `high`.
  Status real(const toml::table& table, std::string_view key, double low, double high,
              const std::string& expected, double& out) const {
    const toml::node* node = table.get(key);
    if (node == nullptr) return {};
    const auto value = node->value<double>();
    if (node->is_number() && value && *value >= low && *value < high) {
      out = *value;
      return {};
    }
    return wrong(*node, fmt::format("{}: expected {}", key, expected));
  }
  Status read_size(const toml::table& root) {
    SGA_TRY(read_workers(root));
    SGA_TRY(number(root, "spares", 0, 1024, out_.spares));
    return number(root, "nodes", 1, kMostNodes, out_.nodes);
  }
  /// `workers` and `nodes` are those of the cluster, whatever the scenario says for real processes.
  Status read_size_of_simulation(const toml::table& root) {
    int64_t unused = 0;
    SGA_TRY(number(root, "workers", 1, INT32_MAX, unused));
    SGA_TRY(number(root, "nodes", 1, INT32_MAX, unused));
    SGA_TRY(number(root, "spares", 0, INT32_MAX, out_.spares));
    out_.workers = limits_.num_ranks;
    out_.nodes = static_cast<int64_t>(limits_.simulated->hosts.size());
    if (out_.spares <= limits_.simulated->idle_devices) return {};
    return wrong(*root.get("spares"),
                 fmt::format("spares: {}, and the cluster has {} devices beyond the job's {} "
                             "logical ranks",
                             out_.spares, limits_.simulated->idle_devices, limits_.num_ranks));
  }
  /// The scenario stands, the job can be given more ranks.
  Status read_workers(const toml::table& root) {
    const toml::node* node = root.get("workers");
    const int64_t wanted = node == nullptr ? 0 : node->value_exact<int64_t>().value_or(0);
    if (limits_.num_ranks == 1 && wanted > 1) {
      return wrong(*node, fmt::format("workers: the job has 1 logical rank, a worker hosts at "
                                      "least one; give --parallelism.data_parallel_degree={}",
                                      wanted));
    }
    return number(root, "workers", 1, limits_.num_ranks, out_.workers);
  }
  /// Of [0, n).
  int64_t draw(int64_t n) {
    state_ = mix64(state_, 1);
    return static_cast<int64_t>(state_ % static_cast<uint64_t>(n));
  }
  double draw_part() { return static_cast<double>(draw(1000)) / 1000; }
  int64_t draw_step() { return 1 + draw(std::max<int64_t>(1, limits_.num_steps - 1)); }

  Status read_kind(const toml::table& table, ChaosFault& fault) const {
    const toml::node* node = table.get("kind");
    if (node == nullptr) return wrong(table, "kind: missing");
    const auto text = node->value_exact<std::string>();
    const auto it = text ? std::find(kKinds.begin(), kKinds.end(), *text) : kKinds.end();
    if (it == kKinds.end()) {
      const auto end = kKinds.end() - (limits_.simulated ? 0 : 1);  // lose_host is the last one
      return wrong(*node,
                   fmt::format("kind: expected one of {}", fmt::join(kKinds.begin(), end, ", ")));
    }
    fault.kind = static_cast<ChaosFault::Kind>(it - kKinds.begin());
    if (fault.kind == ChaosFault::Kind::kLoseHost && !limits_.simulated) {
      return wrong(*node, fmt::format("kind: \"lose_host\" is {}", kOnlySimulated));
    }
    return {};
  }
  /// What a simulation alone can do.
  Status read_simulated(const toml::table& table, ChaosFault& fault) {
    if (!limits_.simulated) {
      for (const std::string_view key : kSimulatedKeys) {
        if (const toml::node* node = table.get(key)) {
          return wrong(*node, fmt::format("{}: {}", key, kOnlySimulated));
        }
      }
      return {};
    }
    const ChaosLimits::Cluster& cluster = *limits_.simulated;
    if (const toml::node* node = table.get("host")) {
      const bool takes =
          fault.kind == ChaosFault::Kind::kKillNode || fault.kind == ChaosFault::Kind::kLoseHost;
      if (!takes || fault.worker >= 0 || table.contains("rank")) {
        return wrong(*node, "host: of kill_node and lose_host, in place of worker and rank");
      }
      const auto name = node->value_exact<std::string>();
      const auto it =
          name ? std::find(cluster.hosts.begin(), cluster.hosts.end(), *name) : cluster.hosts.end();
      if (it == cluster.hosts.end()) {
        return wrong(*node, fmt::format("host: the cluster has no such host; it has {}",
                                        some_of(cluster.hosts)));
      }
      fault.host = it - cluster.hosts.begin();
    }
    const toml::node* at = table.get("at_time_s");
    if (at != nullptr && (table.contains("at_step") || table.contains("at_part") ||
                          table.contains("at_message") || table.contains("phase"))) {
      return wrong(*at, "at_time_s: in place of at_step, at_part, at_message and phase");
    }
    SGA_TRY(real(table, "at_time_s", 0, cluster.seconds,
                 fmt::format("seconds from 0 to below {:.3f}, which the run takes without faults",
                             cluster.seconds),
                 fault.at_time_s));
    const toml::node* part = table.get("at_part");
    if (part != nullptr && (fault.in_recovery || table.contains("at_message"))) {
      return wrong(*part, "at_part: not with at_message, nor in a recovery");
    }
    return real(table, "at_part", 0, 1, "a share of the step, from 0 to below 1", fault.at_part);
  }
  static std::string some_of(const std::vector<std::string>& names) {
    constexpr size_t kMost = 8;
    const size_t n = std::min(names.size(), kMost);
    return fmt::format("{}{}",
                       fmt::join(names.begin(), names.begin() + static_cast<int64_t>(n), ", "),
                       names.size() > n ? fmt::format(" … {}", names.back()) : "");
  }
  Status read_fault(const toml::table& table) {
    ChaosFault fault;
    SGA_TRY(check_keys(table, {"kind", "worker", "rank", "at_step", "at_message", "xid", "to_rank",
                               "ms", "phase", "spare", "host", "at_part", "at_time_s"}));
    SGA_TRY(read_kind(table, fault));
    const bool is_xid = fault.kind == ChaosFault::Kind::kXid;
    if (is_xid != table.contains("xid")) {
      return wrong(table, is_xid ? "xid: missing" : "xid: only for kind \"xid\"");
    }
    SGA_TRY(number(table, "xid", 1, kMostXid, fault.value));
    SGA_TRY(number(table, "worker", 0, out_.workers - 1, fault.worker));
    SGA_TRY(number(table, "rank", 0, limits_.num_ranks - 1, fault.rank));
    if (fault.worker >= 0 && fault.rank >= 0) {
      return wrong(table, "give worker or rank, not both");
    }
    if (fault.worker < 0 && fault.rank < 0) fault.rank = draw(limits_.num_ranks);
    SGA_TRY(read_link(table, fault));
    SGA_TRY(read_phase(table, fault));
    const toml::node* at = table.get("at_step");
    if (at != nullptr && at->value_exact<std::string>() == "recovery") {
      if (out_.faults.empty()) return wrong(*at, "at_step: no fault comes before this one");
      if (out_.faults.back().at_time_s >= 0) {
        return wrong(*at, "at_step: the fault before strikes at a time: give at_time_s here too");
      }
      fault.in_recovery = true;
    } else {
      fault.at_step = draw_step();
      if (limits_.simulated && at == nullptr) fault.at_part = draw_part();
      SGA_TRY(number(table, "at_step", 1, limits_.num_steps - 1, fault.at_step));
    }
    SGA_TRY(read_simulated(table, fault));
    SGA_TRY(read_message(table, fault));
    const bool waits = !fault.phase.empty() && fault.phase != "journalled";
    if (waits && !fault.in_recovery) {
      return wrong(table,
                   "phase: of the recovery that the fault before leads to: give at_step = "
                   "\"recovery\"");
    }
    out_.faults.push_back(fault);
    return {};
  }
  Status read_message(const toml::table& table, ChaosFault& fault) {
    using Kind = ChaosFault::Kind;
    const toml::node* node = table.get("at_message");
    if (node == nullptr) return {};
    const bool of_actors = fault.kind == Kind::kKillWorker || fault.kind == Kind::kHangWorker ||
                           fault.kind == Kind::kKillActor || fault.kind == Kind::kStallWorker;
    const bool of_frames = is_of_link(fault.kind) && fault.kind != Kind::kPartition;
    if ((!of_actors && !of_frames) || fault.in_recovery || !fault.phase.empty()) {
      return wrong(*node, fmt::format("at_message: not for kind \"{}\", nor in a recovery",
                                      to_string(fault.kind)));
    }
    SGA_TRY(number(table, "at_message", 1, kMostMessages, fault.at_message));
    const int64_t last = limits_.num_steps - kStepsOfTrap;
    if (of_frames || fault.at_step <= last) return {};
    if (last < 1 || table.contains("at_step")) {
      return wrong(*node,
                   fmt::format("at_message: only with at_step up to {}, {} before the last step: "
                               "where a step has fewer messages a later one is struck",
                               std::max<int64_t>(0, last), kStepsOfTrap));
    }
    fault.at_step = 1 + draw(last);
    return {};
  }
  /// When in a recovery a fault strikes, and whom.
  Status read_phase(const toml::table& table, ChaosFault& fault) const {
    const bool of_coordinator = fault.kind == ChaosFault::Kind::kKillCoordinator;
    const bool takes = of_coordinator || fault.kind == ChaosFault::Kind::kKillWorker;
    if (const toml::node* node = table.get("phase")) {
      const auto text = node->value_exact<std::string>();
      const bool known = text && std::find(kPhases.begin(), kPhases.end(), *text) != kPhases.end();
      if (!takes || !known || (*text == "journalled" && !of_coordinator)) {
        return wrong(*node, fmt::format("phase: expected one of {}, of kill_worker or "
                                        "kill_coordinator (the last one of this only)",
                                        fmt::join(kPhases, ", ")));
      }
      fault.phase = *text;
    }
    if (const toml::node* node = table.get("spare")) {
      const auto spare = node->value_exact<bool>();
      if (!spare || fault.phase.empty() || of_coordinator) {
        return wrong(*node, "spare: true or false, of kill_worker with a phase");
      }
      fault.of_spare = *spare;
    }
    return {};
  }
  /// What faults of a link have beside a rank.
  Status read_link(const toml::table& table, ChaosFault& fault) const {
    using Kind = ChaosFault::Kind;
    const bool of_link = is_of_link(fault.kind);
    const bool takes_time = fault.kind == Kind::kDelayFrame || fault.kind == Kind::kPartition;
    if (fault.kind == Kind::kKillCoordinator && limits_.simulated) {
      fault.value = kCoordinatorMs;
      SGA_TRY(number(table, "ms", 0, kMostCoordinatorMs, fault.value));
      return table.contains("to_rank") ? wrong(*table.get("to_rank"), "to_rank: not for this kind")
                                       : Status();
    }
    for (const auto& [key, allowed] : {std::pair("to_rank", of_link), {"ms", takes_time}}) {
      const toml::node* node = table.get(key);
      if (node != nullptr && !allowed) {
        return wrong(*node, fmt::format("{}: not for kind \"{}\"", key, to_string(fault.kind)));
      }
    }
    if (!of_link) return {};
    if (out_.workers < 2) {
      return wrong(table,
                   fmt::format("kind: a link needs two workers{}",
                               limits_.num_ranks > 1 ? ""
                                                     : ", and the job has 1 logical rank; give "
                                                       "--parallelism.data_parallel_degree=2"));
    }
    if (fault.rank < 0) return wrong(table, "kind: the link of a rank: give rank, not worker");
    fault.to_rank = (fault.rank + 1) % limits_.num_ranks;
    SGA_TRY(number(table, "to_rank", 0, limits_.num_ranks - 1, fault.to_rank));
    if (fault.to_rank == fault.rank) return wrong(table, "to_rank: a rank has no link to itself");
    if (takes_time) fault.value = fault.kind == Kind::kDelayFrame ? kDelayMs : kPartitionMs;
    return number(table, "ms", 1, kMostMs, fault.value);
  }
  /// How many of kDrawn need nothing that this scenario and job lack.
  [[nodiscard]] int64_t num_drawn() const {
    if (out_.workers < 2) return kNumOfWorkers;
    return static_cast<int64_t>(kDrawn.size()) - (limits_.verifies ? 0 : 1);
  }
  Status read_rates(const toml::table& table) {
    for (const auto& [key, out] : {std::pair("device_mtbf_hours", &out_.rates.device_hours),
                                   {"host_mtbf_hours", &out_.rates.host_hours},
                                   {"device_mtbf_steps", &out_.rates.device_steps},
                                   {"host_mtbf_steps", &out_.rates.host_steps}}) {
      const toml::node* node = table.get(key);
      if (node == nullptr) continue;
      if (!limits_.simulated) return wrong(*node, fmt::format("{}: {}", key, kOnlySimulated));
      SGA_TRY(real(table, key, 1e-6, 1e15, "a mean time above 0", *out));
    }
    return {};
  }
  Status read_random(const toml::node& node) {
    const toml::table* table = node.as_table();
    if (table == nullptr) return wrong(node, "random: expected [random]");
    SGA_TRY(check_keys(*table, {"count", "device_mtbf_hours", "host_mtbf_hours",
                                "device_mtbf_steps", "host_mtbf_steps"}));
    SGA_TRY(read_rates(*table));
    int64_t count = out_.rates.any() ? 0 : 1;
    SGA_TRY(number(*table, "count", 1, kMostFaults, count));
    for (int64_t i = 0; i < count; ++i) {
      ChaosFault fault;
      fault.kind = kDrawn[static_cast<size_t>(draw(num_drawn()))];
      fault.rank = draw(limits_.num_ranks);
      // Time for what strikes while a recovery goes on.
      fault.at_step = 1 + draw(std::max<int64_t>(1, (limits_.num_steps - 1) * 9 / 10));
      if (limits_.simulated) fault.at_part = draw_part();
      if (is_of_link(fault.kind)) {
        fault.to_rank = -1;  // whoever hosts what then
        if (fault.kind == ChaosFault::Kind::kDelayFrame) fault.value = kDelayMs;
        if (fault.kind == ChaosFault::Kind::kPartition) fault.value = kPartitionMs;
      }
      out_.faults.push_back(fault);
    }
    return {};
  }

  const std::string file_;
  const ChaosLimits limits_;
  uint64_t state_;
  ChaosScenario out_;
};

}  // namespace

std::string_view to_string(ChaosFault::Kind kind) { return kKinds[static_cast<size_t>(kind)]; }

Result<ChaosScenario> parse_scenario(std::string_view text, const std::string& file,
                                     const ChaosLimits& limits, uint64_t seed) {
  try {
    return Reader(file, limits, seed).read(toml::parse(text, file));
  } catch (const toml::parse_error& error) {
    return invalid_argument(
        fmt::format("{}:{}: {}", file, error.source().begin.line, error.description()));
  } catch (const std::exception& error) {
    return invalid_argument(file + ": " + error.what());
  }
}

}  // namespace sgactor::apps
