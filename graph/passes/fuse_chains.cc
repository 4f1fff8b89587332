// Chains (trees) of pointwise ops that no other pattern took.
#include "graph/ir/op_table.h"
#include "graph/ir/pointwise_program.h"
#include "graph/passes/fusion_patterns.h"

#include <algorithm>
#include <map>

namespace sgactor::graph {
namespace {

/// A backend holds a register an operand and instruction in its first-level cache.
constexpr size_t kMaxOperands = 16;

class ChainMatcher {
 public:
  ChainMatcher(const GraphView& view, Rewriter& rewriter)
      : view_(view), graph_(view.graph()), rewriter_(rewriter) {}

  /// Fuses the tree that ends in `sink`, if that saves bytes.
  bool fuse(OpId sink);

 private:
  [[nodiscard]] bool fits(OpId op) const {
    return is_program_op(graph_.op(op).kind) && is_float(graph_.type(view_.result(op)).dtype);
  }
  /// The producer of `v`, if it can become part of the tree of `reader`.
  [[nodiscard]] OpId inner(ValueId v, OpId reader) const;
  [[nodiscard]] std::vector<OpId> collect(OpId sink) const;
  [[nodiscard]] std::vector<ValueId> find_operands(const std::vector<OpId>& tree) const;
  [[nodiscard]] PointwiseProgram translate(const std::vector<OpId>& tree,
                                           const std::vector<ValueId>& operands) const;

  const GraphView& view_;
  const Graph& graph_;
  Rewriter& rewriter_;
};

OpId ChainMatcher::inner(ValueId v, OpId reader) const {
  const OpId producer = graph_.value(v).producer;
  if (producer == kNoOp || view_.is_output(v) || !fits(producer)) return kNoOp;
  const Op& op = graph_.op(producer);
  const Op& by = graph_.op(reader);
  if (op.phase != by.phase || op.segment != by.segment) return kNoOp;
  // An operand that is repeated along the result is computed once where it is small.
  if (graph_.type(v) != graph_.type(view_.result(reader))) return kNoOp;
  for (OpId user : view_.users(v)) {
    if (user != reader) return kNoOp;
  }
  return producer;
}

std::vector<OpId> ChainMatcher::collect(OpId sink) const {
  std::vector<OpId> tree = {sink};
  for (size_t i = 0; i < tree.size(); ++i) {
    for (ValueId v : graph_.op(tree[i]).operands) {
      const OpId producer = inner(v, tree[i]);
      if (producer == kNoOp || std::find(tree.begin(), tree.end(), producer) != tree.end())
        continue;
      if (tree.size() == static_cast<size_t>(kMaxPointwiseInstructions)) continue;
      tree.push_back(producer);
      if (find_operands(tree).size() > kMaxOperands) tree.pop_back();
    }
  }
  std::sort(tree.begin(), tree.end());
  return tree;
}

/// What the tree reads, a value of the result's shape first.
std::vector<ValueId> ChainMatcher::find_operands(const std::vector<OpId>& tree) const {
  std::vector<ValueId> operands;
  for (OpId o : tree) {
    for (ValueId v : graph_.op(o).operands) {
      const OpId producer = graph_.value(v).producer;
      const bool own = std::find(tree.begin(), tree.end(), producer) != tree.end();
      const bool known = std::find(operands.begin(), operands.end(), v) != operands.end();
      if (!own && !known) operands.push_back(v);
    }
  }
  const TensorType& type = graph_.type(view_.result(tree[0]));
  const auto whole = std::find_if(operands.begin(), operands.end(),
                                  [&](ValueId v) { return graph_.type(v) == type; });
  if (whole != operands.end()) std::iter_swap(operands.begin(), whole);
  return operands;
}

PointwiseProgram ChainMatcher::translate(const std::vector<OpId>& tree,
                                         const std::vector<ValueId>& operands) const {
  std::map<ValueId, int32_t> index;
  for (ValueId v : operands) index.emplace(v, static_cast<int32_t>(index.size()));
  PointwiseProgram program;
  for (OpId o : tree) {
    const Op& op = graph_.op(o);
    PointwiseInstruction i;
    i.kind = op.kind;
    i.a = index.at(op.operands[0]);
    if (is_program_binary(op.kind)) i.b = index.at(op.operands[1]);
    if (op.kind == OpKind::kScale) i.param = op.attrs.f64("factor");
    if (op.kind == OpKind::kAddScalar) i.param = op.attrs.f64("value");
    index.emplace(op.results[0], static_cast<int32_t>(index.size()));
    program.push_back(i);
  }
  return program;
}

bool ChainMatcher::fuse(OpId sink) {
  // One number has no bytes to save.
  if (!fits(sink) || graph_.type(view_.result(sink)).num_elements() <= 1) return false;
  const auto users = view_.users(view_.result(sink));
  // A tree that goes on below is found from there.
  if (!users.empty() && fits(users[0]) && inner(view_.result(sink), users[0]) == sink) return false;
  const std::vector<OpId> tree = collect(sink);
  const std::vector<ValueId> operands = find_operands(tree);
  if (tree.size() < 2 || graph_.type(operands[0]) != graph_.type(view_.result(sink))) return false;
  if (!rewriter_.absorb(tree)) return false;
  Replacement fused{OpKind::kFusedPointwise, {}, {}, {view_.result(sink)}, sink};
  for (ValueId v : operands) fused.operands.push_back(Ref::old(v));
  fused.attrs.set("program", print_pointwise_program(translate(tree, operands)));
  rewriter_.add(std::move(fused));
  return true;
}

}  // namespace

int32_t match_pointwise_chain(const GraphView& view, Rewriter& rewriter) {
  ChainMatcher matcher(view, rewriter);
  int32_t count = 0;
  for (OpId o = static_cast<OpId>(view.graph().ops().size()); o-- > 0;) {
    if (matcher.fuse(o)) ++count;
  }
  return count;
}

}  // namespace sgactor::graph
