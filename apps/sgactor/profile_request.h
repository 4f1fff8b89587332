#pragma once
#include "apps/sgactor/profile_file.h"
#include "apps/sgactor/run_directory.h"
#include "graph/plan/plan.h"

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>

namespace sgactor::actors {
class Tracer;
}

namespace sgactor::apps {

// Times of a run that goes on, recorded because `sgactor ctl RUN profile STEPS` asks for them:
// coordinator -> workers, a trace of the next steps from each, RUN/profile.json from all of them.

/// Kinds of wire::Opaque.
inline constexpr uint32_t kTakeTimes = 32;  ///< coordinator -> worker: number of steps, as text
inline constexpr uint32_t kProfiled = 33;   ///< worker -> coordinator: ProfileAnswer
/// Most steps of one request: a trace holds a slice a launch.
inline constexpr int64_t kMostProfileSteps = 1000;

/// What a worker says once its trace is on disk.
struct ProfileAnswer {
  std::string file;
  std::string backend;
  std::string device;
  std::string error;  ///< not empty: there is no file
};
std::string encode_answer(const ProfileAnswer& answer);
/// Errors: kCorruption.
Result<ProfileAnswer> parse_answer(std::string_view text);

/// The coordinator's side: whose answer is waited for.
class ProfileRequest {
 public:
  /// Of a request {"profile": n}: n, if it is one and in range.
  static std::optional<int64_t> parse(std::string_view request);

  /// Waits for these workers; a request before is forgotten.
  void begin(std::set<int32_t> workers);
  /// A worker has answered. True if it was the last one.
  bool answer(int32_t worker, ProfileAnswer answer);
  /// A worker has gone: what it knew is lost. True if nobody else is waited for and some answered.
  bool forget(int32_t worker);
  /// The profile of all that answered, into RUN/profile.json. Reads and writes files. Errors:
  /// kInternal, kCorruption; the first worker's own error.
  [[nodiscard]] Status write(const graph::Plan& plan, const RunDirectory& run) const;

 private:
  std::set<int32_t> waiting_;
  std::map<int32_t, ProfileAnswer> answers_;
};

/// The worker's side, looked at between events of its session: once the steps are recorded, writes
/// them to `file` and says so. Nothing before that.
std::optional<ProfileAnswer> finish_recording(actors::Tracer& tracer, int32_t rank, bool ended,
                                              const std::string& file,
                                              const kernels::DeviceInfo& device);

}  // namespace sgactor::apps
