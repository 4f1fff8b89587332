#include "tests/unit/graph/ir/random_graph.h"

#include "graph/base/philox.h"
#include "graph/ir/builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>

namespace sgactor::graph {
namespace {

class Draw {
 public:
  explicit Draw(uint64_t seed) : stream_{seed, 0x6772617068ULL} {}
  int64_t below(int64_t n) {
    return static_cast<int64_t>(stream_.below(next_++, static_cast<uint64_t>(n)));
  }
  bool coin() { return below(2) == 0; }
  template <class T>
  const T& pick(const std::vector<T>& items) {
    return items[static_cast<size_t>(below(static_cast<int64_t>(items.size())))];
  }
  double number() {
    static const std::vector<double> kNumbers = {0.0,    -0.0, 1.0,    -2.5, 1.0 / 3,
                                                 1e-300, 1e22, 123456, 0.1,  5e-324};
    return pick(kNumbers);
  }

 private:
  PhiloxStream stream_;
  uint64_t next_ = 0;
};

class RandomGraph {
 public:
  RandomGraph(uint64_t seed, int num_ops) : draw_(seed), num_ops_(num_ops), b_(graph_) {}

  Graph run() {
    graph_.name = draw_.coin() ? "random" : "a \"name\" with \\ and\n line";
    add_inputs();
    const bool with_segments = draw_.coin();
    for (int i = 0; i < num_ops_; ++i) {
      b_.set_phase(static_cast<Phase>(std::min(3, 4 * i / std::max(num_ops_, 1))));
      if (with_segments) b_.set_segment(fmt::format("layer.{}", draw_.below(3)));
      add_op();
    }
    b_.output(floats_.back(), Role::kLogits, "last");
    b_.output(draw_.pick(floats_), Role::kActivation, "\x01\x7f odd \"name\"");
    SGA_CHECK(b_.status().ok(), b_.status().to_string());
    return std::move(graph_);
  }

 private:
  void add_inputs() {
    floats_.push_back(b_.input({DType::kF32, {2, 3, 4}}, Role::kParameter, "w"));
    floats_.push_back(b_.input({DType::kF32, {4}}, Role::kParameter, "bias"));
    floats_.push_back(b_.input({DType::kBF16, {6, 2}}, Role::kActivation, "h"));
    floats_.push_back(b_.input({DType::kF64, {}}, Role::kScalar, "step"));
    ids_ = b_.input({DType::kI32, {2, 3}}, Role::kTokens, "tokens");
    key_ = b_.input({DType::kI64, {2}}, Role::kScalar, "key");
  }

  void keep(ValueId v) {
    // Small values stay small enough to multiply.
    if (b_.type(v).num_elements() <= 4096) floats_.push_back(v);
  }
  ValueId constant_like(const TensorType& type) { return b_.constant(draw_.number(), type); }
  std::vector<int64_t> some_axes(int rank) {
    std::vector<int64_t> axes;
    for (int axis = 0; axis < rank; ++axis) {
      if (draw_.coin()) axes.push_back(axis);
    }
    return axes;
  }

  void add_op() {
    const ValueId x = draw_.pick(floats_);
    switch (draw_.below(4)) {
      case 0:
        return keep(pointwise(x));
      case 1:
        return keep(structure(x));
      case 2:
        return keep(reduction(x));
      default:
        return keep(transformer(x));
    }
  }

  ValueId pointwise(ValueId x) {
    const TensorType type = b_.type(x);
    const int64_t kind = draw_.below(20);
    if (kind < 7) {
      std::vector<int64_t> dims = type.shape.dims();
      dims.erase(dims.begin(), dims.begin() + draw_.below(type.shape.rank() + 1));
      return b_.op1(static_cast<OpKind>(kind), {x, constant_like({type.dtype, Shape(dims)})});
    }
    if (kind < 17) return b_.unary(static_cast<OpKind>(kind), x);
    if (kind == 17) return b_.scale(x, draw_.number());
    if (kind == 18) return b_.add_scalar(x, std::numeric_limits<double>::infinity());
    static const std::vector<DType> kFloats = {DType::kF64, DType::kF32, DType::kBF16, DType::kF16};
    return b_.cast(x, draw_.pick(kFloats));
  }

  ValueId structure(ValueId x) {
    const Shape shape = b_.type(x).shape;
    const int rank = shape.rank();
    if (rank == 0) return b_.broadcast(x, {2, 3}, {0, 1});
    const int64_t axis = draw_.below(rank);
    const int64_t extent = shape.dim(static_cast<int>(axis));
    switch (draw_.below(6)) {
      case 0:
        return b_.reshape(x, {shape.num_elements()});
      case 1: {
        std::vector<int64_t> perm(static_cast<size_t>(rank));
        std::iota(perm.begin(), perm.end(), 0);
        std::swap(perm[0], perm[static_cast<size_t>(axis)]);
        return b_.transpose(x, std::move(perm));
      }
      case 2: {
        const int64_t start = draw_.below(extent + 1);
        return b_.slice(x, axis, start, draw_.below(extent - start + 1));
      }
      case 3:
        return b_.pad(x, axis, draw_.below(3), draw_.below(3));
      case 4:
        return b_.concat({x, constant_like(b_.type(x)), x}, axis);
      default: {
        if (rank >= 4) return b_.reshape(x, {1, shape.num_elements()});
        std::vector<int64_t> dims = shape.dims();
        dims.insert(dims.begin() + axis, 2);
        return b_.broadcast(x, std::move(dims), {axis});
      }
    }
  }

