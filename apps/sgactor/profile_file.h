#pragma once
#include "apps/sgactor/job_spec.h"
#include "apps/sgactor/run_directory.h"
#include "graph/cluster/cluster_spec.h"
#include "graph/compiler/profile.h"
#include "graph/plan/plan.h"
#include "kernels/backend/backend.h"

#include <memory>
#include <string>
#include <vector>

namespace sgactor::apps {

/// Steps of the trace that a profile is made of where log.trace_steps asks for fewer.
inline constexpr int64_t kProfileSteps = 8;

/// The profile that profile.use names, and a hash of its content for the key of plans.
struct LoadedProfile {
  std::shared_ptr<const graph::Profile> profile;  ///< null: none is named, or it is foreign
  std::string content_hash;                       ///< empty: the same
};
/// Errors: kInvalidArgument naming key and file.
Result<LoadedProfile> load_profile(const JobSpec& job);
/// Sets profile.foreign, with a warning that names key, file and both devices, where the profile is
/// of another backend or device than `device`; how many threads of a CPU is no difference. A file
/// that cannot be read is left to load_profile.
void leave_out_foreign_profile(JobSpec& job, const kernels::DeviceInfo& device);

/// The cluster that compile.topology names, and a hash of its content for the key of plans.
struct LoadedCluster {
  std::shared_ptr<const graph::ClusterSpec> cluster;  ///< null: none is named
  std::string content_hash;                           ///< empty: none is named
};
/// Errors: kInvalidArgument naming key and file.
Result<LoadedCluster> load_cluster(const JobSpec& job);

/// Median times of `plan`'s launches in the traces of a run (trace/rank*.json.gz), without its
/// first step where it has several. A collective is timed by the rank that waited least, since the
/// others wait for the last to come; a message of a pipeline by the end that waited less. Slices
/// that the plan does not know are skipped, and so are those of validation, whose launches have the
/// same names. Reads files. Errors: kCorruption, kInternal naming the file.
Result<graph::Profile> profile_of_run(const graph::Plan& plan, const RunDirectory& run,
                                      const kernels::DeviceInfo& device);
/// The same of these files alone, without backend and device. `warm`: their first step counts too.
Result<graph::Profile> profile_of_traces(const graph::Plan& plan,
                                         const std::vector<std::string>& files, bool warm);

/// Writes what profile.record asks for; nothing if it is empty. Sizes of communication that the run
/// did not have, but the profile that it went by has, are taken over: they keep telling the next
/// plan what other buckets would take.
Status record_profile(const JobSpec& job, const graph::Plan& plan, const RunDirectory& run,
                      const kernels::DeviceInfo& device);

}  // namespace sgactor::apps
