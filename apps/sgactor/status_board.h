#pragma once
#include <nlohmann/json.hpp>

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace sgactor::apps {

/// Of a run that goes on. While ranks are lost it is frozen until others are found, which then load
/// and replay: it migrates.
enum class RunState : uint8_t {
  kReady = 0,
  kRunning,
  kFrozen,
  kMigrating,
  kDraining,
  kDone,
  kFailed
};
inline constexpr int kNumRunStates = 7;
std::string_view to_string(RunState state);

/// What stays as it is.
struct RunFacts {
  std::string job;
  std::string run;  ///< directory, absolute
  std::string version;
  std::string host;
  int64_t pid = 0;
  int64_t num_steps = 0;
  int64_t first_step = 1;  ///< of this process
  int64_t pipeline_parallel = 1, data_parallel = 1, tensor_parallel = 1;
  int64_t logical_data_parallel = 1;
  int64_t zero_stage = 0;
};

/// The step committed last; numbers as in metrics.jsonl.
struct StepFacts {
  static constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  int64_t step = 0;       ///< 0: none yet
  bool measured = false;  ///< by this process: the rest is known
  float loss = 0;
  float grad_norm = 0;
  float lr = 0;
  int64_t tokens = 0;
  int64_t all_tokens = 0;  ///< of all steps of this process
  double tokens_per_second = 0;
  double step_ms = 0;
  double tflops = 0;
  double mfu = kUnknown;
  int64_t memory_bytes = 0;  ///< planned for a rank
  double seconds_left = 0;
  int64_t generation = 1;
  int64_t done_ms = 0;  ///< of now_ms()
};

/// A process that hosts ranks, or may.
struct WorkerFacts {
  int64_t index = 0;
  std::string host;
  int64_t pid = 0;  ///< 0: not known yet
  std::string device;
  std::vector<int32_t> ranks;
  std::string state;     ///< one of kWorkerStates
  int64_t heard_ms = 0;  ///< last sign of life, of now_ms(); 0: it sends none
};
/// Silent: not heard for longer than it should. Starting: started, and not there yet.
inline constexpr std::string_view kWorkerStates[] = {"running", "loading", "silent", "spare",
                                                     "starting"};

/// Who takes part now.
struct MemberFacts {
  RunState state = RunState::kReady;
  int64_t generation = 1;
  int64_t num_faults = 0;
  std::string trouble;  ///< what is being recovered from, or who hangs; "": nothing
  std::vector<WorkerFacts> workers;
};

/// What a run tells about itself at one moment. Immutable.
struct StatusSnapshot {
  std::shared_ptr<const RunFacts> run;
  std::shared_ptr<const MemberFacts> members;
  /// Newest lines of recoveries.jsonl, as objects.
  std::shared_ptr<const std::vector<nlohmann::ordered_json>> recoveries;
  int64_t num_recoveries = 0;
  StepFacts step;
  RunState state = RunState::kReady;
  int64_t checkpoint_step = 0;  ///< newest; 0: none
  int64_t validation_step = 0;  ///< 0: none yet
  double validation_loss = 0;
};

/// Where a run puts what others may see. Thread-safe; no call waits for whoever looks.
class StatusBoard {
 public:
  /// `stopping`, which outlives this, is set when the run has been asked to stop; may be null.
  StatusBoard(RunFacts facts, const std::atomic<bool>* stopping);

  void set_step(const StepFacts& step);
  void set_checkpoint(int64_t step);
  void set_validation(int64_t step, double loss);
  void set_members(MemberFacts members);
  /// A line of recoveries.jsonl; what is no JSON object only counts.
  void add_recovery(const std::string& line);
  /// The last state, whatever set_members() says afterwards.
  void end(RunState state);

  [[nodiscard]] StatusSnapshot read() const;

 private:
  const std::atomic<bool>* stopping_;
  mutable std::mutex mutex_;
  StatusSnapshot now_;
  bool ended_ = false;
};

}  // namespace sgactor::apps
