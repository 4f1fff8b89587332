#include "graph/passes/build_update.h"

#include "graph/ir/builder.h"
#include "graph/passes/differentiate.h"
#include "graph/passes/rewrite.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <unordered_map>
#include <unordered_set>

namespace sgactor::graph {
namespace {

constexpr std::string_view kNormSegment = "norm";

std::string accumulator_name(const std::string& parameter, int32_t use) {
  return use == 0 ? "grad/" + parameter : fmt::format("grad/{}#{}", parameter, use);
}

class UpdateBuilder {
 public:
  UpdateBuilder(const std::vector<UpdateParameter>& parameters, const OptimizerOptions& options,
                const DataParallel& dp)
      : parameters_(parameters), options_(options), dp_(dp), builder_(graph_) {}

  Result<Graph> run();

 private:
  struct Tensors {
    ValueId p = kNoValue, m = kNoValue, v = kNoValue;
    std::vector<ValueId> accumulators;
    ValueId g = kNoValue;
    ValueId squares = kNoValue;  // if they come in
  };
  /// f32 scalars that every parameter's update reads.
  struct Scalars {
    ValueId lr = kNoValue, clip = kNoValue, bias1 = kNoValue, bias2 = kNoValue;
  };

  Status check() const;
  void add_inputs();
  /// A segment's parameters, in order of parameters.
  struct Segment {
    int32_t index = 0;
    std::vector<size_t> parameters;
  };
  std::vector<Segment> list_segments();
  /// Type of p, m and v.
  [[nodiscard]] TensorType state_type(const UpdateParameter& p) const;
  [[nodiscard]] int64_t num_chunks(int64_t elements) const {
    return (elements + chunk_ - 1) / chunk_;
  }
  /// Adds uses up, sums over dp.
  void reduce(const Segment& segment);
  void sum_over_ranks(const std::vector<size_t>& parameters);
  /// Chunked sums of squares of a segment's parameters, concatenated.
  ValueId sum_squares(const Segment& segment, bool tp_sharded);
  /// Sum of the chunks of the parameters that are or are not cut along tp; kNoValue if none.
  ValueId total(const std::vector<Segment>& segments, bool tp_sharded);
  ValueId gather_chunks(ValueId all, const std::vector<Segment>& segments, bool tp_sharded);
  ValueId number(double value) { return builder_.constant(value, {DType::kF64, {}}); }
  ValueId norm_f64(const std::vector<Segment>& segments);
  ValueId learning_rate_f64();
  ValueId bias_correction(double beta);
  Scalars add_scalars(const std::vector<Segment>& segments);
  void update(const UpdateParameter& parameter, Tensors& t, const Scalars& s);

