#include "tests/differential/random/random_training.h"

#include "graph/base/philox.h"
#include "graph/ir/builder.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <utility>

namespace sgactor::differential {
namespace {

using graph::Attrs;
using graph::Builder;
using graph::OpKind;
using graph::Role;
using graph::ValueId;

constexpr int64_t kRows = kBatch * kSeqLen;

class Draw {
 public:
  explicit Draw(uint64_t seed) : stream_{seed, 0x7472616e73ULL} {}
  int64_t below(int64_t n) {
    return static_cast<int64_t>(stream_.below(next_++, static_cast<uint64_t>(n)));
  }
  bool one_in(int64_t n) { return below(n) == 0; }
  /// In [low, high).
  double number(double low, double high) {
    return low + (high - low) * static_cast<double>(below(1 << 20)) / (1 << 20);
  }

 private:
  PhiloxStream stream_;
  uint64_t next_ = 0;
};

class ModelBuilder {
 public:
  explicit ModelBuilder(uint64_t seed)
      : draw_(seed),
        b_(model_.forward),
        width_(4 * (1 + draw_.below(2))),
        num_layers_(1 + draw_.below(3)) {}

  RandomModel run() {
    model_.forward.name = "random";
    model_.vocab_size = 5 + draw_.below(4);
    plan_parameters();
    const ValueId tokens = b_.input({DType::kI32, {kBatch, kSeqLen}}, Role::kTokens, "tokens");
    const ValueId targets = b_.input({DType::kI32, {kBatch, kSeqLen}}, Role::kTargets, "targets");
    const ValueId inv = b_.input({DType::kF32, {}}, Role::kScalar, "inv_valid_tokens");
    b_.set_segment("embed");
    ValueId x = b_.gather(parameters_.at("embed"), tokens);
    x = b_.reshape(x, {kRows, width_});
    if (draw_.one_in(2)) x = pointwise(x);
    ValueId skip = x;
    for (int64_t l = 0; l < num_layers_; ++l) {
      b_.set_segment(fmt::format("layer.{}", l));
      x = layer(l, x, skip);
      if (draw_.one_in(2)) skip = x;
    }
    head(x, targets, inv);
    SGA_CHECK(b_.status().ok(), b_.status().to_string());
    return std::move(model_);
  }

 private:
  /// Inputs stand in front of all ops, so every layer has all it may want; who uses none of it has
  /// no gradient for it, and it is left out (drop_unused).
  void plan_parameters();
  void add_parameter(const std::string& name, Shape shape, int32_t dim, int64_t units = 0);
  [[nodiscard]] ValueId of_layer(const char* name) const {
    return parameters_.at(fmt::format("{}.{}", shared_ ? 0 : layer_, name));
  }
  ValueId layer(int64_t index, ValueId x, ValueId skip);
  ValueId block(ValueId x);
  ValueId pointwise(ValueId x);
  ValueId two(ValueId x, ValueId y);
  ValueId structure(ValueId x);
  ValueId linear(ValueId x);
  ValueId swiglu(ValueId x);
  ValueId attention(ValueId x);
  void head(ValueId x, ValueId targets, ValueId inv);

