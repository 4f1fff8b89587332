#pragma once
#include "kernels/backend/backend.h"

#include <memory>

namespace sgactor::kernels {

/// The oracle: every float value is computed and kept in float64, one obvious loop an op. Storage
/// is 8 bytes an element (floats as f64, integers as i64). Single-threaded; work runs inline in
/// Stream::launch, completions too.
Result<std::unique_ptr<Backend>> create_reference_backend(const BackendOptions& options);

/// Runs a whole graph on host values, for tests and checks. `inputs[i]` has the element count of
/// input i, as f64 (integers too). Returns one vector an output.
Result<std::vector<std::vector<double>>> run_reference(
    const graph::Graph& graph, const std::vector<std::vector<double>>& inputs);

}  // namespace sgactor::kernels
