#pragma once
#include "graph/ir/graph.h"

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sgactor::graph {

/// What an operand of a product is to the training step.
enum class F8Role : uint8_t { kActivation = 0, kWeight, kGradient };
std::string_view to_string(F8Role role);

/// A row of the rule table: operands of one role.
struct F8Row {
  F8Role role;
  DType dtype;
  std::string_view reason;
};
/// One row a role, in the order of F8Role.
std::span<const F8Row> f8_rules();

/// A tensor that has a scale: the amax of the last step, state of the run, from which f8_scale
/// makes the scale. Inputs and outputs: kMoment "amax/<name>", kAccumulator "seen/<name>", f32[].
struct ScaledTensor {
  std::string name;  ///< "x/<parameter>", "w/<parameter>", "dy/<parameter>"
  std::string segment;
  F8Role role = F8Role::kActivation;
  int32_t num_products = 0;  ///< that read it, a micro-batch
};

/// What reads 8 bits beside the products of the layers.
struct F8Options {
  bool head = false;  ///< linear_cross_entropy_grad: three products
  /// A parameter that is there whole is rounded once a micro-batch, for the backward pass too,
  /// which keeps a byte an element between the two; else once in each piece.
  bool keep_weights = false;
};

struct F8Report {
  std::vector<ScaledTensor> tensors;         ///< in order of first use
  int32_t num_products = 0;                  ///< of the layers
  int32_t num_heads = 0;                     ///< with the loss and its gradients
  std::map<std::string_view, int32_t> left;  ///< matmuls that stay as they are, by reason
};
/// One line a rule and one a reason why matmuls stay: "activations: 16 in f8e4m3: …".
std::vector<std::string> explain_f8(const F8Report& report);

/// Second half of infer_precision for jobs in 8-bit floats: of the graph that infer_precision made
/// for kBF16, the products of the layers' linear maps (a forward matmul of an activation with a
/// parameter, outside the segments that compute the loss, and the two products of its gradient)
/// read operands rounded to 8 bits and sum in f32; what they make keeps its dtype. The gradient
/// goes straight through the rounding: it is that of the product. With `options.head` so does the
/// fused head (fuse_ops): its rows and its weight are rounded as the layers' are, the gradients of
/// its logits inside by a fixed scale.
///
/// An operand is rounded where it is made: an activation or a gradient once at all, right behind
/// the op that makes it, so that the backward pass reads 8 bits of it; a weight once in each piece
/// that reads it, or once (keep_weights). Scales are delayed (Micikevicius et al., 2022): a step
/// rounds by the amax of the last one, and adds what it sees to "seen/<name>", which
/// update_f8_scales makes the next amax. Deterministic, pure. Errors: kInvalidPlan if a shape rule
/// refuses an op. `report`, if given, is written on success.
Result<Graph> infer_precision_f8(const Graph& graph, F8Report* report = nullptr,
                                 const F8Options& options = {});

/// Appends to the update graph what makes the next step's scales: in phase kReduce the largest of
/// what all ranks have seen, over groups "dp" and "tp" where they have more than one member, so
/// that every rank has the same bits; in phase kUpdate update_amax. All in the tensor's segment.
Result<Graph> update_f8_scales(const Graph& update, std::span<const ScaledTensor> tensors,
                               int32_t dp, int32_t tp);

}  // namespace sgactor::graph