  const std::vector<UpdateParameter>& parameters_;
  const OptimizerOptions& options_;
  const DataParallel& dp_;
  int64_t chunk_ = 1;
  Graph graph_;
  Builder builder_;
  std::vector<Tensors> tensors_;  // by parameter
  ValueId step_ = kNoValue;
};

Status UpdateBuilder::check() const {
  const OptimizerOptions& o = options_;
  const auto bad = [](std::string_view name, std::string_view expected) {
    return invalid_argument(fmt::format("optimizer.{}: expected {}", name, expected));
  };
  if (!(o.lr >= 0) || !std::isfinite(o.lr)) return bad("lr", "a number >= 0");
  if (!(o.min_lr >= 0) || !std::isfinite(o.min_lr)) return bad("min_lr", "a number >= 0");
  if (!(o.beta1 >= 0 && o.beta1 < 1)) return bad("beta1", "a number in [0, 1)");
  if (!(o.beta2 >= 0 && o.beta2 < 1)) return bad("beta2", "a number in [0, 1)");
  if (!(o.eps > 0) || !std::isfinite(o.eps)) return bad("eps", "a number > 0");
  if (!std::isfinite(o.weight_decay)) return bad("weight_decay", "a finite number");
  if (std::isnan(o.max_grad_norm)) return bad("max_grad_norm", "a number");
  if (o.norm_chunk < 0) return bad("norm_chunk", "an integer >= 0");
  if (parameters_.empty()) return invalid_plan("there is no parameter to update");
  std::unordered_set<std::string> names;
  for (const UpdateParameter& p : parameters_) {
    if (!names.insert(p.spec.name).second) {
      return invalid_plan("parameter \"" + p.spec.name + "\" is given twice");
    }
    if (p.spec.type.dtype != DType::kF32) {
      return invalid_plan(fmt::format("parameter \"{}\" is {}, expected f32", p.spec.name,
                                      p.spec.type.to_string()));
    }
    if (p.num_uses < 1) return invalid_plan("parameter \"" + p.spec.name + "\" has no gradient");
    if (p.squared && (dp_.degree > 1 || p.num_uses > 1)) {
      return invalid_plan("squares of \"" + p.spec.name + "\" are of a part of its gradient");
    }
    if (p.segment == kNormSegment) {
      return invalid_plan("parameter \"" + p.spec.name +
                          "\" is in segment \"norm\", which is taken");
    }
  }
  return {};
}

TensorType UpdateBuilder::state_type(const UpdateParameter& p) const {
  if (!dp_.shards_state()) return p.spec.type;
  return {p.spec.type.dtype, Shape{dp_.piece(p.spec.type.num_elements())}};
}

void UpdateBuilder::add_inputs() {
  tensors_.resize(parameters_.size());
  for (size_t i = 0; i < parameters_.size(); ++i) {
    tensors_[i].p =
        builder_.input(state_type(parameters_[i]), Role::kParameter, parameters_[i].spec.name);
  }
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const std::string& name = parameters_[i].spec.name;
    tensors_[i].m = builder_.input(state_type(parameters_[i]), Role::kMoment, "m/" + name);
    tensors_[i].v = builder_.input(state_type(parameters_[i]), Role::kMoment, "v/" + name);
  }
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const UpdateParameter& p = parameters_[i];
    for (int32_t use = 0; use < p.num_uses; ++use) {
      tensors_[i].accumulators.push_back(builder_.input(p.reduced ? state_type(p) : p.spec.type,
                                                        Role::kAccumulator,
                                                        accumulator_name(p.spec.name, use)));
    }
    if (!p.squared) continue;
    const Shape chunks{num_chunks(p.spec.type.num_elements())};
    tensors_[i].squares =
        builder_.input({DType::kF32, chunks}, Role::kAccumulator, squares_name(p.spec.name));
  }
  step_ = builder_.input({DType::kF64, {}}, Role::kScalar, "step");
}

std::vector<UpdateBuilder::Segment> UpdateBuilder::list_segments() {
  std::vector<Segment> segments;  // by first parameter
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const int32_t index = graph_.segment_index(parameters_[i].segment);
    auto at = std::find_if(segments.begin(), segments.end(),
                           [&](const Segment& s) { return s.index == index; });
    if (at == segments.end()) at = segments.insert(segments.end(), {index, {}});
    at->parameters.push_back(i);
  }
  return segments;
}

void UpdateBuilder::sum_over_ranks(const std::vector<size_t>& parameters) {
  if (parameters.empty()) return;
  std::vector<ValueId> gradients;
  std::vector<int64_t> pieces;
  for (size_t i : parameters) {
    gradients.push_back(tensors_[i].g);
    pieces.push_back(dp_.piece(builder_.type(tensors_[i].g).num_elements()));
  }
  Attrs attrs;
  attrs.set("group", std::string("dp"));
  if (dp_.shards_state()) {
    attrs.set("members", int64_t{dp_.degree});
    attrs.set("pieces", pieces);
  } else {
    attrs.set("reduce", std::string("sum"));
  }
  const OpKind kind = dp_.shards_state() ? OpKind::kReduceScatter : OpKind::kAllReduce;
  const std::vector<ValueId> sums = builder_.op(kind, gradients, attrs);
  for (size_t k = 0; k < parameters.size(); ++k) tensors_[parameters[k]].g = sums[k];
}

