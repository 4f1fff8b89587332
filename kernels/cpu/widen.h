#pragma once
#include "kernels/backend/backend.h"

#include <cstdint>
#include <vector>

namespace sgactor::kernels::cpu {

/// A body in which arithmetic on bf16 and f16 values is done in f32: each such op reads casts of
/// its operands and its results are cast back, so that only storage is narrow. Values that it adds
/// live in scratch, each from just before its op to just after it.
struct WidenedBody {
  static constexpr int64_t kPlaced = -1;

  graph::Graph graph;
  std::vector<Place> places;             ///< one a value of `graph`; for those in scratch unused
  std::vector<int64_t> scratch_offsets;  ///< one a value; kPlaced if it has a place
  int64_t scratch_bytes = 0;
};

/// True if some op of the body calculates with bf16 or f16 operands.
bool needs_widening(const graph::Graph& body);
/// Pre: `places` has one entry a value of `body`. Errors: kInvalidPlan from the op table's rules.
Result<WidenedBody> widen_body(const graph::Graph& body, std::span<const Place> places);

}  // namespace sgactor::kernels::cpu
