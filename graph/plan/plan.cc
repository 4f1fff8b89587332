#include "graph/plan/plan.h"

#include <algorithm>
#include <array>
#include <utility>

namespace sgactor::graph {
namespace {

constexpr std::array<std::string_view, 8> kBufferKindNames = {
    "parameter", "moment", "accumulator", "scalar", "metric", "batch", "activation", "workspace"};
constexpr std::array<std::string_view, 3> kStorageNames = {"native", "float64", "hash"};

}  // namespace

std::string_view to_string(BufferKind kind) {
  const auto index = static_cast<size_t>(kind);
  return index < kBufferKindNames.size() ? kBufferKindNames[index] : "?";
}

std::string_view to_string(StorageModel model) {
  const auto index = static_cast<size_t>(model);
  return index < kStorageNames.size() ? kStorageNames[index] : "?";
}

BufferKind buffer_kind(Role role) {
  switch (role) {
    case Role::kParameter:
      return BufferKind::kParameter;
    case Role::kMoment:
      return BufferKind::kMoment;
    case Role::kAccumulator:
      return BufferKind::kAccumulator;
    case Role::kTokens:
    case Role::kTargets:
      return BufferKind::kBatch;
    case Role::kScalar:
      return BufferKind::kScalar;
    case Role::kLoss:
    case Role::kLogits:
    case Role::kMetric:
      return BufferKind::kMetric;
    case Role::kActivation:
      break;
  }
  return BufferKind::kActivation;
}

int32_t rank_at(const Plan& plan, int32_t pp, int32_t dp, int32_t tp) {
  const auto found =
      std::find_if(plan.ranks.begin(), plan.ranks.end(),
                   [&](const RankPlacement& p) { return p.pp == pp && p.dp == dp && p.tp == tp; });
  return found == plan.ranks.end() ? -1 : static_cast<int32_t>(found - plan.ranks.begin());
}

std::vector<int32_t> group_members(const Plan& plan, int32_t group, int32_t rank) {
  const RankGroup& g = plan.groups[static_cast<size_t>(group)];
  const RankPlacement& me = plan.ranks[static_cast<size_t>(rank)];
  const auto coordinate = [&](const RankPlacement& p) {
    return g.axis == MeshAxis::kPp ? p.pp : g.axis == MeshAxis::kDp ? p.dp : p.tp;
  };
  std::vector<std::pair<int32_t, int32_t>> found;  // coordinate, rank
  for (size_t r = 0; r < plan.ranks.size(); ++r) {
    const RankPlacement& p = plan.ranks[r];
    const bool together = (g.axis == MeshAxis::kPp || p.pp == me.pp) &&
                          (g.axis == MeshAxis::kDp || p.dp == me.dp) &&
                          (g.axis == MeshAxis::kTp || p.tp == me.tp);
    const bool listed =
        g.coordinates.empty() ||
        std::find(g.coordinates.begin(), g.coordinates.end(), coordinate(p)) != g.coordinates.end();
    if (together && listed) found.emplace_back(coordinate(p), static_cast<int32_t>(r));
  }
  std::sort(found.begin(), found.end());
  std::vector<int32_t> members;
  for (const auto& [at, r] : found) members.push_back(r);
  return members;
}

int64_t storage_bytes(const TensorType& type, StorageModel model) {
  switch (model) {
    case StorageModel::kNative:
      return type.bytes();
    case StorageModel::kFloat64:
      // Saturates: 2^62 bytes of u8, which a type may have, would overflow.
      return std::min(type.num_elements(), int64_t{1} << 59) * 8;
    case StorageModel::kHash:
      return 8;
  }
  return 0;
}

}  // namespace sgactor::graph
