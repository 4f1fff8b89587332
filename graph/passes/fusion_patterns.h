#pragma once
#include "graph/passes/pattern_rewriter.h"

namespace sgactor::graph {

/// Matchers of fuse_ops. Each looks at the whole graph, adds its replacements to the rewriter and
/// returns how many groups it fused. A group is fused only if nothing outside it needs a value that
/// would disappear.

/// acc += a @ b: accumulate(acc, matmul(a, b)) with rank-2 operands of one dtype.
int32_t match_matmul_accumulate(const GraphView& view, Rewriter& rewriter);

/// a @ b + c @ d, where nothing else reads the first product: the second adds into it. Same
/// conditions as match_matmul_accumulate.
int32_t match_matmul_sum(const GraphView& view, Rewriter& rewriter);

/// x + a @ b -> matmul(a, b, x), views between the product and the sum moved behind it; of two
/// products the later one adds. Operands of rank 2 behind the views, the summed dim at least as
/// long as the result's rows: a shorter product is bound by memory, where a kernel that also reads
/// x takes longer than a pass of its own. The product and the sum are rounded once, not twice. Of
/// the forward pass: residuals.
int32_t match_matmul_add(const GraphView& view, Rewriter& rewriter);
/// The same of other phases: gradients of one value.
int32_t match_matmul_add_gradient(const GraphView& view, Rewriter& rewriter);

/// softmax(mask(scale * q k^T)) v with grouped heads, and its gradient where the graph has one.
int32_t match_flash_attention(const GraphView& view, Rewriter& rewriter);

/// cross_entropy(x w^T, targets). In a training graph, with its gradients and the accumulation of
/// dw, as one forward op: the loss's gradient is a number known before the forward pass (one over
/// the step's valid tokens), so that each block of logits serves the loss, dx and dw at once and is
/// then gone. To save the log-sum-exp and compute the logits again in the backward pass would cost
/// a third matmul of the head's size and save nothing.
int32_t match_linear_cross_entropy(const GraphView& view, Rewriter& rewriter);

/// silu(gate) * up, and its gradient where the graph has one.
int32_t match_swiglu(const GraphView& view, Rewriter& rewriter);

/// rms_norm(x + r) within a segment.
int32_t match_add_rms_norm(const GraphView& view, Rewriter& rewriter);

/// ds + (gradient of a norm with respect to its input).
int32_t match_add_rms_norm_grad(const GraphView& view, Rewriter& rewriter);

/// The moments' and the parameter's update, as build_update writes them.
int32_t match_adamw(const GraphView& view, Rewriter& rewriter);

/// Trees of two or more pointwise ops within a segment, each inner value read by the tree alone and
/// of the result's type, as one fused_pointwise: inner values are neither written nor read. Runs
/// last: the other patterns' ops do more in one pass.
int32_t match_pointwise_chain(const GraphView& view, Rewriter& rewriter);

}  // namespace sgactor::graph
