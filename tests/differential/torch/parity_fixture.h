#pragma once
#include "graph/models/llama.h"
#include "graph/passes/build_update.h"
#include "transport/storage/safetensors.h"

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace sgactor::differential {

/// What make_fixtures.py stored of one model: its start, its data and what PyTorch made of them.
struct ParityFixture {
  graph::LlamaConfig config;
  graph::OptimizerOptions optimizer;
  std::shared_ptr<const transport::HfDirectory> start;
  std::unique_ptr<transport::SafetensorsFile> final_weights;
  int64_t num_steps = 0, num_micro_batches = 0, batch = 0, seq_len = 0;
  std::vector<int32_t> tokens;   ///< [num_steps, num_micro_batches, batch, seq_len]
  std::vector<int32_t> targets;  ///< same; negative: not counted
  std::vector<double> losses, grad_norms, learning_rates;  ///< one a step
  std::map<std::string, double> final_norms;               ///< L2, one a parameter

  /// First element of a micro-batch in `tokens` and `targets`. Steps count from 1.
  [[nodiscard]] size_t offset(int64_t step, int64_t micro_batch) const {
    return static_cast<size_t>(((step - 1) * num_micro_batches + micro_batch) * batch * seq_len);
  }
  [[nodiscard]] size_t micro_batch_size() const { return static_cast<size_t>(batch * seq_len); }
  /// Targets of a step that count.
  [[nodiscard]] int64_t valid_tokens(int64_t step) const;
};

/// Errors: kInvalidArgument naming the file.
Result<ParityFixture> read_parity_fixture(const std::string& dir);

}  // namespace sgactor::differential
