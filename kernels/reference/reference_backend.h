#pragma once
#include "kernels/backend/backend.h"

#include <memory>

namespace sgactor::kernels {

/// The oracle: every float value is computed and kept in float64, one obvious loop an op. Storage
/// is 8 bytes an element (floats as f64, integers as i64). Single-threaded; work runs inline in
/// Stream::launch, completions too. Results of f32, bf16 … ops are not rounded to their dtype: the
/// oracle follows the mathematics. Rounding happens where it is asked for, to dtypes narrower than
/// f32 (cast, constant, rope_table, philox_uniform), and in read_tensor. A body may place results
/// on operands in any way; places must lie on multiples of 8 bytes.
Result<std::unique_ptr<Backend>> create_reference_backend(const BackendOptions& options);

/// Runs a whole graph on host values, for tests and checks. `inputs[i]` has the element count of
/// input i, as f64 (integers too). Returns one vector an output. Nothing is rounded to f32 on the
/// way in or out. Errors: kInvalidPlan from the verifier, kInvalidArgument for inputs that do not
/// fit or an id outside its table.
Result<std::vector<std::vector<double>>> run_reference(
    const graph::Graph& graph, const std::vector<std::vector<double>>& inputs);

}  // namespace sgactor::kernels
