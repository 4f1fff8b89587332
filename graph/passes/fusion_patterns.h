#pragma once
#include "graph/passes/pattern_rewriter.h"

namespace sgactor::graph {

/// Matchers of fuse_ops. Each looks at the whole graph, adds its replacements to the rewriter and
/// returns how many groups it fused. A group is fused only if nothing outside it needs a value that
/// would disappear.

/// acc += a @ b: accumulate(acc, matmul(a, b)) with rank-2 operands of one dtype.
int32_t match_matmul_accumulate(const GraphView& view, Rewriter& rewriter);

/// softmax(mask(scale * q k^T)) v with grouped heads, and its gradient where the graph has one.
int32_t match_flash_attention(const GraphView& view, Rewriter& rewriter);

/// silu(gate) * up, and its gradient where the graph has one.
int32_t match_swiglu(const GraphView& view, Rewriter& rewriter);

/// rms_norm(x + r) within a segment.
int32_t match_add_rms_norm(const GraphView& view, Rewriter& rewriter);

/// ds + (gradient of a norm with respect to its input).
int32_t match_add_rms_norm_grad(const GraphView& view, Rewriter& rewriter);

/// The moments' and the parameter's update, as build_update writes them.
int32_t match_adamw(const GraphView& view, Rewriter& rewriter);

}  // namespace sgactor::graph
