#include "apps/sgactor/resilience_price.h"

#include "apps/sgactor/cluster_ranks.h"
#include "supervision/recovery/replicas.h"

#include <set>
#include <utility>

namespace sgactor::apps {
namespace {

// Two copies of the state are kept; a third is there while it is written.
constexpr int64_t kCopies = 3;

/// Bytes of all ranks, what is the same on several counted once.
struct Sums {
  int64_t state = 0;
  int64_t inputs = 0;  ///< that the updates of one step read
};

bool is_state(graph::BufferKind kind) {
  return kind == graph::BufferKind::kParameter || kind == graph::BufferKind::kMoment;
}

/// Whether another rank's copy of the buffer is the one that counts.
bool is_replica(const graph::Plan& plan, const graph::RankPlacement& rank, graph::BufferKind kind) {
  const int64_t whole_up_to = kind == graph::BufferKind::kParameter ? 2 : 0;
  return rank.dp > 0 && plan.zero_stage <= whole_up_to;
}

int64_t input_bytes(const graph::RankProgram& program) {
  std::set<graph::BufferId> known;
  int64_t bytes = 0;
  for (const graph::Launch& launch : program.launches) {
    if (launch.phase != graph::Phase::kUpdate) continue;
    for (const graph::LaunchInput& in : launch.inputs) {
      const graph::Buffer& buffer = program.buffers[static_cast<size_t>(in.buffer)];
      if (!is_state(buffer.kind) && known.insert(in.buffer).second) bytes += buffer.bytes;
    }
    known.insert(launch.outputs.begin(), launch.outputs.end());
  }
  return bytes;
}

Sums sum_up(const graph::Plan& plan) {
  Sums out;
  for (const graph::RankPlacement& rank : plan.ranks) {
    const graph::RankProgram& program = plan.programs[static_cast<size_t>(rank.program)];
    for (const graph::Buffer& buffer : program.buffers) {
      if (is_state(buffer.kind) && !is_replica(plan, rank, buffer.kind)) out.state += buffer.bytes;
    }
    if (rank.dp == 0 || plan.zero_stage > 0) out.inputs += input_bytes(program);
  }
  return out;
}

}  // namespace

std::vector<RankBytes> bytes_of_ranks(const graph::Plan& plan) {
  std::vector<int64_t> inputs;  // by program
  for (const graph::RankProgram& program : plan.programs) inputs.push_back(input_bytes(program));
  std::vector<RankBytes> out;
  for (size_t r = 0; r < plan.ranks.size(); ++r) {
    out.push_back({state_bytes(plan, static_cast<int32_t>(r)),
                   inputs[static_cast<size_t>(plan.ranks[r].program)]});
  }
  return out;
}

std::vector<ModePrice> price_modes(const graph::Plan& plan, int64_t mirror_interval) {
  const Sums sums = sum_up(plan);
  ModePrice off;
  off.mode = "off";
  off.survives = "nothing: the run ends, and begins again from the newest checkpoint on disk";
  ModePrice replicas;
  replicas.mode = "replicas";
  replicas.why_not = supervision::no_replicas(plan);
  replicas.possible = replicas.why_not.empty();
  // Written once a loss, and gone when it has been read.
  replicas.memory_bytes = replicas.possible ? sums.state : 0;
  replicas.survives =
      "losses that leave one data-parallel replica of each shard; memory only during a recovery";
  ModePrice mirror;
  mirror.mode = "mirror";
  // Inputs are kept since the older of the two copies.
  mirror.memory_bytes = kCopies * sums.state + 2 * mirror_interval * sums.inputs;
  mirror.traffic_bytes = sums.inputs + sums.state / mirror_interval;
  mirror.survives = "the loss of any workers, of all at once too; not of the host that holds it";
  std::vector<ModePrice> out;
  out.push_back(std::move(off));
  out.push_back(std::move(replicas));
  out.push_back(std::move(mirror));
  return out;
}

}  // namespace sgactor::apps
