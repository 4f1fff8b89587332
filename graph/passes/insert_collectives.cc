#include "graph/passes/insert_collectives.h"

#include "graph/ir/builder.h"
#include "graph/ir/op_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace sgactor::graph {
namespace {

class Inserter {
 public:
  Inserter(const Graph& source, const ShardingDecisions& decisions, const ShardingOptions& options,
           bool with_index)
      : source_(source),
        d_(decisions),
        o_(options),
        b_(graph_),
        with_index_(with_index),
        forms_(source.values().size()) {}

  Result<Graph> run();
  /// Was the rank's index asked for?
  [[nodiscard]] bool used_index() const { return used_index_; }

 private:
  Status check() const;
  void add_inputs();
  [[nodiscard]] int32_t segment_of_conversion(const Op& reader, ValueId v) const;
  Status insert_op(OpId o);
  Status bind_results(const Op& op, const ShardingStrategy& s, const std::vector<ValueId>& results);
  std::vector<ValueId> run_local(const Op& op, const ShardingStrategy& s,
                                 std::vector<ValueId> operands);
  std::vector<ValueId> cross_entropy(const Op& op, const std::vector<ValueId>& operands);
  ValueId find_form(ValueId v, Placement wanted);
  ValueId convert(ValueId v, Placement wanted);
  std::vector<ValueId> all_reduce(std::vector<ValueId> values, const char* reduce);
  ValueId gather(ValueId local, const TensorType& whole, int dim);
  ValueId reduce_scatter(ValueId partial, int dim);
  ValueId slice(ValueId whole, int dim);
  /// The dim to the front, or back from there.
  ValueId move_dim(ValueId x, int dim, bool to_front);
  ValueId index() {
    used_index_ = true;
    return index_;
  }

