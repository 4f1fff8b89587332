#pragma once
#include "graph/models/llama.h"
#include "transport/storage/safetensors.h"
#include "transport/storage/state_source.h"

#include <string>
#include <vector>

namespace sgactor::apps {

/// Writes parameters as a Hugging Face directory: config.json and model*.safetensors (f32), and a
/// copy of the file of `tokenizer` (as for create_tokenizer; "bytes" or empty: none) as
/// tokenizer.json or tokenizer.model. Atomic: the directory appears whole or not. Holds all
/// parameters in memory. Errors: kInvalidArgument if `out_dir` exists and is not empty, or the
/// tokenizer cannot be read.
Status export_hf(const graph::LlamaConfig& config, const transport::StateSource& state,
                 const std::string& tokenizer, const std::string& out_dir);

/// Errors: kInvalidArgument if `dir` exists and is not an empty directory. `what` heads the
/// message.
Status check_new_directory(const std::string& what, const std::string& dir);

/// A model's parameters in memory, in the order of llama_parameters().
struct LoadedParameters {
  std::vector<graph::ParameterSpec> specs;
  std::vector<std::vector<std::byte>> bytes;
  [[nodiscard]] std::vector<transport::NamedTensor> tensors() const;
};
Result<LoadedParameters> load_parameters(const graph::LlamaConfig& config,
                                         const transport::StateSource& state);

}  // namespace sgactor::apps