void UpdateBuilder::reduce(const Segment& segment) {
  builder_.set_segment(segment.index);
  std::vector<size_t> wanted;
  for (size_t i : segment.parameters) {
    Tensors& t = tensors_[i];
    t.g = t.accumulators[0];
    for (size_t use = 1; use < t.accumulators.size(); ++use) {
      t.g = builder_.add(t.g, t.accumulators[use]);
    }
    if (dp_.degree > 1 && !parameters_[i].reduced) wanted.push_back(i);
  }
  sum_over_ranks(wanted);
}

ValueId UpdateBuilder::sum_squares(const Segment& segment, bool tp_sharded) {
  builder_.set_segment(segment.index);
  std::vector<ValueId> parts;
  for (size_t i : segment.parameters) {
    if (parameters_[i].tp_sharded != tp_sharded) continue;
    if (tensors_[i].squares != kNoValue) {
      parts.push_back(tensors_[i].squares);
      continue;
    }
    Attrs attrs;
    attrs.set("chunk", chunk_);
    parts.push_back(builder_.op1(OpKind::kSumSquares, {tensors_[i].g}, attrs));
  }
  if (parts.size() < 2) return parts.empty() ? kNoValue : parts[0];
  return builder_.concat(std::move(parts), 0);
}

/// From a rank's chunk sums to those of whole parameters, in the order that one rank alone has.
ValueId UpdateBuilder::gather_chunks(ValueId all, const std::vector<Segment>& segments,
                                     bool tp_sharded) {
  const int64_t local = builder_.type(all).num_elements();
  Attrs attrs;
  attrs.set("group", std::string("dp"));
  attrs.set("members", int64_t{dp_.degree});
  attrs.set("sizes", std::vector<int64_t>{local * dp_.degree});
  const ValueId flat = builder_.op1(OpKind::kAllGather, {all}, attrs);
  const ValueId by_rank = builder_.reshape(flat, {dp_.degree, local});
  std::vector<ValueId> parts;
  int64_t offset = 0;
  for (const Segment& segment : segments) {
    for (size_t i : segment.parameters) {
      if (parameters_[i].tp_sharded != tp_sharded) continue;
      const int64_t elements = parameters_[i].spec.type.num_elements();
      const int64_t here = num_chunks(dp_.piece(elements));
      const ValueId mine = builder_.slice(by_rank, 1, offset, here);
      const ValueId chunks = builder_.reshape(mine, {here * dp_.degree});
      parts.push_back(builder_.slice(chunks, 0, 0, num_chunks(elements)));
      offset += here;
    }
  }
  return parts.size() == 1 ? parts[0] : builder_.concat(std::move(parts), 0);
}

ValueId UpdateBuilder::total(const std::vector<Segment>& segments, bool tp_sharded) {
  std::vector<ValueId> partials;
  for (const Segment& segment : segments) {
    const ValueId chunks = sum_squares(segment, tp_sharded);
    if (chunks != kNoValue) partials.push_back(chunks);
  }
  if (partials.empty()) return kNoValue;
  builder_.set_segment(kNormSegment);
  ValueId all = partials.size() == 1 ? partials[0] : builder_.concat(partials, 0);
  if (dp_.shards_state()) all = gather_chunks(all, segments, tp_sharded);
  ValueId sum = builder_.op1(OpKind::kTreeSum, {all});
  if (!tp_sharded) return sum;
  Attrs attrs;
  attrs.set("group", std::string("tp"));
  attrs.set("reduce", std::string("sum"));
  return builder_.op1(OpKind::kAllReduce, {sum}, attrs);
}

ValueId UpdateBuilder::norm_f64(const std::vector<Segment>& segments) {
  const ValueId whole = total(segments, false);
  const ValueId cut = total(segments, true);
  builder_.set_segment(kNormSegment);
  const ValueId sum = cut == kNoValue ? whole : whole == kNoValue ? cut : builder_.add(whole, cut);
  return builder_.sqrt(builder_.cast(sum, DType::kF64));
}

