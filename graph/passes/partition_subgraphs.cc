#include "graph/passes/partition_subgraphs.h"

#include "graph/ir/op_table.h"
#include "graph/ir/serial.h"
#include "graph/passes/cut_communication.h"
#include "graph/passes/partition_prepare.h"
#include "graph/passes/rewrite.h"
#include "graph/passes/schedule_collectives.h"
#include "graph/plan/verify_program.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_map>

namespace sgactor::graph {
namespace {

/// Positions of a lane are 32-bit; an order of this length takes half a gigabyte.
constexpr int64_t kMaxFirings = int64_t{1} << 26;

/// "layer.3" -> "layer": the name that identical segments share.
std::string_view stem(std::string_view segment) {
  const size_t dot = segment.rfind('.');
  if (dot == std::string_view::npos || dot + 1 == segment.size()) return segment;
  const std::string_view tail = segment.substr(dot + 1);
  const bool number =
      std::all_of(tail.begin(), tail.end(), [](char c) { return c >= '0' && c <= '9'; });
  return number ? segment.substr(0, dot) : segment;
}

/// Equal but for names of segments, inputs and outputs.
bool same_body(const Graph& a, const Graph& b) {
  const auto same_port = [](const auto& x, const auto& y) {
    return x.value == y.value && x.role == y.role;
  };
  return a.ops() == b.ops() && a.values() == b.values() &&
         std::equal(a.inputs().begin(), a.inputs().end(), b.inputs().begin(), b.inputs().end(),
                    same_port) &&
         std::equal(a.outputs().begin(), a.outputs().end(), b.outputs().begin(), b.outputs().end(),
                    same_port);
}

class Partitioner {
 public:
  Partitioner(std::string name, int32_t num_micro_batches, StorageModel storage) {
    plan_.name = std::move(name);
    plan_.storage = storage;
    plan_.programs.emplace_back();
    plan_.ranks.push_back({});
    program().num_micro_batches = num_micro_batches;
    program().lanes.push_back({LaneKind::kCompute, "compute", -1, {}});
  }

  /// Cuts one graph and appends its launches.
  Status add_graph(const Graph& graph);
  Result<Plan> finish();

 private:
  RankProgram& program() { return plan_.programs[0]; }
  Result<BufferId> state_buffer(Role role, const std::string& name, const TensorType& type);
  BufferId add_buffer(std::string name, const TensorType& type, BufferKind kind);
  Status add_state_buffers(const Graph& graph);
  /// A launch without inputs and outputs, named after the piece of `op`.
  Launch start_launch(const Op& op);
  Status add_piece(const GraphView& view, const InputIndex& names, const std::vector<OpId>& ops);
  Status add_communication(const Graph& graph, const Op& op);
  Result<int32_t> group_index(const std::string& name);
  SubgraphId add_subgraph(Graph body, std::vector<int32_t> aliases, const std::string& name);
  Status bind_inputs(const Graph& graph, const std::vector<ValueId>& inputs, Launch& launch);
  Status bind_outputs(const Graph& graph, const std::vector<ValueId>& outputs,
                      const std::vector<int32_t>& aliases, Launch& launch);
  LaunchInput edge_to(BufferId buffer, const Launch& launch);
  int32_t segment_index(const std::string& name);
  void order_lane();
  void sort_buffers();

