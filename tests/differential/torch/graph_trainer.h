#pragma once
#include "graph/ir/graph.h"
#include "tests/differential/torch/parity_fixture.h"

#include <map>
#include <string>
#include <vector>

namespace sgactor::differential {

/// Trains with the two graphs themselves, in float64 by run_reference: no plan, no fusion, no
/// backend; what autodiff and build_update mean.
class GraphTrainer {
 public:
  static Result<GraphTrainer> create(const ParityFixture& fixture);
  /// Runs a step (the first is 1).
  Status step(int64_t step);
  [[nodiscard]] double loss() const { return state_.at("loss")[0]; }
  [[nodiscard]] double grad_norm() const { return state_.at("grad_norm")[0]; }
  [[nodiscard]] double learning_rate() const { return state_.at("lr")[0]; }
  [[nodiscard]] const std::vector<double>& parameter(const std::string& name) const {
    return state_.at(name);
  }

 private:
  explicit GraphTrainer(const ParityFixture& fixture) : fixture_(&fixture) {}
  Status load_state();
  /// Runs a graph on the state by names of its inputs and keeps its outputs there.
  Status run(const graph::Graph& graph);

  const ParityFixture* fixture_;
  graph::Graph training_;
  graph::Graph update_;
  std::map<std::string, std::vector<double>> state_;
};

}  // namespace sgactor::differential
