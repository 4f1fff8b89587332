#pragma once
#include "actors/runtime/training.h"
#include "graph/models/llama.h"
#include "kernels/backend/backend.h"
#include "transport/storage/dataset.h"
#include "transport/storage/state_source.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sgactor::apps {

struct SamplingOptions {
  int64_t max_tokens = 200;
  double temperature = 0.8;  ///< 0: the most likely token
  int64_t top_k = 0;         ///< 0: all tokens
  uint64_t seed = 1;
};

/// Draws token number `index` of a text from its logits by Philox (seed, index). Ties keep the
/// lower id. Deterministic; logits that are not finite count as impossible.
int32_t sample_token(std::span<const float> logits, const SamplingOptions& options, uint64_t index);

/// Continues token sequences with a model. Forward plans of a few fixed lengths; a sequence is
/// filled up on the right, which a causal model does not see. Beyond the longest length the window
/// slides. Holds one plan at a time.
class TextSampler {
 public:
  /// `backend` and `state` must outlive the sampler. `max_context` >= 1 bounds the lengths.
  TextSampler(graph::LlamaConfig config, int64_t max_context, kernels::Backend& backend,
              const transport::StateSource& state);
  /// Whether the device can hold the plan that so many tokens lead to. Allocates nothing there.
  /// Errors: kOutOfMemory, scope kDevice, as apps::check_memory has it.
  [[nodiscard]] Status check_memory(int64_t num_tokens) const;
  /// Logits (vocabulary) that follow `ids`. Pre: ids is not empty.
  Result<std::vector<float>> next_logits(std::span<const int32_t> ids);
  /// Appends up to max_tokens sampled ids to `ids`, telling each to `on_token`; stops after
  /// `end_of_text` (-1: never).
  Status extend(std::vector<int32_t>& ids, const SamplingOptions& options, int32_t end_of_text,
                const std::function<void()>& on_token);

 private:
  [[nodiscard]] int64_t length_for(int64_t num_tokens) const;
  [[nodiscard]] Result<graph::Plan> plan_of(int64_t length) const;
  Status use_length(int64_t length);

  graph::LlamaConfig config_;
  int64_t max_context_;
  kernels::Backend& backend_;
  const transport::StateSource& state_;
  int64_t length_ = 0;
  // The plan must outlive the runner made from it.
  graph::Plan plan_;
  std::unique_ptr<actors::ForwardRunner> runner_;
};

/// Prints `prompt` and its continuation on standard output as it comes. Errors: kInvalidArgument if
/// the prompt is empty or has a token beyond the vocabulary.
Status print_continuation(TextSampler& sampler, const transport::Tokenizer& tokenizer,
                          int64_t vocab_size, const std::string& prompt,
                          const SamplingOptions& options);

}  // namespace sgactor::apps
