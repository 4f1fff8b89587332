#pragma once
#include "graph/ir/graph.h"

#include <cstdint>
#include <string>
#include <vector>

namespace sgactor::graph {

/// In which layout a matrix unit takes 8-bit operands.
enum class F8Layout : uint8_t {
  kAny = 0,    ///< each operand as it lies
  kInnerLast,  ///< the summed dim last, in both operands ("TN" in BLAS's columns-first words):
               ///< Hopper
};

struct LayoutReport {
  int32_t num_as_is = 0;  ///< quantised tensors, a micro-batch
  int32_t num_transposed = 0;
  int32_t num_both = 0;  ///< one read, two results; or two ops, where nothing observes the tensor
  int64_t extra_bytes = 0;  ///< of second results, a micro-batch
};
std::vector<std::string> explain_layout(const LayoutReport& report);

/// Decides for each tensor that is rounded to 8 bits in which orientations it is written, so that
/// every scaled product finds the dim it sums over last and no transpose of 8-bit data runs beside
/// it: the quantize op writes x, its transpose, or both by one read. Products then have trans_a
/// false and trans_b true. With kAny the graph is returned as it is. Exact: only where bytes lie
/// changes. Pre: infer_precision_f8 has run, plan_recompute has not. Deterministic, pure. Errors:
/// kInvalidPlan if an operand of a scaled product is made by another op than a quantize op.
Result<Graph> choose_layout(const Graph& graph, F8Layout layout, LayoutReport* report = nullptr);

}  // namespace sgactor::graph
