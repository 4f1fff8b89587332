#pragma once
#include "graph/ir/graph.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sgactor::graph {

/// Appends ops to a graph with result types from the op table. Errors are sticky: the first bad
/// call is kept in status(), later calls return kNoValue and do nothing, so that model code reads
/// as formulas and checks once. Every op gets the current phase and segment. Does not own the
/// graph.
class Builder {
 public:
  explicit Builder(Graph& graph) : graph_(graph) {}

  [[nodiscard]] Graph& graph() { return graph_; }
  [[nodiscard]] const Status& status() const { return status_; }
  /// Keeps `status` unless an earlier error is kept already. For gradient rules and model code.
  void fail(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }
  void set_phase(Phase phase) { phase_ = phase; }
  void set_segment(std::string_view name) { segment_ = graph_.segment_index(name); }
  void set_segment(int32_t segment) { segment_ = segment; }
  [[nodiscard]] Phase phase() const { return phase_; }
  [[nodiscard]] int32_t segment() const { return segment_; }
  /// Type of a value; a default TensorType for kNoValue.
  [[nodiscard]] TensorType type(ValueId v) const;

  ValueId input(TensorType type, Role role, std::string name);
  void output(ValueId v, Role role, std::string name);

  /// Any op by kind. Returns its results (all kNoValue on error).
  std::vector<ValueId> op(OpKind kind, std::vector<ValueId> operands, Attrs attrs = {});
  /// Same for an op with one result.
  ValueId op1(OpKind kind, std::vector<ValueId> operands, Attrs attrs = {});

  ValueId add(ValueId a, ValueId b) { return op1(OpKind::kAdd, {a, b}); }
  ValueId sub(ValueId a, ValueId b) { return op1(OpKind::kSub, {a, b}); }
  ValueId mul(ValueId a, ValueId b) { return op1(OpKind::kMul, {a, b}); }
  ValueId div(ValueId a, ValueId b) { return op1(OpKind::kDiv, {a, b}); }
  ValueId minimum(ValueId a, ValueId b) { return op1(OpKind::kMinimum, {a, b}); }
  ValueId maximum(ValueId a, ValueId b) { return op1(OpKind::kMaximum, {a, b}); }
  ValueId pow(ValueId a, ValueId b) { return op1(OpKind::kPow, {a, b}); }
  ValueId unary(OpKind kind, ValueId x) { return op1(kind, {x}); }
  ValueId neg(ValueId x) { return op1(OpKind::kNeg, {x}); }
  ValueId square(ValueId x) { return op1(OpKind::kSquare, {x}); }
  ValueId sqrt(ValueId x) { return op1(OpKind::kSqrt, {x}); }
  ValueId silu(ValueId x) { return op1(OpKind::kSilu, {x}); }
  ValueId scale(ValueId x, double factor);
  ValueId add_scalar(ValueId x, double value);
  ValueId cast(ValueId x, DType dtype);
  ValueId reshape(ValueId x, std::vector<int64_t> shape);
  ValueId transpose(ValueId x, std::vector<int64_t> perm);
  ValueId slice(ValueId x, int64_t axis, int64_t start, int64_t size);
  ValueId pad(ValueId x, int64_t axis, int64_t before, int64_t after);
  ValueId concat(std::vector<ValueId> xs, int64_t axis);
  /// Result of `shape`; operand dims map in order to the result dims that are not in `axes`.
  ValueId broadcast(ValueId x, std::vector<int64_t> shape, std::vector<int64_t> axes);
  ValueId constant(double value, TensorType type);
  ValueId reduce_sum(ValueId x, std::vector<int64_t> axes);
  ValueId matmul(ValueId a, ValueId b, bool trans_a = false, bool trans_b = false);
  ValueId softmax(ValueId x) { return op1(OpKind::kSoftmax, {x}); }
  ValueId causal_mask(ValueId x, double fill);
  ValueId accumulate(ValueId accumulator, ValueId x) {
    return op1(OpKind::kAccumulate, {accumulator, x});
  }
  /// y, rstd
  std::pair<ValueId, ValueId> rms_norm(ValueId x, ValueId weight, double eps);
  ValueId rotate(ValueId x, ValueId cos, ValueId sin, bool inverse);
  ValueId gather(ValueId table, ValueId ids) { return op1(OpKind::kGather, {table, ids}); }
  /// summed loss, log-sum-exp
  std::pair<ValueId, ValueId> cross_entropy(ValueId logits, ValueId targets);

 private:
  Graph& graph_;
  Status status_;
  Phase phase_ = Phase::kForward;
  int32_t segment_ = 0;
};

}  // namespace sgactor::graph