  ValueId reduction(ValueId x) {
    const TensorType type = b_.type(x);
    Attrs attrs;
    switch (draw_.below(5)) {
      case 0:
        return b_.reduce_sum(x, some_axes(type.shape.rank()));
      case 1:
        attrs.set("axes", some_axes(type.shape.rank()));
        return b_.op1(OpKind::kReduceMax, {x}, std::move(attrs));
      case 2:
        attrs.set("chunk", int64_t{3});
        return b_.op1(OpKind::kSumSquares, {x}, std::move(attrs));
      case 3:
        return b_.op1(OpKind::kTreeSum, {b_.reshape(x, {type.num_elements()})});
      default: {
        // An accumulator of its own, since it is not to be read after the update.
        const ValueId zeros = b_.constant(0, {DType::kF32, type.shape});
        return b_.accumulate(zeros, x);
      }
    }
  }

  ValueId transformer(ValueId x) {
    const TensorType type = b_.type(x);
    const Shape& shape = type.shape;
    Attrs attrs;
    if (shape.rank() < 2) {
      attrs.set("shape", std::vector<int64_t>{3, 2});
      attrs.set("dtype", DType::kF32);
      return b_.op1(OpKind::kPhiloxUniform, {key_}, std::move(attrs));
    }
    const int64_t rows = shape.dim(-2);
    const int64_t columns = shape.dim(-1);
    switch (draw_.below(5)) {
      case 0: {
        const bool trans_a = draw_.coin();
        const bool trans_b = draw_.coin();
        TensorType other = type;
        other.shape.set_dim(-2, trans_b ? 3 : (trans_a ? rows : columns));
        other.shape.set_dim(-1, trans_b ? (trans_a ? rows : columns) : 3);
        return b_.matmul(x, constant_like(other), trans_a, trans_b);
      }
      case 1:
        return b_.softmax(x);
      case 2:
        return b_.causal_mask(x, -std::numeric_limits<double>::infinity());
      case 3:
        return b_.rms_norm(x, constant_like({type.dtype, Shape{columns}}), 1e-5).first;
      default:
        return b_.gather(b_.reshape(x, {shape.num_elements(), 1}), ids_);
    }
  }

  Draw draw_;
  int num_ops_;
  Graph graph_;
  Builder b_;
  std::vector<ValueId> floats_;
  ValueId ids_ = kNoValue;
  ValueId key_ = kNoValue;
};

}  // namespace

Graph random_graph(uint64_t seed, int num_ops) { return RandomGraph(seed, num_ops).run(); }

Graph shuffle_graph(const Graph& graph, uint64_t seed) {
  Draw draw(seed);
  Graph shuffled;
  shuffled.name = graph.name;
  for (const std::string& segment : graph.segments()) shuffled.segment_index(segment);
  std::vector<ValueId> renamed(graph.values().size(), kNoValue);
  std::vector<OpId> waiting(graph.ops().size());
  std::iota(waiting.begin(), waiting.end(), 0U);
  size_t next_input = 0;
  auto is_ready = [&](OpId id) {
    const std::vector<ValueId>& operands = graph.op(id).operands;
    return std::all_of(operands.begin(), operands.end(),
                       [&](ValueId v) { return renamed[v] != kNoValue; });
  };
  while (next_input < graph.inputs().size() || !waiting.empty()) {
    std::vector<size_t> ready;
    for (size_t i = 0; i < waiting.size(); ++i) {
      if (is_ready(waiting[i])) ready.push_back(i);
    }
    if (next_input < graph.inputs().size() && (ready.empty() || draw.coin())) {
      const GraphInput& input = graph.inputs()[next_input++];
      renamed[input.value] = shuffled.add_input(graph.type(input.value), input.role, input.name);
      continue;
    }
    const size_t at = draw.pick(ready);
    const Op& op = graph.op(waiting[at]);
    std::vector<ValueId> operands;
    std::vector<TensorType> types;
    for (ValueId v : op.operands) operands.push_back(renamed[v]);
    for (ValueId v : op.results) types.push_back(graph.type(v));
    const OpId id =
        shuffled.add_op(op.kind, std::move(operands), op.attrs, types, op.phase, op.segment);
    for (size_t i = 0; i < op.results.size(); ++i) {
      renamed[op.results[i]] = shuffled.op(id).results[i];
    }
    waiting.erase(waiting.begin() + static_cast<std::ptrdiff_t>(at));
  }
  for (const GraphOutput& output : graph.outputs()) {
    shuffled.add_output(renamed[output.value], output.role, output.name);
  }
  return shuffled;
}

}  // namespace sgactor::graph
