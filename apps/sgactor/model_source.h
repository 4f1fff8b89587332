#pragma once
#include "apps/sgactor/job_spec.h"
#include "graph/models/llama.h"
#include "transport/storage/state_source.h"

#include <memory>
#include <string>

namespace sgactor::apps {

/// The model that a job names: a preset, or config.json of model.hf, with model.vocab_size applied.
/// Errors: kInvalidArgument: an unknown preset (with the names and the nearest), a missing file, a
/// config that is not of the Llama family.
Result<graph::LlamaConfig> load_model(const JobSpec& job);

/// config.json in `dir_or_file` (a Hugging Face directory or the file itself).
Result<graph::LlamaConfig> load_hf_config(const std::string& dir_or_file);

/// Opens model weights: a Hugging Face directory, a run directory (newest whole checkpoint), or a
/// checkpoint's step directory. Errors: kInvalidArgument naming `path`; kCorruption.
Result<std::unique_ptr<transport::StateSource>> open_weights(const std::string& path);

/// Loads every parameter once into a scratch buffer. Errors: those of the first that fails.
Status check_parameters(const graph::LlamaConfig& config, const transport::StateSource& weights);

/// State at step 0: parameters drawn by Philox from (seed, name) as their specs say, or read from
/// `weights` where that is not null; moments "m/…" and "v/…" zero. The same bits on every machine
/// whatever the number of threads.
std::unique_ptr<transport::StateSource> initial_state(
    const graph::LlamaConfig& config, uint64_t seed,
    std::unique_ptr<transport::StateSource> weights);

}  // namespace sgactor::apps
