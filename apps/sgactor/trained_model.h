#pragma once
#include "graph/base/status.h"
#include "graph/models/llama.h"
#include "transport/storage/state_source.h"

#include <memory>
#include <string>

namespace sgactor::apps {

/// A trained model wherever it lies: weights, architecture and tokenizer.
struct TrainedModel {
  graph::LlamaConfig config;
  std::unique_ptr<transport::StateSource> state;
  std::string tokenizer;  ///< for create_tokenizer; empty if the source names none
  int64_t seq_len = 0;    ///< that it was trained with; 0 if unknown
  std::string found;      ///< for people: "runs/x/ckpt/step-00000200 (step 200)"
};

/// Opens a run directory (its newest whole checkpoint), a checkpoint's step directory, or a Hugging
/// Face directory. Errors: kInvalidArgument naming `path` and what was expected, or a
/// tensor that config.json's model has no place for; kCorruption.
Result<TrainedModel> open_model(const std::string& path);

}  // namespace sgactor::apps
