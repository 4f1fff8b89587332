#include "apps/sgactor/trained_model.h"

#include "apps/sgactor/hf_import.h"
#include "apps/sgactor/job_spec.h"
#include "apps/sgactor/model_source.h"
#include "transport/storage/checkpoint.h"
#include "transport/storage/safetensors.h"

#include <filesystem>

namespace sgactor::apps {
namespace {

namespace fs = std::filesystem;

Result<TrainedModel> open_hf(const std::string& dir) {
  TrainedModel source;
  SGA_ASSIGN(source.config, load_hf_config(dir));
  SGA_ASSIGN(auto hf, transport::HfDirectory::open(dir));
  SGA_TRY(check_no_surplus(dir, *hf, source.config));
  source.state = std::move(hf);
  std::error_code error;
  for (const char* name : {"tokenizer.json", "tokenizer.model"}) {
    const std::string file = dir + "/" + name;
    if (source.tokenizer.empty() && fs::exists(file, error)) source.tokenizer = file;
  }
  // Models of bytes need no file.
  if (source.tokenizer.empty() && source.config.vocab_size == 256) source.tokenizer = "bytes";
  source.found = dir;
  return source;
}

Result<TrainedModel> open_checkpoint(const std::string& step_dir) {
  TrainedModel source;
  SGA_ASSIGN(auto checkpoint, transport::Checkpoint::open(step_dir));
  const transport::CheckpointInfo& info = checkpoint->info();
  SGA_ASSIGN(source.config,
             graph::parse_hf_config(info.model_config, step_dir + "/manifest.bin: config"));
  if (const auto job = parse_job(info.job, step_dir, {}); job.ok()) {
    // "bytes" is also what a job says that names no tokenizer. It holds where the text was read as
    // bytes, whatever the size of the vocabulary, and where the ids can be nothing else.
    const bool bytes = job->data.tokenizer == "bytes";
    if (!bytes || job->data.kind == "text" || source.config.vocab_size == 256)
      source.tokenizer = job->data.tokenizer;
    source.seq_len = job->training.seq_len;
  }
  source.found = step_dir + " (step " + std::to_string(info.step) + ")";
  source.state = std::move(checkpoint);
  return source;
}

}  // namespace

Result<TrainedModel> open_model(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    return invalid_argument(path +
                            ": expected a run directory, a checkpoint or a Hugging Face directory");
  }
  if (fs::exists(path + "/config.json", error)) return open_hf(path);
  if (fs::exists(path + "/manifest.bin", error)) return open_checkpoint(path);
  SGA_ASSIGN(const std::string step_dir, transport::newest_checkpoint(path, nullptr));
  return open_checkpoint(step_dir);
}

}  // namespace sgactor::apps
