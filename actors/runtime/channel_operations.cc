#include "actors/runtime/channel_operations.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace sgactor::actors {
namespace {

using graph::LaunchKind;
using transport::CollectiveKind;
using transport::CollectiveRequest;
using transport::Element;

CollectiveKind kind_of(LaunchKind kind) {
  switch (kind) {
    case LaunchKind::kReduceScatter:
      return CollectiveKind::kReduceScatter;
    case LaunchKind::kAllGather:
      return CollectiveKind::kAllGather;
    case LaunchKind::kBroadcast:
      return CollectiveKind::kBroadcast;
    case LaunchKind::kAllToAll:
      return CollectiveKind::kAllToAll;
    case LaunchKind::kSend:
      return CollectiveKind::kSend;
    case LaunchKind::kRecv:
      return CollectiveKind::kRecv;
    case LaunchKind::kSubgraph:
    case LaunchKind::kAllReduce:
      break;
  }
  return CollectiveKind::kAllReduce;
}

std::string_view name_of(LaunchKind kind) {
  switch (kind) {
    case LaunchKind::kReduceScatter:
      return "reduce_scatter";
    case LaunchKind::kAllGather:
      return "all_gather";
    case LaunchKind::kBroadcast:
      return "broadcast";
    case LaunchKind::kAllToAll:
      return "all_to_all";
    case LaunchKind::kSend:
      return "send";
    case LaunchKind::kRecv:
      return "recv";
    case LaunchKind::kSubgraph:
    case LaunchKind::kAllReduce:
      break;
  }
  return "all_reduce";
}

bool reduces(LaunchKind kind) {
  return kind == LaunchKind::kAllReduce || kind == LaunchKind::kReduceScatter;
}

std::optional<Element> element_of(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return Element::kF64;
    case DType::kF32:
      return Element::kF32;
    case DType::kBF16:
      return Element::kBF16;
    case DType::kI32:
      return Element::kI32;
    case DType::kU8:
      return Element::kU8;
    default:
      return std::nullopt;
  }
}

/// The other end of a send or recv, or the root of a broadcast, as `rank` sees it.
int32_t peer_rank(const graph::Plan& plan, const graph::Communication& c, int32_t rank) {
  graph::RankPlacement at = plan.ranks[static_cast<size_t>(rank)];
  const graph::MeshAxis axis = plan.groups[static_cast<size_t>(c.group)].axis;
  (axis == graph::MeshAxis::kPp ? at.pp : axis == graph::MeshAxis::kDp ? at.dp : at.tp) = c.peer;
  return graph::rank_at(plan, at.pp, at.dp, at.tp);
}

/// Turns a plan's launches into requests.
class OperationBuilder {
 public:
  OperationBuilder(const ChannelSpec& spec, const graph::RankProgram& program)
      : plan_(*spec.plan), rank_(spec.rank), program_(program) {}

  Result<Operation> build(const graph::Launch& launch) {
    Operation out;
    out.name = launch.name;
    out.key = launch.communication.key;
    CollectiveRequest common;
    SGA_TRY(set_group(launch, common).with_context(launch.name));
    common.kind = kind_of(launch.kind);
    common.reduction = launch.communication.reduction == graph::Reduction::kMax
                           ? transport::Reduction::kMax
                           : transport::Reduction::kSum;
    common.algorithm =
        launch.communication.exact ? transport::Algorithm::kExact : transport::Algorithm::kRing;
    const size_t n = std::max(launch.inputs.size(), launch.outputs.size());
    for (size_t i = 0; i < n; ++i) {
      const graph::BufferId in = i < launch.inputs.size() ? launch.inputs[i].buffer : -1;
      const graph::BufferId to = i < launch.outputs.size() ? launch.outputs[i] : -1;
      Pair pair{common, HashStep::kNone, type_of(in), type_of(to)};
      SGA_TRY(set_sizes(launch, in, to, pair).with_context(launch.name));
      out.pairs.push_back(std::move(pair));
    }
    return out;
  }

 private:
  Status set_group(const graph::Launch& launch, CollectiveRequest& request) {
    const graph::Communication& c = launch.communication;
    if (c.group < 0 || static_cast<size_t>(c.group) >= plan_.groups.size()) {
      return invalid_plan(fmt::format("there is no group {}", c.group));
    }
    request.group = graph::group_members(plan_, c.group, rank_);
    const auto place = [&](int32_t rank) {
      const auto it = std::find(request.group.begin(), request.group.end(), rank);
      return it == request.group.end() ? -1 : static_cast<int32_t>(it - request.group.begin());
    };
    request.index = place(rank_);
    if (request.index < 0) return invalid_plan(fmt::format("rank {} is not in its group", rank_));
    const bool has_peer = launch.kind == LaunchKind::kSend || launch.kind == LaunchKind::kRecv ||
                          launch.kind == LaunchKind::kBroadcast;
    if (!has_peer) return {};
    request.root = place(peer_rank(plan_, c, rank_));
    if (request.root < 0) return invalid_plan(fmt::format("its group has no member {}", c.peer));
    return {};
  }

