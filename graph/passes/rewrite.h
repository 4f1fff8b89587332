#pragma once
#include "graph/ir/graph.h"
#include "graph/passes/pattern_rewriter.h"

#include <map>
#include <string>
#include <vector>

namespace sgactor::graph {

/// Tools that passes share.

/// Copies ops of a graph into a new one, which starts with the same name, segments and inputs.
/// Borrows the source, which must outlive it.
class GraphCopier {
 public:
  explicit GraphCopier(const Graph& source);

  [[nodiscard]] Graph& graph() { return graph_; }
  /// The new value that stands for an old one; kNoValue if none does yet.
  [[nodiscard]] ValueId operator[](ValueId old) const { return map_[old]; }
  void bind(ValueId old, ValueId value) { map_[old] = value; }
  /// Appends a copy of an op; its operands must stand for something. Binds its results.
  OpId copy(OpId op);
  /// Appends a copy with other operands (of the same types), phase and segment. Binds nothing.
  OpId copy_as(OpId op, std::vector<ValueId> operands, Phase phase, int32_t segment);
  void copy_outputs();
  [[nodiscard]] Graph take() { return std::move(graph_); }

 private:
  const Graph& source_;
  Graph graph_;
  std::vector<ValueId> map_;
};

/// Copy without ops whose results nobody needs (outputs count as needs). Inputs stay. Removes
/// repeated constants and equal pure ops within a segment and phase (common subexpressions) where
/// `merge_equal`.
Graph clean_graph(const Graph& graph, bool merge_equal = true);

/// A subgraph of `graph`: the given ops in their order, with one input for each value defined
/// outside (in order of first use) and one output for each value used outside or by a graph output
/// (in order of definition). `inputs` and `outputs` receive the outer value of each. Roles and
/// names of graph inputs and outputs are kept (of its first output, if a value is several); values
/// between subgraphs become kActivation "in<i>" and "out<i>".
Graph extract_ops(const Graph& graph, const std::vector<OpId>& ops, std::vector<ValueId>* inputs,
                  std::vector<ValueId>* outputs);
/// Same, for callers that cut one graph many times. A value of `named` that comes in or goes out
/// has the role and name of that graph output.
Graph extract_ops(const GraphView& view, const std::vector<OpId>& ops, std::vector<ValueId>* inputs,
                  std::vector<ValueId>* outputs,
                  const std::map<ValueId, const GraphOutput*>& named = {});

/// Name of an op's segment; empty in a graph without segments.
std::string segment_name(const Graph& graph, const Op& op);

}  // namespace sgactor::graph