ValueId UpdateBuilder::learning_rate_f64() {
  const OptimizerOptions& o = options_;
  ValueId lr = number(o.lr);
  if (o.decay_steps > o.warmup_steps) {
    const auto start = static_cast<double>(std::max<int64_t>(o.warmup_steps, 0));
    const double length = static_cast<double>(o.decay_steps) - start;
    const ValueId zero = number(0);
    const ValueId one = number(1);
    const ValueId length_value = number(length);
    ValueId t = builder_.add_scalar(step_, -start);
    t = builder_.div(t, length_value);
    t = builder_.maximum(t, zero);
    t = builder_.minimum(t, one);
    const ValueId cosine = builder_.unary(OpKind::kCos, builder_.scale(t, std::numbers::pi));
    lr = builder_.scale(builder_.add_scalar(cosine, 1), 0.5 * (o.lr - o.min_lr));
    lr = builder_.add_scalar(lr, o.min_lr);
  }
  if (o.warmup_steps <= 0) return lr;
  const ValueId one = number(1);
  ValueId warm = number(static_cast<double>(o.warmup_steps));
  warm = builder_.div(step_, warm);
  warm = builder_.minimum(warm, one);
  return builder_.mul(warm, lr);
}

ValueId UpdateBuilder::bias_correction(double beta) {
  const ValueId power = builder_.pow(number(beta), step_);
  return builder_.cast(builder_.add_scalar(builder_.neg(power), 1), DType::kF32);
}

UpdateBuilder::Scalars UpdateBuilder::add_scalars(const std::vector<Segment>& segments) {
  Scalars s;
  const ValueId norm = norm_f64(segments);
  builder_.output(builder_.cast(norm, DType::kF32), Role::kMetric, "grad_norm");
  if (options_.max_grad_norm > 0) {
    const ValueId one = number(1);
    const ValueId largest = number(options_.max_grad_norm);
    const ValueId divisor = builder_.add_scalar(norm, 1e-6);
    ValueId clip = builder_.div(largest, divisor);
    clip = builder_.minimum(clip, one);
    s.clip = builder_.cast(clip, DType::kF32);
  } else {
    s.clip = builder_.constant(1, {DType::kF32, {}});
  }
  s.lr = builder_.cast(learning_rate_f64(), DType::kF32);
  builder_.output(s.lr, Role::kMetric, "lr");
  s.bias1 = bias_correction(options_.beta1);
  s.bias2 = bias_correction(options_.beta2);
  return s;
}

void UpdateBuilder::update(const UpdateParameter& parameter, Tensors& t, const Scalars& s) {
  Builder& b = builder_;
  const double beta1 = options_.beta1;
  const double beta2 = options_.beta2;
  const double decay = parameter.spec.decays ? options_.weight_decay : 0;
  b.set_phase(Phase::kUpdate);
  b.set_segment(parameter.segment);
  // One op a line: C++ does not fix the order in which arguments are evaluated.
  const ValueId gc = b.mul(t.g, s.clip);
  const ValueId m_old = b.scale(t.m, beta1);
  const ValueId m_new = b.scale(gc, 1 - beta1);
  const ValueId m = b.add(m_old, m_new);
  const ValueId v_old = b.scale(t.v, beta2);
  const ValueId gc2 = b.square(gc);
  const ValueId v_new = b.scale(gc2, 1 - beta2);
  const ValueId v = b.add(v_old, v_new);
  const ValueId root_v = b.sqrt(v);
  const ValueId root_bias2 = b.sqrt(s.bias2);
  const ValueId root = b.div(root_v, root_bias2);
  const ValueId denominator = b.add_scalar(root, options_.eps);
  const ValueId rate = b.div(s.lr, s.bias1);
  const ValueId scaled_m = b.mul(m, rate);
  const ValueId change = b.div(scaled_m, denominator);
  const ValueId decayed = b.scale(s.lr, -decay);
  const ValueId keep = b.add_scalar(decayed, 1);
  const ValueId kept = b.mul(t.p, keep);
  const ValueId p = b.sub(kept, change);
  t.p = p;
  t.m = m;
  t.v = v;
}

