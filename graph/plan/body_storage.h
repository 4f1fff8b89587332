#pragma once
#include "graph/ir/graph.h"
#include "graph/ir/op_table.h"
#include "graph/plan/plan.h"

#include <cstdint>
#include <span>
#include <vector>

namespace sgactor::graph {

/// Which values of a subgraph's body share bytes, and while which ops they are needed. Shared by
/// plan_memory, which places them, and verify_memory, which checks the places.

/// Operand that result `result` of an op shares bytes with in this way; kNoValue if there is none.
ValueId aliased_operand(const Op& op, uint32_t result, AliasSpec::Kind kind);
/// Follows views up to the value that owns the bytes.
ValueId view_root(const Graph& graph, ValueId v);
/// Follows views and in-place updates up to the value that owns the bytes first.
ValueId storage_root(const Graph& graph, ValueId v);

/// A value and its views.
struct ViewGroup {
  ValueId root = kNoValue;
  int32_t first = -1;       ///< op that defines it; -1: an input; of swiglu_grad's results, the
                            ///< swiglu of the same gates in front of it
  int32_t last = -1;        ///< last op that reads it; the number of ops for a body output; of
                            ///< what a maker reads, the quantize_f8_both op behind it
  int32_t input = -1;       ///< which body input
  int32_t output = -1;      ///< which body output a member is
  int32_t num_outputs = 0;  ///< how many body outputs its members are
  int64_t bytes = 0;        ///< largest member
};

struct BodyStorage {
  std::vector<ViewGroup> groups;
  std::vector<int32_t> group_of;  ///< by value
};
BodyStorage find_view_groups(const Graph& body, StorageModel storage);

/// May the backend let result `result` of op `op` take the bytes of its operand `operand`, as far
/// as the op is concerned: the row allows it, and each operand of the operand's group is as large
/// as the result. Whether the operand's group is needed later is for the caller to know.
bool may_reuse_operand(const Graph& body, const BodyStorage& s, const Op& op,
                       const AliasSpec& alias, StorageModel storage);

}  // namespace sgactor::graph