  Plan plan_;
  std::map<std::pair<Role, std::string>, BufferId> state_;
  // Of the graph that is being cut:
  const Graph* source_ = nullptr;
  CutGraph cut_;
  std::unordered_map<ValueId, BufferId> activations_;
  std::unordered_map<ValueId, const GraphOutput*> named_;
  std::map<ValueId, const GraphOutput*> handed_over_;
  std::unordered_map<uint64_t, std::vector<SubgraphId>> by_hash_;
  std::unordered_map<std::string, int32_t> names_;  // of subgraphs: how often given
  std::vector<LaunchId> last_writer_;               // by buffer
};

BufferId Partitioner::add_buffer(std::string name, const TensorType& type, BufferKind kind) {
  Buffer buffer;
  buffer.name = std::move(name);
  buffer.type = type;
  buffer.kind = kind;
  buffer.bytes = storage_bytes(type, plan_.storage);
  // Two slots where there are two micro-batches: the feeder fills one while the other is in use.
  if (kind == BufferKind::kBatch) buffer.num_slots = std::min(2, program().num_micro_batches);
  if (kind == BufferKind::kWorkspace) buffer.bytes = 0;  // until plan_memory
  program().buffers.push_back(std::move(buffer));
  last_writer_.push_back(kNoLaunch);
  return static_cast<BufferId>(program().buffers.size()) - 1;
}

Result<BufferId> Partitioner::state_buffer(Role role, const std::string& name,
                                           const TensorType& type) {
  const auto known = state_.find({role, name});
  if (known != state_.end()) {
    const Buffer& buffer = program().buffers[static_cast<size_t>(known->second)];
    if (buffer.type == type) return known->second;
    return invalid_plan(fmt::format("{} \"{}\" is {} and {}", to_string(role), name,
                                    buffer.type.to_string(), type.to_string()));
  }
  if (role == Role::kActivation) {
    return invalid_plan("a whole graph has activation \"" + name + "\" as input or output");
  }
  const BufferId id = add_buffer(name, type, buffer_kind(role));
  state_[{role, name}] = id;
  return id;
}

Status Partitioner::add_state_buffers(const Graph& graph) {
  for (const GraphInput& input : graph.inputs()) {
    SGA_TRY(state_buffer(input.role, input.name, graph.type(input.value)).status());
  }
  for (const GraphOutput& output : graph.outputs()) {
    SGA_TRY(state_buffer(output.role, output.name, graph.type(output.value)).status());
  }
  return {};
}

int32_t Partitioner::segment_index(const std::string& name) {
  auto& segments = plan_.segments;
  const auto found = std::find(segments.begin(), segments.end(), name);
  if (found == segments.end()) segments.push_back(name);
  return static_cast<int32_t>(found - segments.begin());
}

SubgraphId Partitioner::add_subgraph(Graph body, std::vector<int32_t> aliases,
                                     const std::string& name) {
  const uint64_t hash = structure_hash(body);
  for (SubgraphId id : by_hash_[hash]) {
    // The hash finds candidates; only equal bodies, op by op, may stand in for each other.
    const Subgraph& known = plan_.subgraphs[static_cast<size_t>(id)];
    if (known.alias_input == aliases && same_body(known.body, body)) return id;
  }
  Subgraph subgraph;
  const int32_t number = ++names_[name];
  subgraph.name = number == 1 ? name : fmt::format("{}.{}", name, number);
  body.name = subgraph.name;
  for (const Op& op : body.ops()) {
    subgraph.flops += op_flops(body, op);
    subgraph.bytes_moved += op_bytes(body, op);
  }
  subgraph.body = std::move(body);
  subgraph.structure_hash = hash;
  subgraph.alias_input = std::move(aliases);
  const auto id = static_cast<SubgraphId>(plan_.subgraphs.size());
  plan_.subgraphs.push_back(std::move(subgraph));
  by_hash_[hash].push_back(id);
  return id;
}

LaunchInput Partitioner::edge_to(BufferId id, const Launch& launch) {
  const BufferKind kind = program().buffers[static_cast<size_t>(id)].kind;
  const LaunchId writer = last_writer_[static_cast<size_t>(id)];
  switch (kind) {
    case BufferKind::kBatch:
      return {id, kNoLaunch, EdgeKind::kBatch};
    case BufferKind::kAccumulator:
      if (fires_per_micro_batch(launch.phase)) return {id, kNoLaunch, EdgeKind::kState};
      return {id, writer, EdgeKind::kLastMicroBatch};
    case BufferKind::kMetric:
    case BufferKind::kActivation: {
      const bool prepared =
          writer != kNoLaunch && fires_per_micro_batch(launch.phase) &&
          program().launches[static_cast<size_t>(writer)].phase == Phase::kPrepare;
      return {id, writer, prepared ? EdgeKind::kPrepared : EdgeKind::kSameMicroBatch};
    }
    case BufferKind::kParameter:
    case BufferKind::kMoment:
    case BufferKind::kScalar:
    case BufferKind::kWorkspace:
      break;
  }
  return {id, kNoLaunch, EdgeKind::kState};
}

Status Partitioner::bind_inputs(const Graph& graph, const std::vector<ValueId>& inputs,
                                Launch& launch) {
  for (ValueId v : inputs) {
    const Value& value = graph.value(v);
    BufferId id = kNoBuffer;
    if (value.producer == kNoOp) {
      const GraphInput& input = graph.inputs()[value.result];
      SGA_ASSIGN(id, state_buffer(input.role, input.name, value.type));
    } else {
      id = activations_.at(v);
    }
    launch.inputs.push_back(edge_to(id, launch));
    const LaunchInput& edge = launch.inputs.back();
    const bool produced =
        edge.edge == EdgeKind::kSameMicroBatch || edge.edge == EdgeKind::kLastMicroBatch;
    if (produced && edge.producer == kNoLaunch) {
      return invalid_plan(fmt::format("launch \"{}\" reads \"{}\", which nothing computes",
                                      launch.name,
                                      program().buffers[static_cast<size_t>(id)].name));
    }
  }
  return {};
}

Status Partitioner::bind_outputs(const Graph& graph, const std::vector<ValueId>& outputs,
                                 const std::vector<int32_t>& aliases, Launch& launch) {
  const auto id = static_cast<LaunchId>(program().launches.size());
  for (size_t j = 0; j < outputs.size(); ++j) {
    const ValueId v = outputs[j];
    BufferId buffer = kNoBuffer;
    if (const auto output = named_.find(v); output != named_.end()) {
      SGA_ASSIGN(buffer, state_buffer(output->second->role, output->second->name, graph.type(v)));
      if (output->second->role == Role::kAccumulator && (aliases.empty() || aliases[j] < 0) &&
          program().num_micro_batches > 1) {
        return invalid_plan(
            "accumulator \"" + output->second->name +
            "\" keeps the last micro-batch only (accumulate_microbatches has not run)");
      }
    } else {
      buffer =
          add_buffer(fmt::format("{}:{}", launch.name, j), graph.type(v), BufferKind::kActivation);
    }
    activations_[v] = buffer;
    launch.outputs.push_back(buffer);
    last_writer_[static_cast<size_t>(buffer)] = id;
  }
  return {};
}

Status Partitioner::add_piece(const GraphView& view, const InputIndex& names,
                              const std::vector<OpId>& ops) {
  const Graph& graph = view.graph();
  std::vector<ValueId> inputs;
  std::vector<ValueId> outputs;
  Graph body = extract_ops(view, ops, &inputs, &outputs, handed_over_);
  Launch launch = start_launch(graph.op(ops[0]));
  SGA_TRY(bind_inputs(graph, inputs, launch));
  std::vector<int32_t> aliases;
  for (const GraphOutput& output : body.outputs()) {
    int32_t outer = -1;
    if (output.role != Role::kActivation) {
      const ValueId v = outputs[aliases.size()];
      outer = updated_input(graph, names, {v, output.role, output.name});
    }
    // An input that the piece overwrites without reading it has no place in the body: then the
    // output simply is that buffer.
    auto at = outer < 0 ? inputs.end()
                        : std::find(inputs.begin(), inputs.end(),
                                    graph.inputs()[static_cast<size_t>(outer)].value);
    if (outer < 0) {
      at = std::find_if(inputs.begin(), inputs.end(), [&](ValueId v) {
        const auto handed = handed_over_.find(v);
        return handed != handed_over_.end() && handed->second->name == output.name;
      });
    }
    aliases.push_back(at == inputs.end() ? -1 : static_cast<int32_t>(at - inputs.begin()));
  }
  SGA_TRY(bind_outputs(graph, outputs, aliases, launch));
  launch.workspace =
      add_buffer(launch.name + ":workspace", {DType::kU8, Shape{0}}, BufferKind::kWorkspace);
  const std::string segment = plan_.segments[static_cast<size_t>(launch.segment)];
  launch.subgraph = add_subgraph(std::move(body), std::move(aliases),
                                 fmt::format("{}.{}", stem(segment), to_string(launch.phase)));
  program().launches.push_back(std::move(launch));
  return {};
}

Launch Partitioner::start_launch(const Op& op) {
  const CutSegment& cut = cut_.pieces.at({op.phase, op.segment});
  const std::string segment =
      source_->segments().empty() ? "" : source_->segments()[static_cast<size_t>(cut.segment)];
  Launch launch;
  launch.name = fmt::format("{}.{}{}", segment, to_string(op.phase), cut.suffix);
  launch.phase = op.phase;
  launch.segment = segment_index(segment);
  return launch;
}

Result<int32_t> Partitioner::group_index(const std::string& name) {
  const auto known = std::find_if(plan_.groups.begin(), plan_.groups.end(),
                                  [&](const RankGroup& g) { return g.name == name; });
  if (known == plan_.groups.end()) {
    if (name != "dp" && name != "tp") {
      return invalid_plan("there is no group \"" + name + "\" of logical ranks");
    }
    plan_.groups.push_back({name, name == "dp" ? MeshAxis::kDp : MeshAxis::kTp, {}});
    return static_cast<int32_t>(plan_.groups.size()) - 1;
  }
  return static_cast<int32_t>(known - plan_.groups.begin());
}

Status Partitioner::add_communication(const Graph& graph, const Op& op) {
  Launch launch = start_launch(op);
  Communication& c = launch.communication;
  SGA_ASSIGN(c.group, group_index(op.attrs.text("group")));
  c.key = static_cast<int32_t>(program().launches.size());
  if (op.kind == OpKind::kAllGather) {
    launch.kind = LaunchKind::kAllGather;
    c.replay = ReplayKind::kRegather;
  } else if (op.kind == OpKind::kReduceScatter) {
    launch.kind = LaunchKind::kReduceScatter;
    c.replay = ReplayKind::kInput;
  } else {
    launch.kind = LaunchKind::kAllReduce;
    c.replay = ReplayKind::kResult;
    c.reduction = op.attrs.text("reduce") == "max" ? Reduction::kMax : Reduction::kSum;
  }
  SGA_TRY(bind_inputs(graph, op.operands, launch));
  SGA_TRY(bind_outputs(graph, op.results, {}, launch));
  program().launches.push_back(std::move(launch));
  return {};
}

Status Partitioner::add_graph(const Graph& graph) {
  source_ = &graph;
  cut_ = cut_communication(graph);
  SGA_ASSIGN(const Graph prepared, prepare_pieces(cut_.graph));
  activations_.clear();
  named_.clear();
  for (const GraphOutput& output : prepared.outputs()) named_.emplace(output.value, &output);
  handed_over_ = find_handed_over(prepared);
  for (const auto& [value, output] : handed_over_) named_.emplace(value, output);
  SGA_TRY(add_state_buffers(graph));
  for (const std::string& segment : graph.segments()) segment_index(segment);
  std::map<PieceKey, std::vector<OpId>> pieces;
  for (OpId o = 0; o < prepared.ops().size(); ++o) pieces[piece_of(prepared.op(o))].push_back(o);
  const GraphView view(prepared);
  const InputIndex names(prepared);
  for (const auto& [key, ops] : pieces) {
    const Op& first = prepared.op(ops[0]);
    const bool moves = op_info(first.kind).communicates;
    if (moves && ops.size() > 1) {
      return invalid_plan(
          fmt::format("an output of {} is read and written at once", op_info(first.kind).name));
    }
    SGA_TRY(moves ? add_communication(prepared, first) : add_piece(view, names, ops));
  }
  return {};
}

void Partitioner::order_lane() {
  // Launches were added in the order of one micro-batch, then reduce, then update.
  std::vector<Firing>& order = program().lanes[0].order;
  const auto& launches = program().launches;
  const auto add = [&](auto&& wanted, int32_t m) {
    for (size_t i = 0; i < launches.size(); ++i) {
      if (wanted(launches[i].phase)) order.push_back({static_cast<LaunchId>(i), m, 0});
    }
  };
  add([](Phase p) { return p == Phase::kPrepare; }, 0);
  for (int32_t m = 0; m < program().num_micro_batches; ++m) add(fires_per_micro_batch, m);
  add([](Phase p) { return p > Phase::kBackward; }, 0);
}

/// By kind, so that a plan reads well and persistent buffers stand together.
void Partitioner::sort_buffers() {
  auto& buffers = program().buffers;
  std::vector<size_t> order(buffers.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return buffers[a].kind < buffers[b].kind; });
  std::vector<Buffer> sorted;
  sorted.reserve(buffers.size());
  std::vector<BufferId> moved(buffers.size());
  for (size_t old : order) {
    moved[old] = static_cast<BufferId>(sorted.size());
    sorted.push_back(std::move(buffers[old]));
  }
  buffers = std::move(sorted);
  const auto fix = [&](BufferId& id) {
    if (id != kNoBuffer) id = moved[static_cast<size_t>(id)];
  };
  for (Launch& l : program().launches) {
    for (LaunchInput& input : l.inputs) fix(input.buffer);
    for (BufferId& output : l.outputs) fix(output);
    fix(l.workspace);
  }
}

Result<Plan> Partitioner::finish() {
  const int64_t firings =
      static_cast<int64_t>(program().launches.size()) * program().num_micro_batches;
  if (firings > kMaxFirings) {
    return invalid_argument(
        fmt::format("{} micro-batches of {} launches, expected at most {} in all",
                    program().num_micro_batches, program().launches.size(), kMaxFirings));
  }
  order_lane();
  sort_buffers();
  if (plan_.groups.empty()) {
    assign_live_ranges(program());
    SGA_TRY(verify_structure(plan_));
  }
  return std::move(plan_);
}

Status check_phases(const Graph& graph, Phase low, Phase high) {
  for (const Op& op : graph.ops()) {
    if (op.phase >= low && op.phase <= high) continue;
    return invalid_plan(
        fmt::format("graph \"{}\" has an op of phase {}", graph.name, to_string(op.phase)));
  }
  return {};
}

}  // namespace

Result<Plan> partition_subgraphs(const Graph& training, const Graph& update,
                                 int32_t num_micro_batches, StorageModel storage) {
  if (num_micro_batches < 1) {
    return invalid_argument(
        fmt::format("{} micro-batches, expected at least 1", num_micro_batches));
  }
  SGA_TRY(check_phases(training, Phase::kPrepare, Phase::kBackward));
  SGA_TRY(check_phases(update, Phase::kReduce, Phase::kUpdate));
  Partitioner partitioner(training.name, num_micro_batches, storage);
  SGA_TRY(partitioner.add_graph(training).with_context("training graph"));
  SGA_TRY(partitioner.add_graph(update).with_context("update graph"));
  return partitioner.finish();
}

Result<Plan> partition_forward(const Graph& forward, StorageModel storage) {
  SGA_TRY(check_phases(forward, Phase::kPrepare, Phase::kForward));
  Partitioner partitioner(forward.name, 1, storage);
  SGA_TRY(partitioner.add_graph(forward));
  return partitioner.finish();
}

}  // namespace sgactor::graph
