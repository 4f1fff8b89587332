#include "graph/passes/choose_layout.h"

#include "graph/base/units.h"
#include "graph/ir/builder.h"
#include "graph/ir/op_table.h"
#include "graph/passes/rewrite.h"

#include <fmt/format.h>

#include <map>

namespace sgactor::graph {
namespace {

bool is_f8_head(const Graph& graph, const Op& op) {
  return op.kind == OpKind::kLinearCrossEntropyGrad &&
         graph.type(op.operands[1]).dtype == DType::kF8E4M3;
}

/// Index of the first factor of a scaled product among the op's operands; -1 for other ops.
int first_factor(const Graph& graph, const Op& op) {
  if (op.kind == OpKind::kScaledMatmul) return 0;
  return op.kind == OpKind::kScaledMatmulAccumulate || is_f8_head(graph, op) ? 1 : -1;
}

bool quantizes(const Op& op) {
  return op.kind == OpKind::kQuantizeF8 || op.kind == OpKind::kQuantizeF8Observed;
}

class LayoutChooser {
 public:
  explicit LayoutChooser(const Graph& graph)
      : graph_(graph), copier_(graph), builder_(copier_.graph()), wanted_(graph.values().size()) {}

  Result<Graph> run() {
    SGA_TRY(find_wanted());
    for (OpId o = 0; o < graph_.ops().size(); ++o) {
      const Op& op = graph_.op(o);
      builder_.set_phase(op.phase);
      builder_.set_segment(op.segment);
      if (quantizes(op)) {
        quantize(op);
      } else if (is_f8_head(graph_, op)) {
        build_head(op);
      } else if (first_factor(graph_, op) >= 0) {
        multiply(op);
      } else {
        copier_.copy(o);
      }
      SGA_TRY(builder_.status());
    }
    copier_.copy_outputs();
    return copier_.take();
  }
  [[nodiscard]] LayoutReport report() const { return report_; }

 private:
  struct Wanted {
    bool as_is = false, transposed = false;
  };

  /// Does factor i of the product have to be written the other way round?
  static bool turned(const Op& op, size_t i) {
    return i == 0 ? op.attrs.flag("trans_a") : !op.attrs.flag("trans_b");
  }

  Status find_wanted() {
    for (OpId o = 0; o < graph_.ops().size(); ++o) {
      const Op& op = graph_.op(o);
      const int first = first_factor(graph_, op);
      if (first < 0) continue;
      for (size_t i = 0; i < 2; ++i) {
        const ValueId v = op.operands[static_cast<size_t>(first) + i];
        const OpId producer = graph_.value(v).producer;
        if (producer == kNoOp || !quantizes(graph_.op(producer)) ||
            graph_.op(producer).attrs.flag("transposed")) {
          return invalid_plan(fmt::format("op {} {} reads 8-bit floats that no quantize op makes",
                                          o, op_info(op.kind).name));
        }
        if (is_f8_head(graph_, op)) {
          wanted_[v] = {true, true};
        } else {
          (turned(op, i) ? wanted_[v].transposed : wanted_[v].as_is) = true;
        }
      }
    }
    return {};
  }

  void quantize(const Op& op) {
    const Wanted& wanted = wanted_[op.results[0]];
    std::vector<ValueId> operands;
    for (ValueId v : op.operands) operands.push_back(copier_[v]);
    const bool both = wanted.as_is && wanted.transposed;
    Attrs attrs = op.attrs;
    attrs.set("transposed", wanted.transposed && !both);
    std::vector<ValueId> results;
    if (both && op.kind == OpKind::kQuantizeF8Observed) {
      Attrs dtype;
      dtype.set("dtype", op.attrs.dtype("dtype"));
      results = builder_.op(OpKind::kQuantizeF8Both, operands, dtype);
    } else {
      results = builder_.op(op.kind, operands, attrs);
    }
    for (size_t r = 0; r < op.results.size(); ++r) copier_.bind(op.results[r], results[r]);
    if (both && op.kind == OpKind::kQuantizeF8) {
      attrs.set("transposed", true);
      turned_[op.results[0]] = builder_.op(op.kind, operands, attrs)[0];
    } else if (wanted.transposed) {
      turned_[op.results[0]] = both ? results[3] : results[0];
    }
    ++(both ? report_.num_both : wanted.transposed ? report_.num_transposed : report_.num_as_is);
    if (both) report_.extra_bytes += graph_.type(op.results[0]).bytes();
  }

  /// The logits sum over the model's dim, the gradients over rows and over the vocabulary.
  void build_head(const Op& op) {
    std::vector<ValueId> operands;
    for (ValueId v : op.operands) operands.push_back(copier_[v]);
    for (size_t i = 0; i < 2; ++i) operands.push_back(turned_.at(op.operands[1 + i]));
    const std::vector<ValueId> results = builder_.op(op.kind, std::move(operands), op.attrs);
    for (size_t r = 0; r < op.results.size(); ++r) copier_.bind(op.results[r], results[r]);
  }

  void multiply(const Op& op) {
    const auto first = static_cast<size_t>(first_factor(graph_, op));
    std::vector<ValueId> operands;
    for (ValueId v : op.operands) operands.push_back(copier_[v]);
    for (size_t i = 0; i < 2; ++i) {
      if (turned(op, i)) operands[first + i] = turned_.at(op.operands[first + i]);
    }
    Attrs attrs = op.attrs;
    attrs.set("trans_a", false);
    attrs.set("trans_b", true);
    copier_.bind(op.results[0], builder_.op1(op.kind, std::move(operands), std::move(attrs)));
  }

  const Graph& graph_;
  GraphCopier copier_;
  Builder builder_;
  std::vector<Wanted> wanted_;         // by value
  std::map<ValueId, ValueId> turned_;  // quantised value -> its transpose in the new graph
  LayoutReport report_;
};

}  // namespace

Result<Graph> choose_layout(const Graph& graph, F8Layout layout, LayoutReport* report) {
  LayoutReport done;
  Graph result = graph;
  if (layout == F8Layout::kInnerLast) {
    LayoutChooser chooser(graph);
    SGA_ASSIGN(result, chooser.run());
    done = chooser.report();
  }
  if (report != nullptr) *report = done;
  return result;
}

std::vector<std::string> explain_layout(const LayoutReport& report) {
  std::vector<std::string> lines;
  const auto add = [&](int32_t count, std::string_view what) {
    if (count > 0) lines.push_back(fmt::format("8-bit tensors: {} {}", count, what));
  };
  add(report.num_as_is, "as they lie: the dim that is summed over is the last");
  add(report.num_transposed, "transposed only: no product reads them as they lie");
  add(report.num_both, fmt::format("both ways by one read of what they are rounded from, {} more",
                                   format_bytes(report.extra_bytes)));
  return lines;
}

}  // namespace sgactor::graph