  RandomModel model_;
  Draw draw_;
  Builder b_;
  int64_t width_;
  int64_t num_layers_;
  int64_t layer_ = 0;
  bool shared_ = false;  // this layer uses the first one's parameters
  std::map<std::string, ValueId> parameters_;
};

void ModelBuilder::add_parameter(const std::string& name, Shape shape, int32_t dim, int64_t units) {
  const bool matrix = shape.rank() > 1;
  const TensorType type{DType::kF32, std::move(shape)};
  parameters_[name] = b_.input(type, Role::kParameter, name);
  model_.parameters.push_back({name, type, matrix, 0.5, !matrix});
  // A parameter that no rule names is replicated.
  if (!draw_.one_in(3)) model_.rules.push_back({name, dim, units, "heads"});
}

void ModelBuilder::plan_parameters() {
  b_.set_phase(graph::Phase::kForward);
  b_.set_segment("embed");
  add_parameter("embed", Shape{model_.vocab_size, width_}, 0);
  for (int64_t l = 0; l < num_layers_; ++l) {
    const auto name = [&](const char* what) { return fmt::format("{}.{}", l, what); };
    add_parameter(name("norm"), Shape{width_}, -1);
    add_parameter(name("bias"), Shape{width_}, draw_.one_in(2) ? 0 : -1);
    add_parameter(name("w"), Shape{width_, width_}, static_cast<int32_t>(draw_.below(2)));
    add_parameter(name("q"), Shape{width_, width_}, 0, 2);
    add_parameter(name("k"), Shape{width_, width_}, 0, 2);
    add_parameter(name("v"), Shape{width_, width_}, 0, 2);
    add_parameter(name("o"), Shape{width_, width_}, 1, 2);
    add_parameter(name("gate"), Shape{6, width_}, 0);
    add_parameter(name("up"), Shape{6, width_}, 0);
    add_parameter(name("down"), Shape{width_, 6}, 1);
  }
  add_parameter("last_norm", Shape{width_}, -1);
  add_parameter("out", Shape{model_.vocab_size, width_}, 0);
}

ValueId ModelBuilder::pointwise(ValueId x) {
  switch (draw_.below(13)) {
    case 0:
      return b_.silu(x);
    case 1:
      return b_.unary(OpKind::kSigmoid, x);
    case 2:
      return b_.unary(OpKind::kCos, x);
    case 3:
      return b_.unary(OpKind::kSin, x);
    case 4:
      return b_.neg(x);
    case 5:
      return b_.scale(x, draw_.number(-1, 1));
    case 6:
      return b_.add_scalar(x, draw_.number(-1, 1));
    case 7:
      return b_.sqrt(b_.add_scalar(b_.square(x), 0.5));
    case 8:
      return b_.unary(OpKind::kRsqrt, b_.add_scalar(b_.square(x), 0.5));
    case 9:
      return b_.unary(OpKind::kExp, b_.unary(OpKind::kSin, x));
    case 10:
      return b_.unary(OpKind::kLog, b_.add_scalar(b_.square(x), 1));
    case 11:
      return b_.add(x, of_layer("bias"));
    default:
      return b_.mul(x, of_layer("norm"));
  }
}

ValueId ModelBuilder::two(ValueId x, ValueId y) {
  switch (draw_.below(6)) {
    case 0:
      return b_.add(x, y);
    case 1:
      return b_.sub(x, y);
    case 2:
      return b_.mul(x, b_.unary(OpKind::kSigmoid, y));
    case 3:
      return b_.div(x, b_.add_scalar(b_.square(y), 1));
    case 4:
      return b_.maximum(x, y);
    default:
      return b_.minimum(x, y);
  }
}

ValueId ModelBuilder::structure(ValueId x) {
  switch (draw_.below(8)) {
    case 0: {
      const ValueId left = b_.slice(x, 1, 0, width_ / 2);
      const ValueId right = b_.slice(x, 1, width_ / 2, width_ / 2);
      return b_.concat({right, left}, 1);
    }
    case 1:
      return b_.transpose(b_.unary(OpKind::kSin, b_.transpose(x, {1, 0})), {1, 0});
    case 2:
      return b_.slice(b_.pad(x, 0, 1, 2), 0, draw_.below(4), kRows);
    case 3: {
      const ValueId sum = b_.reduce_sum(x, {1});
      return b_.broadcast(b_.scale(sum, 0.25), {kRows, width_}, {1});
    }
    case 4: {
      const ValueId sum = b_.reduce_sum(x, {0});
      return b_.sub(x, b_.broadcast(b_.scale(sum, 0.2), {kRows, width_}, {0}));
    }
    case 5: {
      Attrs attrs;
      attrs.set("axes", std::vector<int64_t>{1});
      const ValueId most = b_.op1(OpKind::kReduceMax, {x}, std::move(attrs));
      return b_.sub(x, b_.broadcast(most, {kRows, width_}, {1}));
    }
    case 6:
      return b_.softmax(x);
    default:
      return b_.reshape(b_.unary(OpKind::kCos, b_.reshape(x, {kBatch, kSeqLen, width_})),
                        {kRows, width_});
  }
}

ValueId ModelBuilder::linear(ValueId x) {
  const ValueId y = b_.matmul(x, of_layer("w"), false, draw_.one_in(2));
  return draw_.one_in(2) ? b_.add(y, of_layer("bias")) : y;
}

/// Or what is none: another activation, or the gate once more in the other operand.
ValueId ModelBuilder::swiglu(ValueId x) {
  const ValueId gate = b_.matmul(x, of_layer("gate"), false, true);
  const ValueId up = b_.matmul(x, of_layer("up"), false, true);
  const ValueId open = draw_.one_in(4) ? b_.unary(OpKind::kSigmoid, gate) : b_.silu(gate);
  const ValueId both = b_.mul(open, draw_.one_in(5) ? b_.add(up, gate) : up);
  return b_.matmul(both, of_layer("down"), false, true);
}

/// Two heads; without a mask, without a scale, or with something between, now and then.
ValueId ModelBuilder::attention(ValueId x) {
  const int64_t K = width_ / 2;
  const auto heads = [&](const char* name) {
    const ValueId y = b_.matmul(x, of_layer(name), false, true);
    return b_.transpose(b_.reshape(y, {kBatch, kSeqLen, 2, K}), {0, 2, 1, 3});
  };
  const ValueId q = heads("q");
  const ValueId k = heads("k");
  const ValueId v = heads("v");
  ValueId s = b_.matmul(q, k, false, true);
  if (!draw_.one_in(5)) s = b_.scale(s, 1 / std::sqrt(static_cast<double>(K)));
  if (draw_.one_in(6)) s = b_.unary(OpKind::kSin, s);
  if (!draw_.one_in(4)) s = b_.causal_mask(s, -std::numeric_limits<double>::infinity());
  s = b_.softmax(s);
  ValueId o = b_.transpose(b_.matmul(s, v), {0, 2, 1, 3});
  o = b_.reshape(o, {kRows, width_});
  return b_.matmul(o, of_layer("o"), false, true);
}

ValueId ModelBuilder::block(ValueId x) {
  switch (draw_.below(8)) {
    case 0:
    case 1:
      return pointwise(x);
    case 2:
      return structure(x);
    case 3:
      return linear(x);
    case 4:
      return swiglu(x);
    case 5:
      return attention(x);
    case 6:
      return b_.rms_norm(x, of_layer("norm"), 1e-5).first;
    default:
      return two(x, pointwise(x));
  }
}

ValueId ModelBuilder::layer(int64_t index, ValueId x, ValueId skip) {
  layer_ = index;
  shared_ = index > 0 && draw_.one_in(5);
  std::vector<ValueId> values = {x};
  const int64_t num_blocks = 1 + draw_.below(5);
  for (int64_t i = 0; i < num_blocks; ++i) {
    const ValueId from =
        values[static_cast<size_t>(draw_.below(static_cast<int64_t>(values.size())))];
    ValueId y = block(from);
    if (draw_.one_in(2)) y = b_.add(from, y);
    values.push_back(y);
  }
  ValueId out = two(values.back(), draw_.one_in(3) ? skip : x);
  // What was dropped must count too, or most layers would be dead.
  for (size_t i = 1; i + 1 < values.size(); ++i) out = b_.add(out, b_.scale(values[i], 0.1));
  return draw_.one_in(2) ? b_.rms_norm(out, of_layer("norm"), 1e-5).first
                         : b_.unary(OpKind::kSin, out);
}

void ModelBuilder::head(ValueId x, ValueId targets, ValueId inv) {
  b_.set_segment("head");
  if (draw_.one_in(2)) x = b_.rms_norm(x, parameters_.at("last_norm"), 1e-5).first;
  const ValueId table = parameters_.at(draw_.one_in(2) ? "embed" : "out");
  const ValueId logits = b_.matmul(x, table, false, true);
  ValueId sum = graph::kNoValue;
  if (draw_.one_in(3)) {
    sum = b_.reduce_sum(b_.square(logits), {0, 1});
  } else {
    sum = b_.cross_entropy(logits, b_.reshape(targets, {kRows})).first;
  }
  b_.output(b_.mul(sum, inv), Role::kLoss, "loss");
}

/// Without parameters that nothing reads.
RandomModel drop_unused(const RandomModel& model) {
  const graph::Graph& old = model.forward;
  std::vector<bool> read(old.values().size(), false);
  for (const graph::Op& op : old.ops()) {
    for (ValueId v : op.operands) read[v] = true;
  }
  RandomModel out = model;
  out.forward = {};
  out.forward.name = old.name;
  for (const std::string& s : old.segments()) out.forward.segment_index(s);
  std::vector<ValueId> map(old.values().size(), graph::kNoValue);
  for (const graph::GraphInput& input : old.inputs()) {
    const bool dead = input.role == Role::kParameter && !read[input.value];
    if (dead) {
      std::erase_if(out.parameters, [&](const auto& p) { return p.name == input.name; });
      std::erase_if(out.rules, [&](const auto& r) { return r.pattern == input.name; });
      continue;
    }
    map[input.value] = out.forward.add_input(old.type(input.value), input.role, input.name);
  }
  for (const graph::Op& op : old.ops()) {
    std::vector<ValueId> operands;
    std::vector<TensorType> types;
    for (ValueId v : op.operands) operands.push_back(map[v]);
    for (ValueId v : op.results) types.push_back(old.type(v));
    const graph::OpId o =
        out.forward.add_op(op.kind, operands, op.attrs, types, op.phase, op.segment);
    for (size_t r = 0; r < op.results.size(); ++r) {
      map[op.results[r]] = out.forward.op(o).results[r];
    }
  }
  for (const graph::GraphOutput& output : old.outputs())
    out.forward.add_output(map[output.value], output.role, output.name);
  return out;
}

}  // namespace

RandomModel random_model(uint64_t seed) { return drop_unused(ModelBuilder(seed).run()); }

}  // namespace sgactor::differential