  [[nodiscard]] TensorType type_of(graph::BufferId b) const {
    return b < 0 ? TensorType{DType::kF32, {0}} : program_.buffers[static_cast<size_t>(b)].type;
  }

  /// Elements as the storage model keeps them; what is only moved may travel as bytes.
  Status set_sizes(const graph::Launch& launch, graph::BufferId in, graph::BufferId to,
                   Pair& pair) {
    CollectiveRequest& r = pair.request;
    const auto members = static_cast<int64_t>(r.group.size());
    if (plan_.storage == graph::StorageModel::kHash) return set_hash(launch.kind, members, pair);
    const DType dtype = (in >= 0 ? pair.input : pair.output).dtype;
    if (in >= 0 && to >= 0 && pair.output.dtype != dtype) {
      return invalid_plan(
          fmt::format("{} becomes {}", pair.input.to_string(), pair.output.to_string()));
    }
    const int64_t num_in = pair.input.num_elements();
    const int64_t num_to = pair.output.num_elements();
    std::optional<Element> element = Element::kF64;
    int64_t scale = 1;
    if (plan_.storage == graph::StorageModel::kNative) element = element_of(dtype);
    if (!element && !reduces(launch.kind)) {
      element = Element::kU8;
      scale = dtype_bytes(dtype);
    }
    if (!element) return unsupported(fmt::format("reduction of {}", dtype_name(dtype)));
    r.element = *element;
    r.total = scale * (launch.kind == LaunchKind::kAllGather || in < 0 ? num_to : num_in);
    if (launch.kind == LaunchKind::kReduceScatter) r.piece = scale * num_to;
    if (launch.kind == LaunchKind::kAllGather) r.piece = scale * num_in;
    if (launch.kind == LaunchKind::kAllToAll) r.piece = scale * num_in / members;
    return {};
  }

  static Status set_hash(LaunchKind kind, int64_t members, Pair& pair) {
    CollectiveRequest& r = pair.request;
    r.element = Element::kHash;
    r.total = 1;
    r.piece = 1;
    if (kind == LaunchKind::kReduceScatter) {
      r.kind = CollectiveKind::kAllReduce;
      pair.hash_step = HashStep::kPiece;
    } else if (kind == LaunchKind::kAllGather) {
      r.total = members;
      pair.hash_step = HashStep::kGather;
    } else if (kind == LaunchKind::kAllToAll) {
      return unsupported("all_to_all of hashes");
    }
    return {};
  }

  const graph::Plan& plan_;
  int32_t rank_;
  const graph::RankProgram& program_;
};

}  // namespace

std::vector<ChannelOperation> describe_operations(const ChannelSpec& spec) {
  const graph::Plan& plan = *spec.plan;
  const auto index = static_cast<size_t>(plan.ranks[static_cast<size_t>(spec.rank)].program);
  const graph::RankProgram& program = plan.programs[index];
  std::vector<ChannelOperation> out(program.launches.size());
  for (size_t l = 0; l < program.launches.size(); ++l) {
    const graph::Launch& launch = program.launches[l];
    if (launch.lane != spec.lane) continue;
    ChannelOperation& o = out[l];
    o.lane = spec.lane;
    o.channel = program.lanes[static_cast<size_t>(spec.lane)].name;
    o.launch = launch.name;
    o.kind = name_of(launch.kind);
    o.key = launch.communication.key;
    const int32_t group = launch.communication.group;
    if (group < 0 || static_cast<size_t>(group) >= plan.groups.size()) continue;
    o.members = graph::group_members(plan, group, spec.rank);
    if (launch.kind != LaunchKind::kSend && launch.kind != LaunchKind::kRecv) continue;
    const int32_t peer = peer_rank(plan, launch.communication, spec.rank);
    o.members = {std::min(spec.rank, peer), std::max(spec.rank, peer)};
  }
  return out;
}

Result<std::vector<Operation>> build_operations(const ChannelSpec& spec) {
  const auto index = static_cast<size_t>(spec.plan->ranks[static_cast<size_t>(spec.rank)].program);
  const graph::RankProgram& program = spec.plan->programs[index];
  OperationBuilder builder(spec, program);
  std::vector<Operation> operations(program.launches.size());
  for (size_t l = 0; l < program.launches.size(); ++l) {
    if (program.launches[l].lane != spec.lane) continue;
    SGA_ASSIGN(operations[l], builder.build(program.launches[l]));
  }
  return operations;
}

}  // namespace sgactor::actors
