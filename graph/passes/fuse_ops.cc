#include "graph/passes/fuse_ops.h"

#include "graph/passes/fusion_patterns.h"
#include "graph/passes/rewrite.h"

#include <algorithm>

namespace sgactor::graph {
namespace {

/// kHalf: narrow, but not of 8 bits.
enum class Where : uint8_t { kAlways, kWide, kNarrow, kHalf };

struct Pattern {
  const char* name;
  int32_t (*match)(const GraphView&, Rewriter&);
  Where where = Where::kAlways;  ///< by FusionOptions::narrow and ::eight_bits
};

bool applies(Where where, const FusionOptions& options) {
  switch (where) {
    case Where::kAlways:
      return true;
    case Where::kWide:
      return !options.narrow;
    case Where::kNarrow:
      return options.narrow;
    case Where::kHalf:
      return options.narrow && !options.eight_bits;
  }
  return true;
}

// In order: a later pattern sees the graph that the earlier ones leave.
constexpr Pattern kPatterns[] = {
    {"flash_attention", match_flash_attention},  // saves the T x T scores and probabilities
    {"linear_cross_entropy", match_linear_cross_entropy},  // never holds the logits
    {"swiglu", match_swiglu},  // one pass over gate and up instead of two or four
    // Before add_rms_norm: with its sum from the product a norm is cheap to compute again.
    {"matmul_add", match_matmul_add, Where::kNarrow},  // no pass over the product to add to it
    // Likewise; but products of 8 bits are so quick that adding in them costs more than a pass.
    {"matmul_add_gradient", match_matmul_add_gradient, Where::kHalf},
    {"add_rms_norm", match_add_rms_norm},            // reads the residual once
    {"add_rms_norm_grad", match_add_rms_norm_grad},  // writes the gradient of the residual once
    {"matmul_accumulate", match_matmul_accumulate},  // no separate gradient: beta = 1 in the matmul
    // Gradients of one value: no product and sum of their own. A narrow matmul makes no f32 to add
    // to in place.
    {"matmul_sum", match_matmul_sum, Where::kWide},
    {"adamw", match_adamw},                      // one pass over parameter, moments and gradient
    {"fused_pointwise", match_pointwise_chain},  // no values between pointwise ops
};

Status check_disabled(const FusionOptions& options) {
  for (const std::string& name : options.disabled) {
    std::string known;
    bool found = false;
    for (const Pattern& pattern : kPatterns) {
      found = found || name == pattern.name;
      known += (known.empty() ? "" : ", ") + std::string(pattern.name);
    }
    if (!found) return invalid_argument("fusion \"" + name + "\" does not exist; known: " + known);
  }
  return {};
}

}  // namespace

Result<Graph> fuse_ops(const Graph& graph, std::vector<FusionReport>* report,
                       const FusionOptions& options) {
  SGA_TRY(check_disabled(options));
  Graph current = graph;
  for (const Pattern& pattern : kPatterns) {
    const auto& disabled = options.disabled;
    if (std::find(disabled.begin(), disabled.end(), pattern.name) != disabled.end()) continue;
    if (!applies(pattern.where, options)) continue;
    const GraphView view(current);
    Rewriter rewriter(current);
    const int32_t count = pattern.match(view, rewriter);
    if (count > 0) {
      auto next = rewriter.build();
      if (!next.ok()) return next.status().with_context(pattern.name);
      current = std::move(next).value();
    }
    if (report != nullptr && count > 0) report->push_back({pattern.name, count});
  }
  // Scalars that only absorbed ops used are dead now.
  return clean_graph(current, /*merge_equal=*/false);
}

}  // namespace sgactor::graph
