#include "apps/sgactor/run_summary.h"

#include "apps/sgactor/hf_export.h"
#include "apps/sgactor/model_source.h"
#include "apps/sgactor/text_sampler.h"
#include "graph/base/units.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace sgactor::apps {

void print_head(const JobSpec& job, const graph::Plan& plan, const kernels::DeviceInfo& device,
                const RunDirectory& run) {
  std::printf("job       %s: %s parameters, %lld tokens a step, %lld steps\n", job.name.c_str(),
              format_count(static_cast<double>(plan.num_parameters)).c_str(),
              static_cast<long long>(job.training.global_batch_size * job.training.seq_len),
              static_cast<long long>(job.training.steps));
  std::printf("device    %s: %s\n", device.device.c_str(), device.description.c_str());
  std::printf("plan      %zu subgraphs, %d ops (%d before fusion), %s planned, compiled in %s\n",
              plan.subgraphs.size(), plan.ops_after, plan.ops_before,
              format_bytes(plan.memory.planned_bytes).c_str(),
              format_seconds(plan.compile_ms * 1e-3).c_str());
  std::printf("run       %s\n", run.path.c_str());
  std::fflush(stdout);
}

void print_end(const RunDirectory& run, const RunRecorder& recorder,
               const actors::TrainingSummary& summary) {
  std::printf("\n%s step %lld: loss %.4f", summary.interrupted ? "interrupted after" : "done at",
              static_cast<long long>(summary.last_step), recorder.last_step().loss);
  if (!std::isnan(recorder.last_validation()))
    std::printf(", validation loss %.4f", recorder.last_validation());
  if (summary.seconds > 0) {
    std::printf(", %s tokens/s in %s",
                format_count(static_cast<double>(recorder.num_tokens()) / summary.seconds).c_str(),
                format_seconds(summary.seconds).c_str());
  }
  std::printf("\nrun directory %s\n", run.path.c_str());
  std::fflush(stdout);
}

Status export_and_sample(const JobSpec& job, const graph::LlamaConfig& config,
                         const RunDirectory& run, kernels::Backend& backend) {
  const bool sample = job.log.sample_tokens > 0 && job.data.kind != "mock";
  if (!sample && !job.checkpoint.export_hf) return {};
  SGA_ASSIGN(const auto state, open_weights(run.checkpoints()));
  if (job.checkpoint.export_hf) {
    SGA_TRY(export_hf(config, *state, job.data.tokenizer, run.hf_export()));
    std::printf("exported to %s\n", run.hf_export().c_str());
  }
  if (!sample) return {};
  SGA_ASSIGN(const auto tokenizer, transport::create_tokenizer(job.data.tokenizer));
  TextSampler sampler(config, job.training.seq_len, backend, *state);
  SamplingOptions sampling;
  sampling.max_tokens = job.log.sample_tokens;
  sampling.seed = static_cast<uint64_t>(job.training.seed);
  const std::string prompt = job.log.sample_prompt.empty() ? "The " : job.log.sample_prompt;
  std::printf("\nsampled continuation:\n");
  return print_continuation(sampler, *tokenizer, config.vocab_size, prompt, sampling);
}

}  // namespace sgactor::apps
