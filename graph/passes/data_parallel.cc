#include "graph/passes/data_parallel.h"

#include "graph/base/units.h"
#include "graph/ir/builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace sgactor::graph {
namespace {

using Place = std::pair<Phase, int32_t>;  // phase and segment

class DataParallelPass {
 public:
  DataParallelPass(const Graph& source, const DataParallel& options)
      : source_(source), options_(options), builder_(out_), map_(source.values().size(), kNoValue) {
    out_.name = source.name;
    for (const std::string& segment : source.segments()) out_.segment_index(segment);
  }

  Result<Graph> run() {
    add_inputs();
    find_uses();
    if (options_.zero_stage < 3) gather_for_step();
    SGA_TRY(find_buckets());
    for (OpId o = 0; o < source_.ops().size(); ++o) copy(o);
    for (const GraphOutput& output : source_.outputs()) {
      const auto sharded = sharded_.find(output.name);
      const bool is_sharded = output.role == Role::kAccumulator && sharded != sharded_.end();
      out_.add_output(is_sharded ? sharded->second : map_[output.value], output.role, output.name);
    }
    SGA_TRY(builder_.status());
    return std::move(out_);
  }

 private:
  struct Parameter {
    ValueId shard = kNoValue;
    TensorType whole;
    std::vector<Place> uses;            // in order of ops, each once
    ValueId gathered = kNoValue;        // stages 1 and 2
    std::map<Place, ValueId> readable;  // with the whole shape, by reader
  };
  struct Bucket {
    std::vector<size_t> outputs;  // indices of the source's outputs
    OpId last = 0;                // behind which it is complete
  };

  void add_inputs();
  void find_uses();
  void gather(const std::vector<size_t>& parameters, Place place, std::vector<ValueId>* results);
  void gather_for_step();
  Status find_buckets();
  ValueId operand(ValueId v, Place reader);
  void copy(OpId o);
  void sum(OpId o, Place place);
  void scatter(const Bucket& bucket, Place place);

  const Graph& source_;
  const DataParallel& options_;
  Graph out_;
  Builder builder_;
  std::vector<ValueId> map_;
  std::vector<Parameter> parameters_;
  std::map<ValueId, size_t> parameter_of_;     // source input -> parameters_
  std::map<Place, std::vector<size_t>> used_;  // stage 3: parameters of a piece
  std::map<Place, Bucket> buckets_;
  std::map<OpId, std::vector<size_t>> made_by_;  // outputs in buckets, by the op that makes them
  std::map<size_t, ValueId> summed_;             // by output
  std::map<std::string, ValueId> sharded_;       // accumulator name -> its piece
};

void DataParallelPass::add_inputs() {
  for (const GraphInput& input : source_.inputs()) {
    TensorType type = source_.type(input.value);
    if (input.role == Role::kParameter) {
      parameter_of_[input.value] = parameters_.size();
      parameters_.push_back({kNoValue, type, {}, kNoValue, {}});
      type.shape = Shape{options_.piece(type.num_elements())};
    }
    const ValueId added = builder_.input(type, input.role, input.name);
    if (input.role == Role::kParameter) {
      parameters_.back().shard = added;
    } else {
      map_[input.value] = added;
    }
  }
}

void DataParallelPass::find_uses() {
  for (const Op& op : source_.ops()) {
    const Place place{op.phase, op.segment};
    for (ValueId v : op.operands) {
      const auto found = parameter_of_.find(v);
      if (found == parameter_of_.end()) continue;
      std::vector<Place>& uses = parameters_[found->second].uses;
      if (std::find(uses.begin(), uses.end(), place) == uses.end()) uses.push_back(place);
    }
  }
  for (size_t i = 0; i < parameters_.size(); ++i) {
    for (const Place& place : parameters_[i].uses) used_[place].push_back(i);
  }
}

/// One all_gather of these parameters; `results` receives them flat.
void DataParallelPass::gather(const std::vector<size_t>& parameters, Place place,
                              std::vector<ValueId>* results) {
  std::vector<ValueId> shards;
  std::vector<int64_t> sizes;
  for (size_t i : parameters) {
    shards.push_back(parameters_[i].shard);
    sizes.push_back(parameters_[i].whole.num_elements());
  }
  Attrs attrs;
  attrs.set("group", std::string("dp"));
  attrs.set("members", int64_t{options_.degree});
  attrs.set("sizes", sizes);
  builder_.set_phase(place.first);
  builder_.set_segment(place.second);
  *results = builder_.op(OpKind::kAllGather, shards, attrs);
}

void DataParallelPass::gather_for_step() {
  std::map<int32_t, std::vector<size_t>> by_segment;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (!parameters_[i].uses.empty()) by_segment[parameters_[i].uses[0].second].push_back(i);
  }
  for (const auto& [segment, parameters] : by_segment) {
    std::vector<ValueId> results;
    gather(parameters, {Phase::kPrepare, segment}, &results);
    for (size_t k = 0; k < parameters.size(); ++k) parameters_[parameters[k]].gathered = results[k];
  }
}

