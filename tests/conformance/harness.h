#pragma once
#include "kernels/backend/backend.h"

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace sgactor::testing {

/// The explicit table of the suite: a row a backend that sgactor has or will have. One that this
/// build or machine lacks has no `create` and says why.
kernels::BackendTable conformance_backends();
/// Names of its rows.
std::vector<std::string> backend_names();
/// Of the row's name: whether its tensors are numbers (symbolic keeps hashes).
bool keeps_numbers(const std::string& backend);

struct Completion {
  uint64_t token = 0;
  Status status;
  kernels::LaunchTiming timing;
};

/// Keeps completions in order of arrival.
class RecordingSink final : public kernels::CompletionSink {
 public:
  void on_complete(uint64_t token, const Status& status,
                   kernels::LaunchTiming timing) noexcept override;
  /// Blocks until `n` have arrived, at most a minute; returns all so far.
  std::vector<Completion> wait_for(size_t n);

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::vector<Completion> completions_;
};

/// Where a launch keeps its values.
struct Layout {
  std::vector<kernels::Place> places;
  int64_t workspace_bytes = 0;
  std::vector<int32_t> output_shares_input;  ///< index of an input, -1: bytes of its own
};

struct LayoutOptions {
  /// Results of reshapes lie on their operand's bytes (as plans place them), else elsewhere.
  bool views_share = true;
  /// One alias (result, operand) of the last op that the table allows (kMay), used as well; -1:
  /// none. Aliases that the table demands (kMust) are always used.
  int32_t may_result = -1;
  int32_t may_operand = -1;
};
Layout make_layout(const kernels::Backend& backend, const graph::Graph& graph,
                   const LayoutOptions& options);

struct RunResult {
  Status status;                                ///< of compile, launch or the harness itself
  std::vector<std::vector<std::byte>> outputs;  ///< native bytes; empty on error
};

/// Compiles the graph, launches it once on a fresh stream and reads the outputs. Memory that the
/// launch must not read is filled with a pattern where the host can write it, and the gaps between
/// tensors are checked afterwards (kInternal if one was written).
RunResult run_on(kernels::Backend& backend, const graph::Graph& graph,
                 const std::vector<std::vector<double>>& inputs, const Layout& layout);
RunResult run_on(kernels::Backend& backend, const graph::Graph& graph,
                 const std::vector<std::vector<double>>& inputs, const LayoutOptions& options = {});

}  // namespace sgactor::testing
