#include "apps/sgactor/model_source.h"

#include "graph/base/units.h"
#include "transport/storage/checkpoint.h"
#include "transport/storage/initial_state.h"
#include "transport/storage/run_files.h"
#include "transport/storage/safetensors.h"

#include <filesystem>
#include <vector>

namespace sgactor::apps {
namespace {

namespace fs = std::filesystem;

Status unknown_preset(const JobSpec& job) {
  std::string names;
  std::string nearest;
  int distance = 4;
  for (const std::string& name : graph::llama_preset_names()) {
    names += (names.empty() ? "" : ", ") + name;
    if (const int d = edit_distance(name, job.model.preset); d < distance) {
      distance = d;
      nearest = name;
    }
  }
  return invalid_argument(job.at("model.preset") + ": unknown preset \"" + job.model.preset + "\"" +
                          (nearest.empty() ? "" : "; did you mean " + nearest + "?") +
                          (nearest.empty() ? "; expected one of " + names : ""));
}

}  // namespace

Result<graph::LlamaConfig> load_hf_config(const std::string& dir_or_file) {
  std::error_code error;
  const std::string file = fs::is_directory(dir_or_file, error)
                               ? (fs::path(dir_or_file) / "config.json").string()
                               : dir_or_file;
  SGA_TRY(check_text_file(file));
  SGA_ASSIGN(const std::string text, transport::read_file(file));
  return graph::parse_hf_config(text, file);
}

Result<graph::LlamaConfig> load_model(const JobSpec& job) {
  graph::LlamaConfig config;
  if (!job.model.hf.empty()) {
    auto parsed = load_hf_config(job.model.hf);
    if (!parsed.ok()) return parsed.status().with_context(job.at("model.hf"));
    config = std::move(*parsed);
  } else {
    const auto preset = graph::llama_preset(job.model.preset);
    if (!preset) return unknown_preset(job);
    config = *preset;
  }
  if (job.model.vocab_size > 0) config.vocab_size = job.model.vocab_size;
  return config;
}

Result<std::unique_ptr<transport::StateSource>> open_weights(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error))
    return invalid_argument(path + ": expected a directory with weights");
  if (fs::exists(fs::path(path) / "config.json", error)) {
    SGA_ASSIGN(auto hf, transport::HfDirectory::open(path));
    return std::unique_ptr<transport::StateSource>(std::move(hf));
  }
  std::string step_dir = path;
  if (!fs::exists(fs::path(path) / "manifest.bin", error)) {
    SGA_ASSIGN(step_dir, transport::newest_checkpoint(path, nullptr));
  }
  SGA_ASSIGN(auto checkpoint, transport::Checkpoint::open(step_dir));
  return std::unique_ptr<transport::StateSource>(std::move(checkpoint));
}

Status check_parameters(const graph::LlamaConfig& config, const transport::StateSource& weights) {
  std::vector<std::byte> scratch;
  for (const graph::ParameterSpec& spec : graph::llama_parameters(config)) {
    scratch.resize(static_cast<size_t>(spec.type.bytes()));
    SGA_TRY(weights.load(spec.name, spec.type, scratch));
  }
  return {};
}

std::unique_ptr<transport::StateSource> initial_state(
    const graph::LlamaConfig& config, uint64_t seed,
    std::unique_ptr<transport::StateSource> weights) {
  std::shared_ptr<const transport::StateSource> parameters = std::move(weights);
  if (parameters == nullptr) {
    std::vector<transport::InitialParameter> specs;
    for (const graph::ParameterSpec& p : graph::llama_parameters(config))
      specs.push_back({p.name, p.type, p.init_std, p.init_one});
    parameters = transport::make_initial_state(std::move(specs), seed);
  }
  return transport::with_zero_moments(std::move(parameters));
}

}  // namespace sgactor::apps
