#pragma once
#include "graph/ir/graph.h"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sgactor::graph {

/// In which dtype an op works where the job asks for a narrow one.
enum class PrecisionRule : uint8_t {
  kFollow = 0,  ///< narrow if one of its operands is narrow by then, else as the model says
  kNarrow,      ///< its operands are cast to the narrow dtype
  kWide,        ///< its operands are cast back to what the model says
};
std::string_view to_string(PrecisionRule rule);

/// A row of the rule table: one op kind. Bit i of a mask is operand i.
struct PrecisionRow {
  OpKind kind;
  PrecisionRule rule;
  uint32_t model;  ///< operands that keep the model's dtype: statistics, accumulators
  uint32_t any;    ///< operands that are taken in whatever dtype they come
  std::string_view reason;
};
/// One row an op kind, in the order of OpKind.
std::span<const PrecisionRow> precision_rules();
/// The row of a kind; of one that has none yet: kWide.
const PrecisionRow& precision_rule(OpKind kind);

/// What became of one op of the graph that the pass was given.
struct PrecisionDecision {
  OpId op = kNoOp;
  OpKind kind = OpKind::kAdd;
  Phase phase = Phase::kForward;
  bool narrow = false;
  std::string_view reason;
};

struct PrecisionReport {
  DType narrow = DType::kF32;
  std::vector<PrecisionDecision> decisions;  ///< one an op, in order; none where the pass is idle
  int32_t num_parameter_casts = 0;           ///< of graph inputs, one a piece that reads them
  int32_t num_other_casts = 0;
};
/// One line an op kind and outcome: "matmul: 62 in bf16: …", in the order of OpKind.
std::vector<std::string> explain_precision(const PrecisionReport& report);

struct PrecisionOptions {
  /// The narrow copy that the first piece makes of a parameter serves the others too, the backward
  /// pass above all: two bytes an element are kept between them.
  bool keep_casts = false;
};

/// Gives f32 values of phases kForward and kBackward the dtype `narrow` where the rule table allows
/// it and inserts the casts. Inputs and outputs of the graph keep their types: master parameters
/// stay f32 and are cast once in each piece (phase and segment) that reads them, or once a
/// micro-batch (keep_casts); accumulators stay f32. What an op computes narrow, its result is
/// narrow; a wide result that narrow ops read is cast where it is made, a narrow one that a wide op
/// reads is cast where it is read. Constants and rotation tables are made in the dtype they are
/// needed in. Values that are not f32 are left alone. With the casts taken for identities the
/// result computes what `graph` does. Pre: fuse_ops has run, since fused patterns hold no casts.
/// Deterministic, pure. `narrow` is kBF16, or kF32: then the graph is returned as it is. Errors:
/// kUnsupported for other dtypes; kInvalidPlan if a shape rule refuses an op (a row of the table is
/// wrong). `report`, if given, is written on success.
Result<Graph> infer_precision(const Graph& graph, DType narrow, PrecisionReport* report = nullptr,
                              const PrecisionOptions& options = {});

}  // namespace sgactor::graph
