#include "apps/sgactor/hf_import.h"

#include "apps/sgactor/hf_export.h"
#include "apps/sgactor/job_spec.h"
#include "apps/sgactor/model_source.h"
#include "graph/ir/serial.h"
#include "transport/storage/checkpoint.h"
#include "transport/storage/run_files.h"

#include <filesystem>
#include <set>

namespace sgactor::apps {
namespace {

namespace fs = std::filesystem;

}  // namespace

Status check_no_surplus(const std::string& hf_dir, const transport::HfDirectory& hf,
                        const graph::LlamaConfig& config) {
  std::set<std::string> known;
  for (const graph::ParameterSpec& spec : graph::llama_parameters(config)) known.insert(spec.name);
  // Computed, or known already.
  if (config.tie_word_embeddings) known.insert("lm_head.weight");
  for (const std::string& name : hf.names()) {
    if (known.contains(name) || name.ends_with("rotary_emb.inv_freq")) continue;
    return invalid_argument(hf_dir + ": tensor " + name + ": the model has no such parameter");
  }
  return {};
}

Result<std::string> import_hf(const std::string& hf_dir, const std::string& out_dir) {
  SGA_TRY(check_new_directory("import to", out_dir));
  SGA_ASSIGN(const graph::LlamaConfig config, load_hf_config(hf_dir));
  SGA_ASSIGN(const auto hf, transport::HfDirectory::open(hf_dir));
  SGA_ASSIGN(const LoadedParameters parameters, load_parameters(config, *hf));
  SGA_TRY(check_no_surplus(hf_dir, *hf, config));
  SGA_ASSIGN(const graph::Graph forward, graph::build_llama(config, {}));

  JobSpec job;
  std::error_code error;
  job.model.hf = fs::absolute(hf_dir, error).lexically_normal().string();
  job.training.seq_len = std::min<int64_t>(config.max_position_embeddings, 1024);
  for (const char* name : {"tokenizer.model", "tokenizer.json"}) {
    const fs::path file = fs::path(job.model.hf) / name;
    if (fs::exists(file, error)) job.data.tokenizer = file.string();
  }
  transport::CheckpointInfo info;
  info.schema_hash = graph::schema_hash(forward);
  info.graph = graph::serialize_graph(forward);
  info.mesh = "pp=1 dp=1 tp=1";
  info.run_state = "IMPORTED";
  info.model_config = graph::to_hf_config(config);
  info.job = write_job(job, false);
  const std::string root = out_dir + "/ckpt";
  SGA_TRY(transport::make_dirs(root));
  SGA_TRY(transport::write_checkpoint(root, info, parameters.tensors(), {}).status());
  return transport::newest_checkpoint(root, nullptr, /*read_all=*/false);
}

}  // namespace sgactor::apps
