#include "apps/sgactor/training_setup.h"

#include "actors/strategy/chosen_strategy.h"
#include "apps/sgactor/byte_size.h"
#include "apps/sgactor/model_source.h"
#include "apps/sgactor/profile_file.h"
#include "graph/ir/serial.h"

#include <fmt/format.h>

#include <chrono>
#include <numeric>
#include <utility>

namespace sgactor::apps {
namespace {

/// The pass after which the training graph is the one that schema_hash names.
constexpr std::string_view kSchemaPass = "note_schema";

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
  if (data.ok()) return data;
  // Which key is at fault shows by trying again without the others.
  if (spec.kind == "text") {
    const Status tokenizer = transport::create_tokenizer(spec.tokenizer).status();
    if (!tokenizer.ok()) return tokenizer.with_context(job.at("data.tokenizer"));
  }
  const bool splits = std::exchange(spec.validation_fraction, 0) > 0;
  const bool split_is_bad = splits && transport::open_datasets(spec).ok();
  const char* source = spec.kind == "mock" ? "data.kind" : "data.path";
  return data.status().with_context(job.at(split_is_bad ? "data.validation_fraction" : source));
}

/// For a message about heads that do not divide: the largest degree below over which they do.
std::string tensor_degree_hint(const graph::LlamaConfig& config, int64_t degree) {
  const int64_t heads = std::gcd(config.num_attention_heads, config.num_key_value_heads);
  if (heads % degree == 0) return "";  // the rule of another parameter
  while (degree > 1 && heads % degree != 0) --degree;
  return fmt::format("; the next that divides is {}", degree);
}

/// Names the key if `status`, the compiler's, is about one. What a job asks for and no plan can do
/// is wrong in the job.
Status blame_passes(const JobSpec& job, const graph::LlamaConfig& config, const Status& status) {
  const std::string& message = status.message();
  for (const std::string& name : job.compile.disable_passes) {
    if (message.starts_with("pass \"" + name + "\""))
      return status.with_context(job.at("compile.disable_passes"));
  }
  const auto refuse = [&](std::string_view key, const std::string& hint) {
    return Status(Code::kInvalidArgument, Scope::kCall, job.at(key) + ": " + message + hint,
                  status.origin());
  };
  if (status.code() == Code::kOutOfMemory && message.starts_with("plan_recompute"))
    return refuse("training.memory_budget", "");
  if (status.code() != Code::kInvalidArgument) return status;
  const JobSpec::Parallelism& p = job.parallelism;
  if (message.starts_with("apply_sharding") && message.find("do not divide") != std::string::npos) {
    return refuse("parallelism.tensor_parallel_degree",
                  tensor_degree_hint(config, p.tensor_parallel_degree));
  }
  if (message.starts_with("split_stages"))
    return refuse("parallelism.pipeline_parallel_degree", "");
  return status;
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
  options.precision = job.training.dtype == "fp8"    ? DType::kF8E4M3
                      : job.training.dtype == "bf16" ? DType::kBF16
                                                     : DType::kF32;
  options.f8_layout =
      job.compile.f8_layout == "inner_last" ? graph::F8Layout::kInnerLast : graph::F8Layout::kAny;
  options.head_room_bytes = parse_byte_size(job.compile.head_room).value_or(0);
  options.f8_head = job.compile.f8_head != "false";
  options.recompute.mode =
      graph::parse_recompute_mode(job.training.recompute).value_or(graph::RecomputeMode::kNone);
  options.recompute.memory_budget_bytes = parse_byte_size(job.training.memory_budget).value_or(0);
  // A device that keeps logits in the plan has no more than this beside it.
  constexpr int64_t kScratchBytes = int64_t{128} << 20;
  if (options.head_room_bytes > 0) options.recompute.scratch_bytes = kScratchBytes;
  options.disabled_passes = job.compile.disable_passes;
  options.choose_buckets = job.compile.bucket_size == "auto";
  options.schedule.bucket_bytes = parse_byte_size(job.compile.bucket_size).value_or(0);
  options.mesh.pp = static_cast<int32_t>(job.parallelism.pipeline_parallel_degree);
  options.mesh.dp = static_cast<int32_t>(job.logical_ranks());
  options.mesh.tp = static_cast<int32_t>(job.parallelism.tensor_parallel_degree);
  if (job.strategy_in_use) options.parameter_rules = job.strategy_in_use->parameter_rules();
  options.zero_stage = static_cast<int32_t>(job.parallelism.zero_stage);
  options.exact_sums = job.parallelism.reduction != "fast";
  options.pipeline = job.parallelism.schedule == "gpipe" ? graph::PipelineSchedule::kGPipe
                     : job.parallelism.schedule == "interleaved"
                         ? graph::PipelineSchedule::kInterleaved
                         : graph::PipelineSchedule::k1F1B;
  if (options.pipeline == graph::PipelineSchedule::kInterleaved) options.chunks_per_stage = 2;
  return options;
}

void choose_f8_layout(JobSpec& job, const std::string& devices) {
  const bool cuda = devices.starts_with("cuda");
  if (job.compile.f8_layout == "auto") job.compile.f8_layout = cuda ? "inner_last" : "any";
  if (job.compile.head_room != "auto") return;
  const bool f8_head = job.training.dtype == "fp8" && job.compile.f8_head != "false";
  job.compile.head_room = !cuda ? "none" : f8_head ? "4GiB" : "2GiB";
}

Result<CompiledJob> compile_job(const JobSpec& job, graph::StorageModel storage,
                                decltype(graph::CompileOptions::dump) dump,
                                const PlanCache* cache) {
  const auto start = std::chrono::steady_clock::now();
  SGA_TRY(check_supported(job));
  CompiledJob result;
  SGA_ASSIGN(result.config, load_model(job));
  if (job.training.seq_len > result.config.max_position_embeddings) {
    return invalid_argument(fmt::format(
        "{}: expected at most the model's max_position_embeddings {}, got {}",
        job.at("training.seq_len"), result.config.max_position_embeddings, job.training.seq_len));
  }
  SGA_ASSIGN(const LoadedProfile profile, load_profile(job));
  SGA_ASSIGN(const LoadedCluster cluster, load_cluster(job));
  const std::string key = cache != nullptr ? plan_key(job, result.config, storage) + "profile " +
                                                 profile.content_hash + "\ncluster " +
                                                 cluster.content_hash + "\n"
                                           : "";
  if (auto kept = cache != nullptr ? cache->find(key) : std::nullopt) {
    result.compiled = std::move(kept->compiled);
    result.graph_bytes = std::move(kept->graph_bytes);
    result.from_cache = true;
    const auto elapsed = std::chrono::steady_clock::now() - start;
    result.compiled.plan.compile_ms = std::chrono::duration<double, std::milli>(elapsed).count();
    return result;
  }
  graph::CompileOptions options = compile_options(job, storage);
  options.profile = profile.profile;
  options.cluster = cluster.cluster;
  options.dump = [&](const std::string& pass, const graph::Graph& training,
                     const graph::Graph& update) {
    if (pass == kSchemaPass) result.graph_bytes = graph::serialize_graph(training);
    if (dump) dump(pass, training, update);
  };
  auto compiled = graph::compile_training(result.config, options);
  if (!compiled.ok()) return blame_passes(job, result.config, compiled.status());
  result.compiled = std::move(*compiled);
  if (cache != nullptr) cache->keep(key, {result.compiled, result.graph_bytes});
  return result;
}

Result<TrainingData> open_training_data(const JobSpec& job, int64_t vocab_size,
                                        int64_t validation_batch) {
  TrainingData data;
  SGA_ASSIGN(data.sets, open_data(job, vocab_size));
  const auto seed = static_cast<uint64_t>(job.training.seed);
  data.sampler =
      std::make_unique<transport::Sampler>(data.sets.train, seed, job.training.seq_len,
                                           job.training.global_batch_size, job.data.shuffle);
  if (job.training.validation_interval == 0 || data.sets.validation == nullptr) return data;
  // The runtime takes validation batch i as step i of this sampler.
  data.validation_sampler = std::make_unique<transport::Sampler>(
      data.sets.validation, seed, job.training.seq_len,
      validation_batch > 0 ? validation_batch : job.training.micro_batch_size,
      /*shuffle=*/false);
  return data;
}

Result<TrainingSetup> set_up_training(const JobSpec& job, graph::StorageModel storage,
                                      const PlanCache* cache, int64_t validation_batch) {
  SGA_TRY(check_supported(job));
  TrainingSetup setup;
  SGA_ASSIGN(const graph::LlamaConfig config, load_model(job));
  SGA_ASSIGN(setup.data, open_training_data(job, config.vocab_size, validation_batch));
  SGA_ASSIGN(setup.training, compile_job(job, storage, {}, cache));
  if (setup.data.validation_sampler == nullptr) return setup;
  graph::ForwardOptions forward;
  forward.batch = validation_batch > 0 ? validation_batch : job.training.micro_batch_size;
  forward.seq_len = job.training.seq_len;
  SGA_ASSIGN(setup.validation,
             graph::compile_forward(config, forward, compile_options(job, storage)));
  return setup;
}

}  // namespace sgactor::apps
