#include "apps/sgactor/training_setup.h"

#include "apps/sgactor/model_source.h"
#include "graph/base/log.h"
#include "graph/ir/serial.h"

#include <utility>

namespace sgactor::apps {
namespace {

/// Remembers the graph whose schema_hash the plan will carry. Which pass that is, the compiler
/// decides; hashes tell.
struct GraphKeeper {
  std::vector<std::pair<uint64_t, std::string>> seen;

  void keep(const graph::Graph& training) {
    const uint64_t hash = graph::schema_hash(training);
    for (const auto& [known, bytes] : seen) {
      if (known == hash) return;
    }
    seen.emplace_back(hash, graph::serialize_graph(training));
  }
  [[nodiscard]] std::string find(uint64_t hash) const {
    for (const auto& [known, bytes] : seen) {
      if (known == hash) return bytes;
    }
    return {};
  }
};

Result<transport::Datasets> open_data(const JobSpec& job, int64_t vocab_size) {
  transport::DataSpec spec;
  spec.kind = job.data.kind;
  spec.path = job.data.path;
  spec.tokenizer = job.data.tokenizer;
  spec.vocab_size = vocab_size;
  spec.seed = static_cast<uint64_t>(job.training.seed);
  spec.mock_tokens = job.data.mock_tokens;
  spec.validation_fraction = job.data.validation_fraction;
  auto data = transport::open_datasets(spec);
  if (!data.ok())
    return data.status().with_context(job.at(spec.kind == "mock" ? "data.kind" : "data.path"));
  return data;
}

}  // namespace

graph::CompileOptions compile_options(const JobSpec& job, graph::StorageModel storage) {
  graph::CompileOptions options;
  options.micro_batch_size = job.training.micro_batch_size;
  options.num_micro_batches = static_cast<int32_t>(job.num_micro_batches());
  options.seq_len = job.training.seq_len;
  options.optimizer.lr = job.optimizer.lr;
  options.optimizer.min_lr = job.optimizer.min_lr;
  options.optimizer.warmup_steps = job.optimizer.warmup_steps;
  options.optimizer.decay_steps = job.decay_end();
  options.optimizer.beta1 = job.optimizer.beta1;
  options.optimizer.beta2 = job.optimizer.beta2;
  options.optimizer.eps = job.optimizer.eps;
  options.optimizer.weight_decay = job.optimizer.weight_decay;
  options.optimizer.max_grad_norm = job.optimizer.max_grad_norm;
  options.storage = storage;
  options.fuse = job.compile.fuse;
  options.disabled_passes = job.compile.disable_passes;
  return options;
}

Result<CompiledJob> compile_job(const JobSpec& job, graph::StorageModel storage,
                                decltype(graph::CompileOptions::dump) dump) {
  SGA_TRY(check_supported(job));
  CompiledJob result;
  SGA_ASSIGN(result.config, load_model(job));
  if (job.training.seq_len > result.config.max_position_embeddings) {
    log::warn("training.seq_len {} is longer than the model's max_position_embeddings {}",
              job.training.seq_len, result.config.max_position_embeddings);
  }
  GraphKeeper keeper;
  graph::CompileOptions options = compile_options(job, storage);
  options.dump = [&](const std::string& pass, const graph::Graph& training,
                     const graph::Graph& update) {
    if (dump)
      dump(pass, training, update);
    else
      keeper.keep(training);
  };
  SGA_ASSIGN(result.compiled, graph::compile_training(result.config, options));
  result.graph_bytes = keeper.find(result.compiled.plan.schema_hash);
  return result;
}

Result<TrainingSetup> set_up_training(const JobSpec& job, graph::StorageModel storage) {
  SGA_TRY(check_supported(job));
  TrainingSetup setup;
  SGA_ASSIGN(const graph::LlamaConfig config, load_model(job));
  SGA_ASSIGN(setup.data, open_data(job, config.vocab_size));
  SGA_ASSIGN(setup.training, compile_job(job, storage));
  const auto seed = static_cast<uint64_t>(job.training.seed);
  setup.sampler =
      std::make_unique<transport::Sampler>(setup.data.train, seed, job.training.seq_len,
                                           job.training.global_batch_size, job.data.shuffle);
  if (job.training.validation_interval == 0 || setup.data.validation == nullptr) return setup;
  graph::ForwardOptions forward;
  forward.batch = job.training.micro_batch_size;
  forward.seq_len = job.training.seq_len;
  SGA_ASSIGN(setup.validation,
             graph::compile_forward(config, forward, compile_options(job, storage)));
  setup.validation_sampler = std::make_unique<transport::Sampler>(
      setup.data.validation, seed, job.training.seq_len,
      job.training.micro_batch_size * job.training.validation_batches, /*shuffle=*/false);
  return setup;
}

}  // namespace sgactor::apps
