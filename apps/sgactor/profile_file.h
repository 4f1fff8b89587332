#pragma once
#include "apps/sgactor/job_spec.h"
#include "apps/sgactor/run_directory.h"
#include "graph/compiler/profile.h"
#include "graph/plan/plan.h"
#include "kernels/backend/backend.h"

#include <memory>
#include <string>

namespace sgactor::apps {

/// Steps of the trace that a profile is made of where log.trace_steps asks for fewer.
inline constexpr int64_t kProfileSteps = 8;

/// The profile that profile.use names, and a hash of its content for the key of plans.
struct LoadedProfile {
  std::shared_ptr<const graph::Profile> profile;  ///< null: none is named
  std::string content_hash;                       ///< empty: none is named
};
/// Errors: kInvalidArgument naming key and file.
Result<LoadedProfile> load_profile(const JobSpec& job);

/// Median times of `plan`'s launches in the traces of a run (trace/*.json.gz), without its first
/// step where it has several. A collective is timed by the rank that waited least, since the others
/// wait for the last to come; sends and receives, which wait for their peer, are left out. Slices
/// that the plan does not know are skipped. Reads files. Errors: kCorruption, kInternal naming the
/// file.
Result<graph::Profile> profile_of_run(const graph::Plan& plan, const RunDirectory& run,
                                      const kernels::DeviceInfo& device);

/// Writes what profile.record asks for; nothing if it is empty.
Status record_profile(const JobSpec& job, const graph::Plan& plan, const RunDirectory& run,
                      const kernels::DeviceInfo& device);

}  // namespace sgactor::apps
