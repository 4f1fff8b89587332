#include "apps/sgactor/run_report.h"

#include "apps/sgactor/float_bits.h"
#include "graph/base/hash.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>

namespace sgactor::apps {

double share_outside_kernels(const actors::TrainingSummary& s) {
  return s.seconds > 0 ? std::clamp(1.0 - s.kernel_seconds / s.seconds, 0.0, 1.0) : 0.0;
}

std::string run_report(const JobSpec& job, const graph::Plan& plan, const RunRecorder& recorder,
                       const actors::TrainingSummary& summary, const Status& failure) {
  const actors::StepReport& last = recorder.last_step();
  nlohmann::ordered_json report;
  report["status"] = !failure.ok() ? "failed" : summary.interrupted ? "interrupted" : "done";
  if (!failure.ok()) report["failure"] = failure.to_string();
  report["job"] = job.name;
  report["version"] = SGA_VERSION;
  report["schema_hash"] = hex64(plan.schema_hash);
  report["parameters"] = plan.num_parameters;
  report["last_step"] = last.step;
  report["loss"] = last.loss;
  report["loss_bits"] = float_bits(last.loss);
  report["validation_loss"] = recorder.last_validation();  // NaN is written as null
  report["tokens"] = recorder.num_tokens();
  report["seconds"] = summary.seconds;
  report["tok_s"] =
      summary.seconds > 0 ? static_cast<double>(recorder.num_tokens()) / summary.seconds : 0.0;
  report["share_outside_kernels"] = share_outside_kernels(summary);
  report["messages"] = summary.num_messages;
  report["checkpoints"] = recorder.num_checkpoints();
  report["memory"] = {{"planned_bytes", plan.memory.planned_bytes},
                      {"high_water_bytes", summary.arena_high_water_bytes}};
  report["allocations_after_start"] =
      summary.allocations_at_end.num_allocations - summary.allocations_at_start.num_allocations;
  return report.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace sgactor::apps
