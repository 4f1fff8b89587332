#pragma once
#include "graph/base/status.h"

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace sgactor::actors {
class ChosenStrategy;
}

namespace sgactor::apps {

/// What a job file says, key by key; the initialisers here are the defaults. The table in
/// job_keys.cc gives each field its TOML name, range and help. Paths are absolute after load_job().
struct JobSpec {
  struct Model {
    std::string preset;
    std::string hf;
    int64_t vocab_size = 0;
    std::string weights;
  } model;
  struct Data {
    std::string kind = "mock";
    std::string path;
    std::string tokenizer = "bytes";
    int64_t mock_tokens = 1 << 20;
    double validation_fraction = 0;
    bool shuffle = true;
  } data;
  struct Training {
    int64_t steps = 100;
    int64_t seq_len = 128;
    int64_t micro_batch_size = 4;   ///< of "auto": the one to begin with
    bool auto_micro_batch = false;  ///< "auto" was given; no key of its own
    int64_t micro_batch_start = 0;
    int64_t global_batch_size = 16;
    int64_t seed = 1;
    std::string dtype = "f32";
    std::string recompute = "none";
    std::string memory_budget;
    int64_t validation_interval = 0;
    int64_t validation_batches = 8;
  } training;
  struct Optimizer {
    std::string name = "adamw";
    double lr = 3e-4;
    double min_lr = 3e-5;
    int64_t warmup_steps = 10;
    int64_t decay_steps = 0;
    double beta1 = 0.9;
    double beta2 = 0.95;
    double eps = 1e-8;
    double weight_decay = 0.1;
    double max_grad_norm = 1.0;
  } optimizer;
  struct Parallelism {
    int64_t data_parallel_degree = 1;
    int64_t tensor_parallel_degree = 1;
    int64_t pipeline_parallel_degree = 1;
    int64_t zero_stage = 0;
    int64_t logical_data_parallel = 0;
    std::string reduction = "exact";
    std::string schedule = "1f1b";
  } parallelism;
  struct Resilience {
    std::string mode = "auto";
    int64_t mirror_interval = 10;
    int64_t max_faults = 20;
    double orphan_timeout = 60;
    double progress_factor = 10;
    double progress_floor = 10;
    std::string check_frames = "auto";
    int64_t verify_interval = 0;
    bool allow_inexact = false;
  } resilience;
  struct Checkpoint {
    int64_t interval = 100;
    int64_t keep = 3;
    bool export_hf = false;
  } checkpoint;
  struct Compile {
    bool fuse = true;
    std::vector<std::string> disable_passes;
    std::string f8_layout = "auto";
    std::string f8_head = "auto";
    std::string head_room = "auto";
    std::string bucket_size = "auto";
    std::string topology;
  } compile;
  struct Log {
    int64_t interval = 1;
    int64_t trace_steps = 0;
    std::string level = "info";
    std::string sample_prompt;
    int64_t sample_tokens = 0;
    std::string status_page;
    bool tensorboard = false;
  } log;
  struct Profile {
    std::string use;
    std::string record;
    bool foreign = false;  ///< `use` has times of another device: left out; no key of its own
  } profile;
  struct Strategy {
    std::string name = "mesh";
    std::vector<std::string> options;
  } strategy;
  struct Plugins {
    std::vector<std::string> libraries;
  } plugins;

  /// What strategy.name names, once choose_strategy() has found it; null: the default.
  std::shared_ptr<actors::ChosenStrategy> strategy_in_use;
  std::string name;  ///< file name without ".toml"; names the default run directory
  std::string file;  ///< as given; empty for text that came from no file
  /// "training.steps" -> "job.toml:12" or "--training.steps=5", for keys that were given.
  std::map<std::string, std::string> places;

  /// "job.toml:12: training.steps", "--training.steps=5: training.steps", or, for a key left at its
  /// default, "job.toml: training.steps": the head of every message about a key.
  [[nodiscard]] std::string at(std::string_view key) const;
  /// Steps at which the cosine ends: decay_steps, or steps where that is 0.
  [[nodiscard]] int64_t decay_end() const {
    return optimizer.decay_steps > 0 ? optimizer.decay_steps : training.steps;
  }
  [[nodiscard]] int64_t logical_ranks() const {
    return parallelism.logical_data_parallel > 0 ? parallelism.logical_data_parallel
                                                 : parallelism.data_parallel_degree;
  }
  /// Sequences of a step and logical rank. Pre: check_combinations is ok.
  [[nodiscard]] int64_t rank_batch_size() const {
    return training.global_batch_size / logical_ranks();
  }
  [[nodiscard]] int64_t num_micro_batches() const {
    return training.global_batch_size / (training.micro_batch_size * logical_ranks());
  }
};

/// An override from the command line: "--training.steps=5" is {"training.steps", "5"}.
struct JobOverride {
  std::string key;
  std::string value;
};

/// Longest job file or config.json that is read.
inline constexpr uintmax_t kMaxTextFileBytes = uintmax_t{16} << 20;
/// Errors: kInvalidArgument if `path` is there and no regular file (a device or pipe may never end)
/// or longer than kMaxTextFileBytes. Reads nothing.
Status check_text_file(const std::string& path);

/// Reads a job file, applies overrides in order, checks every key alone and in combination, and
/// makes paths absolute (relative to the job file if they exist there, else to the current
/// directory; what is in neither is taken to be beside the file, or, of an override, in the current
/// directory). Values that are well-formed but beyond this build pass; check_supported() refuses
/// them. Errors: kInvalidArgument, one line, "FILE:LINE: section.key: what was expected".
Result<JobSpec> load_job(const std::string& path, const std::vector<JobOverride>& overrides);
/// Same for text; `file` names it in messages and is what relative paths start from.
Result<JobSpec> parse_job(std::string_view toml, const std::string& file,
                          const std::vector<JobOverride>& overrides);

/// The job as TOML that parses back to the same spec: every key in table order. With `comments`,
/// each key's help, range and default stand above it (`sgactor init`).
std::string write_job(const JobSpec& job, bool comments);

/// Rules between keys: a batch that does not divide, a path that the data lacks … Errors:
/// kInvalidArgument naming the key. load_job and parse_job have called it.
Status check_combinations(const JobSpec& job);
/// Errors: kUnsupported for the first value that parses but that this build cannot run, naming the
/// key and what can be given instead.
Status check_supported(const JobSpec& job);

}  // namespace sgactor::apps
