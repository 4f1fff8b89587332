#include "apps/sgactor/start.h"

#include "apps/sgactor/hf_import.h"
#include "apps/sgactor/model_source.h"
#include "apps/sgactor/resume.h"

#include <cstdio>

namespace sgactor::apps {

Result<Start> fresh_start(const JobSpec& job, const graph::LlamaConfig& config) {
  Start start;
  std::unique_ptr<transport::StateSource> weights;
  if (!job.model.weights.empty()) {
    auto opened = open_weights(job.model.weights);
    if (!opened.ok()) return opened.status().with_context(job.at("model.weights"));
    weights = std::move(*opened);
    // A tensor that is missing, too many or shaped otherwise is found before anything is written.
    Status s = check_parameters(config, *weights);
    const auto* hf = dynamic_cast<const transport::HfDirectory*>(weights.get());
    if (s.ok() && hf != nullptr) s = check_no_surplus(job.model.weights, *hf, config);
    if (!s.ok()) return s.with_context(job.at("model.weights"));
  }
  start.state = initial_state(config, static_cast<uint64_t>(job.training.seed), std::move(weights));
  return start;
}

Result<Start> resumed_start(const JobSpec& job, const RunDirectory& run, const CompiledJob& c,
                            const std::string& fingerprint) {
  SGA_ASSIGN(ResumePoint point, find_resume_point(run));
  const transport::CheckpointInfo& info = point.checkpoint->info();
  SGA_TRY(check_resumable(info, job, c.compiled.plan.schema_hash, c.graph_bytes));
  const auto num_ranks = static_cast<int64_t>(c.compiled.plan.ranks.size());
  RankArithmetic was = read_arithmetic(run, point.step, num_ranks);
  if (!fingerprint.empty() && point.step < job.training.steps) {
    SGA_TRY(check_arithmetic(run, same_arithmetic(num_ranks, fingerprint), was,
                             job.resilience.allow_inexact));
  }
  for (const auto& skipped : point.skipped)
    std::printf("skipped   %s: %s\n", skipped.path.c_str(), skipped.status.message().c_str());
  std::printf("resumed   %s (step %lld)\n", info.path.c_str(), static_cast<long long>(point.step));
  for (const std::string& change : changed_keys(info, job))
    std::printf("changed   %s\n", change.c_str());
  std::string path = info.path;
  return Start{point.step + 1, std::move(point.checkpoint), std::move(path), std::move(was)};
}

}  // namespace sgactor::apps
