#include "apps/sgactor/strategy_choice.h"

#include "actors/strategy/chosen_strategy.h"
#include "apps/sgactor/model_source.h"

#include <filesystem>
#include <string>

namespace sgactor::apps {
namespace {

constexpr std::string_view kDefault = "mesh";

std::string names_of(const actors::StrategyTable& table) {
  std::string names;
  for (const actors::Strategy& s : table.entries()) names += (names.empty() ? "" : ", ") + s.name;
  return names;
}

Result<actors::JobFacts> job_facts(const JobSpec& job) {
  actors::JobFacts facts;
  facts.pp = static_cast<int32_t>(job.parallelism.pipeline_parallel_degree);
  facts.dp = static_cast<int32_t>(job.logical_ranks());
  facts.tp = static_cast<int32_t>(job.parallelism.tensor_parallel_degree);
  facts.zero_stage = static_cast<int32_t>(job.parallelism.zero_stage);
  auto options = actors::StrategyOptions::parse(job.strategy.options);
  if (!options.ok()) return options.status().with_context(job.at("strategy.options"));
  facts.options = std::move(*options);
  SGA_ASSIGN(const graph::LlamaConfig model, load_model(job));
  facts.num_attention_heads = model.num_attention_heads;
  facts.num_key_value_heads = model.num_key_value_heads;
  return facts;
}

Status check_combination(const JobSpec& job, const actors::Strategy& strategy) {
  if (!strategy.keeps_state) return {};
  const std::string head = job.at("strategy.name") + ": \"" + strategy.name +
                           "\" keeps state that lives as long as its process; ";
  if (job.training.auto_micro_batch)
    return unsupported(head + "give training.micro_batch_size as a number");
  if (job.resilience.mode != "off" && job.resilience.mode != "auto")
    return unsupported(head + "expected resilience.mode \"off\"");
  return {};
}

}  // namespace

Status choose_strategy(const actors::StrategyTable& builtin, JobSpec& job) {
  actors::StrategyTable table = builtin;
  for (const std::string& path : job.plugins.libraries) {
    const Status loaded = actors::load_plugin(path, table);
    if (loaded.ok()) continue;
    std::error_code error;
    const bool missing = !std::filesystem::exists(path, error);
    const std::string advice = missing ? "; build it first (docs/guides/strategies.md)" : "";
    return Status(loaded.code(), loaded.scope(),
                  job.at("plugins.libraries") + ": " + loaded.message() + advice, loaded.origin());
  }
  const actors::Strategy* strategy = actors::find_strategy(table, job.strategy.name);
  if (strategy == nullptr) {
    return invalid_argument(job.at("strategy.name") + ": expected one of " + names_of(table) +
                            ", got \"" + job.strategy.name + "\"");
  }
  if (job.strategy.name == kDefault && job.strategy.options.empty()) return {};
  SGA_TRY(check_combination(job, *strategy));
  // What a worker takes over from another's memory is not all that the rank knew.
  if (strategy->keeps_state) job.resilience.mode = "off";
  SGA_ASSIGN(actors::JobFacts facts, job_facts(job));
  auto chosen = actors::ChosenStrategy::create(*strategy, std::move(facts));
  if (!chosen.ok()) return chosen.status().with_context(job.at("strategy.name"));
  job.strategy_in_use = std::move(*chosen);
  return {};
}

Status check_strategy_resumes(const JobSpec& job) {
  if (job.strategy_in_use == nullptr || !job.strategy_in_use->keeps_state()) return {};
  return unsupported(job.at("strategy.name") + ": --resume: \"" + job.strategy.name +
                     "\" keeps state that checkpoints do not hold");
}

}  // namespace sgactor::apps