Result<Graph> UpdateBuilder::run() {
  SGA_TRY(check());
  int64_t elements = 0;
  for (const UpdateParameter& p : parameters_) elements += p.spec.type.num_elements();
  chunk_ = options_.norm_chunk > 0 ? options_.norm_chunk : norm_chunk_of(elements);
  if (dp_.shards_state() && dp_.chunk != chunk_) {
    return invalid_argument(
        fmt::format("shards are cut on {} elements and the norm on {}", dp_.chunk, chunk_));
  }
  graph_.name = "update";
  // Segments in the order of parameters, as the training graph has them.
  for (const UpdateParameter& p : parameters_) graph_.segment_index(p.segment);
  add_inputs();
  const std::vector<Segment> segments = list_segments();
  builder_.set_phase(Phase::kReduce);
  for (const Segment& segment : segments) reduce(segment);
  const Scalars scalars = add_scalars(segments);
  for (size_t i = 0; i < parameters_.size(); ++i) update(parameters_[i], tensors_[i], scalars);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    builder_.output(tensors_[i].p, Role::kParameter, parameters_[i].spec.name);
  }
  for (size_t i = 0; i < parameters_.size(); ++i) {
    builder_.output(tensors_[i].m, Role::kMoment, "m/" + parameters_[i].spec.name);
    builder_.output(tensors_[i].v, Role::kMoment, "v/" + parameters_[i].spec.name);
  }
  SGA_TRY(builder_.status());
  return graph_;
}

/// Name of the parameter that accumulator "grad/<p>" or "grad/<p>#k" belongs to; empty for others.
std::string_view accumulated_parameter(std::string_view name) {
  if (!name.starts_with("grad/")) return {};
  name.remove_prefix(5);
  return name.substr(0, name.find('#'));
}

}  // namespace

int64_t norm_chunk_of(int64_t num_elements) {
  int64_t chunk = 256;
  while (chunk < 65536 && chunk << 15 < num_elements) chunk *= 2;
  return chunk;
}

Result<Graph> build_update(const std::vector<UpdateParameter>& parameters,
                           const OptimizerOptions& options, const DataParallel& data_parallel) {
  return UpdateBuilder(parameters, options, data_parallel).run();
}

Result<std::vector<UpdateParameter>> collect_update_parameters(
    const Graph& training, const std::vector<ParameterSpec>& specs,
    const DataParallel& data_parallel) {
  std::unordered_map<std::string_view, int32_t> num_uses;
  std::unordered_map<std::string_view, const TensorType*> types;
  for (const GraphOutput& output : training.outputs()) {
    const std::string_view parameter = accumulated_parameter(output.name);
    if (output.role != Role::kAccumulator || parameter.empty()) continue;
    ++num_uses[parameter];
    types[parameter] = &training.type(output.value);
  }
  std::unordered_map<std::string_view, const Op*> first_use;  // by parameter
  for (const Op& op : training.ops()) {
    for (ValueId v : op.operands) {
      const Value& value = training.value(v);
      if (value.producer != kNoOp) continue;
      const GraphInput& input = training.inputs()[value.result];
      if (input.role == Role::kParameter) first_use.emplace(input.name, &op);
    }
  }
  std::vector<UpdateParameter> found;
  for (const ParameterSpec& spec : specs) {
    const auto uses = num_uses.find(spec.name);
    if (uses == num_uses.end()) continue;
    const Shape& shape = types[spec.name]->shape;
    const bool reduced = data_parallel.shards_gradients() && uses->second == 1 &&
                         shape == Shape{data_parallel.piece(spec.type.num_elements())};
    if (!reduced && shape != spec.type.shape) {
      return invalid_plan(fmt::format("accumulator of \"{}\" is {}, the parameter {}", spec.name,
                                      types[spec.name]->to_string(), spec.type.to_string()));
    }
    const auto user = first_use.find(spec.name);
    if (user == first_use.end()) {
      return invalid_plan("parameter \"" + spec.name + "\" has a gradient but no use");
    }
    const bool squared =
        training.find_output(Role::kAccumulator, squares_name(spec.name)) != kNoValue;
    found.push_back(
        {spec, uses->second, segment_name(training, *user->second), reduced, false, squared});
    num_uses.erase(uses);
  }
  if (!num_uses.empty()) {
    return invalid_plan("accumulator of an unknown parameter \"" +
                        std::string(num_uses.begin()->first) + "\"");
  }
  return found;
}

}  // namespace sgactor::graph