Status DataParallelPass::find_buckets() {
  if (!options_.shards_gradients()) return {};
  std::set<std::string> used_again;
  for (const GraphOutput& output : source_.outputs()) {
    if (const size_t mark = output.name.find('#'); mark != std::string::npos) {
      used_again.insert(output.name.substr(0, mark));
    }
  }
  for (size_t i = 0; i < source_.outputs().size(); ++i) {
    const GraphOutput& output = source_.outputs()[i];
    if (output.role != Role::kAccumulator || !output.name.starts_with("grad/")) continue;
    if (used_again.contains(output.name.substr(0, output.name.find('#')))) continue;
    const OpId producer = source_.value(output.value).producer;
    if (producer == kNoOp) return invalid_plan("\"" + output.name + "\" is an input of the graph");
    const DType dtype = source_.type(output.value).dtype;
    if (dtype != DType::kF32 && dtype != DType::kF64) {
      return invalid_plan(
          fmt::format("gradient \"{}\" is {}, expected f32", output.name, dtype_name(dtype)));
    }
    const Op& op = source_.op(producer);
    Bucket& bucket = buckets_[{op.phase, op.segment}];
    bucket.outputs.push_back(i);
    made_by_[producer].push_back(i);
    bucket.last = std::max(bucket.last, producer);
  }
  return {};
}

ValueId DataParallelPass::operand(ValueId v, Place reader) {
  const auto found = parameter_of_.find(v);
  if (found == parameter_of_.end()) return map_[v];
  Parameter& parameter = parameters_[found->second];
  if (const auto known = parameter.readable.find(reader); known != parameter.readable.end()) {
    return known->second;
  }
  if (options_.zero_stage < 3) {
    builder_.set_phase(reader.first);
    builder_.set_segment(reader.second);
    return parameter.readable[reader] =
               builder_.reshape(parameter.gathered, parameter.whole.shape.dims());
  }
  const std::vector<size_t>& together = used_[reader];
  std::vector<ValueId> results;
  gather(together, reader, &results);
  for (size_t k = 0; k < together.size(); ++k) {
    Parameter& p = parameters_[together[k]];
    p.readable[reader] = builder_.reshape(results[k], p.whole.shape.dims());
  }
  return parameter.readable[reader];
}

void DataParallelPass::copy(OpId o) {
  const Op& op = source_.op(o);
  const Place place{op.phase, op.segment};
  std::vector<ValueId> operands;
  for (ValueId v : op.operands) operands.push_back(operand(v, place));
  std::vector<TensorType> types;
  for (ValueId v : op.results) types.push_back(source_.type(v));
  const OpId copied = out_.add_op(op.kind, operands, op.attrs, types, op.phase, op.segment);
  for (size_t r = 0; r < op.results.size(); ++r) map_[op.results[r]] = out_.op(copied).results[r];
  sum(o, place);
  const auto bucket = buckets_.find(place);
  if (bucket != buckets_.end() && bucket->second.last == o) scatter(bucket->second, place);
}

/// A gradient is the sum of its micro-batches also where there is one: added to zero in f32, as an
/// accumulator adds it, so that fusion and precision treat both alike and the bits agree.
void DataParallelPass::sum(OpId o, Place place) {
  const auto made = made_by_.find(o);
  if (made == made_by_.end()) return;
  builder_.set_phase(place.first);
  builder_.set_segment(place.second);
  for (size_t i : made->second) {
    const ValueId gradient = map_[source_.outputs()[i].value];
    const ValueId zero = builder_.constant(0, builder_.type(gradient));
    summed_[i] = builder_.accumulate(zero, gradient);
  }
}

void DataParallelPass::scatter(const Bucket& bucket, Place place) {
  std::vector<ValueId> gradients;
  std::vector<int64_t> pieces;
  for (size_t i : bucket.outputs) {
    const ValueId v = source_.outputs()[i].value;
    gradients.push_back(summed_[i]);
    pieces.push_back(options_.piece(source_.type(v).num_elements()));
  }
  Attrs attrs;
  attrs.set("group", std::string("dp"));
  attrs.set("members", int64_t{options_.degree});
  attrs.set("pieces", pieces);
  builder_.set_phase(place.first);
  builder_.set_segment(place.second);
  const std::vector<ValueId> results = builder_.op(OpKind::kReduceScatter, gradients, attrs);
  for (size_t k = 0; k < bucket.outputs.size(); ++k) {
    sharded_[source_.outputs()[bucket.outputs[k]].name] = results[k];
  }
}

}  // namespace

int64_t DataParallel::piece(int64_t elements) const {
  const int64_t chunks = (elements + chunk - 1) / chunk;
  return (chunks + degree - 1) / degree * chunk;
}

Result<Graph> apply_data_parallel(const Graph& training, const DataParallel& options) {
  if (options.degree < 1 || options.zero_stage < 0 || options.zero_stage > 3 || options.chunk < 1) {
    return invalid_argument(
        fmt::format("data parallel degree {}, ZeRO stage {}, chunk {}: expected >= 1, 0 to 3, >= 1",
                    options.degree, options.zero_stage, options.chunk));
  }
  if (!options.shards_state()) return training;
  return DataParallelPass(training, options).run();
}

}  // namespace sgactor::graph
