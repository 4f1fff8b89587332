#pragma once
#include "graph/ir/graph.h"

#include <initializer_list>
#include <span>
#include <vector>

namespace sgactor::graph {

/// A graph with its users, for pattern matchers. Borrows the graph, which must outlive it.
class GraphView {
 public:
  explicit GraphView(const Graph& graph);

  [[nodiscard]] const Graph& graph() const { return graph_; }
  [[nodiscard]] std::span<const OpId> users(ValueId v) const;
  [[nodiscard]] bool is_output(ValueId v) const { return is_output_[v]; }
  /// The op that defines `v` if it has this kind, else kNoOp.
  [[nodiscard]] OpId producer(ValueId v, OpKind kind) const;
  /// Result `i` of an op.
  [[nodiscard]] ValueId result(OpId op, size_t i = 0) const { return graph_.op(op).results[i]; }
  [[nodiscard]] ValueId operand(OpId op, size_t i) const { return graph_.op(op).operands[i]; }
  /// Users of `v` of one kind (and, in the second form, phase), each once.
  [[nodiscard]] std::vector<OpId> users_of_kind(ValueId v, OpKind kind) const;
  /// The only user of `v`, if it has this kind and `v` is no graph output, else kNoOp.
  [[nodiscard]] OpId only_user(ValueId v, OpKind kind) const;
  /// Every result of `ops` is used by `ops` only, but for the values in `except`.
  [[nodiscard]] bool closed(std::span<const OpId> ops, std::span<const ValueId> except) const;

 private:
  const Graph& graph_;
  std::vector<uint32_t> first_;  // CSR: users of v are list_[first_[v] .. first_[v + 1])
  std::vector<OpId> list_;
  std::vector<bool> is_output_;
};

/// Operand of a new op: a value of the old graph, or result `result` of replacement number
/// `replacement`.
struct Ref {
  ValueId old_value = kNoValue;
  int32_t replacement = -1;
  int32_t result = 0;

  static Ref old(ValueId v) { return {v, -1, 0}; }
  static Ref made(int32_t replacement, int32_t result) { return {kNoValue, replacement, result}; }
};

/// A new op that takes the place of old ones. `results[i]` is the old value that result i stands
/// for, or kNoValue. Phase and segment are those of `anchor`, whose place in the order it takes as
/// far as operands allow.
struct Replacement {
  OpKind kind = OpKind::kAdd;
  std::vector<Ref> operands;
  Attrs attrs;
  std::vector<ValueId> results;
  OpId anchor = kNoOp;
};

/// Collects what one pattern wants to change and builds the new graph.
class Rewriter {
 public:
  explicit Rewriter(const Graph& graph) : graph_(graph), absorbed_(graph.ops().size(), false) {}

  /// Marks old ops as gone. False, and nothing marked, if one of them is gone already.
  bool absorb(std::span<const OpId> ops);
  /// Returns the replacement's number, for Ref::made.
  int32_t add(Replacement replacement);
  [[nodiscard]] int32_t num_replacements() const {
    return static_cast<int32_t>(replacements_.size());
  }
  /// Old ops that stay and the new ones, in an order that follows the old one and respects every
  /// operand. Errors: kInvalidPlan if a shape rule refuses a new op, or the result would have a
  /// cycle.
  [[nodiscard]] Result<Graph> build() const;

 private:
  const Graph& graph_;
  std::vector<bool> absorbed_;
  std::vector<Replacement> replacements_;
};

}  // namespace sgactor::graph