  const Graph& source_;
  const ShardingDecisions& d_;
  const ShardingOptions& o_;
  Graph graph_;
  Builder b_;
  bool with_index_;
  bool used_index_ = false;
  ValueId index_ = kNoValue;
  std::vector<std::vector<std::pair<Placement, ValueId>>> forms_;  ///< of each source value
};

Status Inserter::check() const {
  if (d_.inputs.size() != source_.inputs().size() || d_.ops.size() != source_.ops().size() ||
      d_.outputs.size() != source_.outputs().size()) {
    return invalid_plan("the sharding decisions are another graph's");
  }
  for (OpId o = 0; o < source_.ops().size(); ++o) {
    const ShardingStrategy& s = d_.ops[o].strategy;
    if (s.operands.size() == source_.op(o).operands.size() &&
        s.results.size() == source_.op(o).results.size()) {
      continue;
    }
    return invalid_plan(fmt::format("the strategy of op {} is another op's", o));
  }
  return {};
}

void Inserter::add_inputs() {
  graph_.name = source_.name;
  for (const std::string& segment : source_.segments()) graph_.segment_index(segment);
  for (size_t i = 0; i < source_.inputs().size(); ++i) {
    const GraphInput& input = source_.inputs()[i];
    const TensorType type = local_type(source_.type(input.value), d_.inputs[i], o_.members);
    forms_[input.value] = {{d_.inputs[i], graph_.add_input(type, input.role, input.name)}};
  }
  if (with_index_) {
    index_ = graph_.add_input({DType::kI32, Shape{}}, Role::kScalar, o_.group + "_index");
  }
}

std::vector<ValueId> Inserter::all_reduce(std::vector<ValueId> values, const char* reduce) {
  Attrs attrs;
  attrs.set("group", o_.group);
  attrs.set("reduce", std::string(reduce));
  return b_.op(OpKind::kAllReduce, std::move(values), std::move(attrs));
}

ValueId Inserter::move_dim(ValueId x, int dim, bool to_front) {
  if (dim == 0) return x;
  std::vector<int64_t> perm(static_cast<size_t>(b_.type(x).shape.rank()));
  std::iota(perm.begin(), perm.end(), 0);
  const auto at = perm.begin() + dim;
  if (to_front) {
    std::rotate(perm.begin(), at, at + 1);
  } else {
    std::rotate(perm.begin(), perm.begin() + 1, at + 1);
  }
  return b_.transpose(x, std::move(perm));
}

ValueId Inserter::gather(ValueId local, const TensorType& whole, int dim) {
  const ValueId x = move_dim(local, dim, true);
  std::vector<int64_t> dims = b_.type(x).shape.dims();
  dims[0] = whole.shape.dim(dim);
  Attrs attrs;
  attrs.set("group", o_.group);
  attrs.set("members", int64_t{o_.members});
  attrs.set("sizes", std::vector<int64_t>{whole.num_elements()});
  const ValueId flat = b_.reshape(x, {b_.type(x).num_elements()});
  const ValueId all = b_.op1(OpKind::kAllGather, {flat}, std::move(attrs));
  return move_dim(b_.reshape(all, std::move(dims)), dim, false);
}

ValueId Inserter::reduce_scatter(ValueId partial, int dim) {
  const ValueId x = move_dim(partial, dim, true);
  std::vector<int64_t> dims = b_.type(x).shape.dims();
  dims[0] = shard_extent(dims[0], o_.members);
  Attrs attrs;
  attrs.set("group", o_.group);
  attrs.set("members", int64_t{o_.members});
  attrs.set("pieces", std::vector<int64_t>{Shape(dims).num_elements()});
  const ValueId piece = b_.op1(OpKind::kReduceScatter, {x}, std::move(attrs));
  return move_dim(b_.reshape(piece, std::move(dims)), dim, false);
}

ValueId Inserter::slice(ValueId whole, int dim) {
  Attrs attrs;
  attrs.set("axis", int64_t{dim});
  attrs.set("members", int64_t{o_.members});
  return b_.op1(OpKind::kSliceShard, {whole, index()}, std::move(attrs));
}

ValueId Inserter::find_form(ValueId v, Placement wanted) {
  for (const auto& [placement, value] : forms_[v]) {
    if (placement == wanted) return value;
  }
  return kNoValue;
}

ValueId Inserter::convert(ValueId v, Placement wanted) {
  if (const ValueId there = find_form(v, wanted); there != kNoValue) return there;
  ValueId made = kNoValue;
  const auto [native, value] = forms_[v][0];
  if (wanted.is_partial()) {
    b_.fail(internal_error("a value cannot be made partial"));
    return kNoValue;
  }
  const ValueId whole = find_form(v, Placement::replicate());
  if (wanted.is_shard() && whole != kNoValue) {
    made = slice(whole, wanted.dim);
  } else if (wanted.is_shard() && native.is_partial()) {
    made = reduce_scatter(value, wanted.dim);
  } else if (wanted.is_shard()) {
    made = slice(convert(v, Placement::replicate()), wanted.dim);
  } else if (native.is_partial()) {
    const std::vector<ValueId> sums = all_reduce({value}, "sum");
    made = sums.empty() ? kNoValue : sums[0];
  } else {
    made = gather(value, source_.type(v), native.dim);
  }
  forms_[v].emplace_back(wanted, made);
  return made;
}

/// Megatron-LM's vocab_parallel_cross_entropy: the maximum of the whole row first, so that the
/// ranks' sums of powers have one scale.
std::vector<ValueId> Inserter::cross_entropy(const Op& op, const std::vector<ValueId>& operands) {
  Attrs vocab;
  vocab.set("vocab", source_.type(op.operands[0]).shape.dim(1));
  const ValueId local_max = b_.op1(OpKind::kCrossEntropyMax, {operands[0], index()}, vocab);
  const ValueId max = all_reduce({local_max}, "max")[0];
  std::vector<ValueId> parts =
      b_.op(OpKind::kCrossEntropyShard, {operands[0], operands[1], max, index()}, vocab);
  parts = all_reduce(std::move(parts), "sum");
  return b_.op(OpKind::kCrossEntropyCombine, {operands[1], max, parts[0], parts[1]});
}

std::vector<ValueId> Inserter::run_local(const Op& op, const ShardingStrategy& s,
                                         std::vector<ValueId> operands) {
  Attrs attrs = op.attrs;
  const TensorType& whole = source_.type(op.results[0]);
  switch (op.kind) {
    case OpKind::kReshape:
    case OpKind::kBroadcast:
    case OpKind::kConstant:
      attrs.set("shape", local_type(whole, s.results[0], o_.members).shape.dims());
      break;
    default:
      break;
  }
  if (!s.local) return b_.op(op.kind, std::move(operands), std::move(attrs));
  switch (*s.local) {
    case OpKind::kCrossEntropyShard:
      return cross_entropy(op, operands);
    case OpKind::kGatherShard:
      attrs.set("rows", source_.type(op.operands[0]).shape.dim(0));
      break;
    case OpKind::kScatterAddShard:
      attrs.set("shard_rows", shard_extent(whole.shape.dim(0), o_.members));
      break;
    case OpKind::kCrossEntropyShardGrad:
      attrs.set("vocab", whole.shape.dim(1));
      break;
    default:
      break;
  }
  operands.push_back(index());
  return b_.op(*s.local, std::move(operands), std::move(attrs));
}

Status Inserter::bind_results(const Op& op, const ShardingStrategy& s,
                              const std::vector<ValueId>& results) {
  for (size_t i = 0; i < op.results.size(); ++i) {
    const TensorType expected = local_type(source_.type(op.results[i]), s.results[i], o_.members);
    if (b_.type(results[i]) != expected) {
      return internal_error(fmt::format("result {} of {} is {}, its placement {} says {}", i,
                                        op_info(op.kind).name, b_.type(results[i]).to_string(),
                                        s.results[i].to_string(), expected.to_string()));
    }
    forms_[op.results[i]] = {{s.results[i], results[i]}};
  }
  return {};
}

/// The producer's segment, so that every reader finds it done. Segments of the backward run from
/// the last to the first: what a forward made in an earlier one would come too late there.
int32_t Inserter::segment_of_conversion(const Op& reader, ValueId v) const {
  const OpId producer = source_.value(v).producer;
  if (producer == kNoOp) return reader.segment;
  const Op& from = source_.op(producer);
  const bool turns = reader.phase == Phase::kBackward && from.phase != Phase::kBackward;
  return turns ? std::max(from.segment, reader.segment) : from.segment;
}

Status Inserter::insert_op(OpId o) {
  const Op& op = source_.op(o);
  const ShardingStrategy& s = d_.ops[o].strategy;
  b_.set_phase(op.phase);
  std::vector<ValueId> operands;
  for (size_t i = 0; i < op.operands.size(); ++i) {
    b_.set_segment(segment_of_conversion(op, op.operands[i]));
    operands.push_back(convert(op.operands[i], s.operands[i]));
  }
  b_.set_segment(op.segment);
  const std::vector<ValueId> results = run_local(op, s, std::move(operands));
  SGA_TRY(b_.status().with_context(fmt::format("op {} {}", o, op_info(op.kind).name)));
  return bind_results(op, s, results);
}

Result<Graph> Inserter::run() {
  SGA_TRY(check());
  add_inputs();
  for (OpId o = 0; o < source_.ops().size(); ++o) SGA_TRY(insert_op(o));
  for (size_t i = 0; i < source_.outputs().size(); ++i) {
    const GraphOutput& output = source_.outputs()[i];
    const OpId producer = source_.value(output.value).producer;
    if (producer != kNoOp) {
      b_.set_phase(source_.op(producer).phase);
      b_.set_segment(source_.op(producer).segment);
    }
    graph_.add_output(convert(output.value, d_.outputs[i]), output.role, output.name);
  }
  SGA_TRY(b_.status());
  return std::move(graph_);
}

}  // namespace

Result<ShardedTraining> insert_collectives(const Graph& training,
                                           const ShardingDecisions& decisions,
                                           const ShardingOptions& options) {
  if (options.members == 1) return ShardedTraining{training, decisions.parameters};
  // Inputs stand in front of all ops, so whether the index is one has to be known first.
  Inserter trial(training, decisions, options, true);
  SGA_ASSIGN(Graph graph, trial.run());
  if (!trial.used_index()) {
    Inserter without(training, decisions, options, false);
    SGA_ASSIGN(graph, without.run());
  }
  return ShardedTraining{std::move(graph), decisions.parameters};
}

}  // namespace sgactor::graph
