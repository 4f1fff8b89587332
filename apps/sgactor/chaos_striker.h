#pragma once
#include "apps/sgactor/chaos_scenario.h"
#include "apps/sgactor/run_directory.h"

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

namespace sgactor::apps {

/// A fault of a scenario that has struck.
struct Strike {
  ChaosFault fault;
  int64_t step = 0;  ///< committed then; of a trap: when it was set
  double unix_time = 0;
  int64_t pid = 0;  ///< of whom: a worker, or a node
};

/// Strikes a run that goes on in other processes: by signals, and by requests in its control
/// directory, which it takes if its environment has kInjectVariable. Waits for nothing; one thread.
class ChaosStriker {
 public:
  ChaosStriker(const ChaosScenario& scenario, RunDirectory run);
  /// Lets whoever is stopped for a moment go on.
  ~ChaosStriker();
  ChaosStriker(const ChaosStriker&) = delete;
  ChaosStriker& operator=(const ChaosStriker&) = delete;

  /// Does what is due. Call every few milliseconds.
  void look();
  [[nodiscard]] const std::vector<Strike>& strikes() const { return strikes_; }
  /// Once the run has ended: what the first fault that has not struck waited for; "" if all have.
  [[nodiscard]] std::string why_not();
  /// The other end of a link fault, by control/state.json: to_rank, or the first rank of the worker
  /// behind the rank's own. -1: there is no such link, nothing can strike it.
  static int64_t other_end(const std::string& state, const ChaosFault& fault);

 private:
  /// Counts the lines of a file that grows.
  class LineCount {
   public:
    explicit LineCount(std::string file) : file_(std::move(file)) {}
    int64_t now();

   private:
    std::string file_;
    std::streamoff offset_ = 0;
    int64_t lines_ = 0;
  };
  /// A worker that is stopped and continued.
  struct Burst {
    int64_t pid = 0;
    int64_t left = 0;  ///< changes
    int64_t due_ms = 0;
    bool stopped = false;
  };
  struct Victim {
    int64_t pid = 0;
    int64_t index = -1;  ///< as the coordinator counts workers
  };
  static Victim victim(const std::string& state, const ChaosFault& fault);
  [[nodiscard]] bool is_ours(int64_t pid) const;
  [[nodiscard]] bool struck_before(int64_t pid) const;
  bool strike(const ChaosFault& fault, Victim& who);
  bool arm_next(const std::string& state);
  bool kill_coordinator(const ChaosFault& fault, const std::string& state, Victim& who) const;
  [[nodiscard]] bool request(const ChaosFault& fault, int64_t index) const;
  void go_on_with_bursts();

  const ChaosScenario& scenario_;
  const RunDirectory run_;
  LineCount steps_;
  size_t next_ = 0;
  bool armed_ = false;  // the fault behind the next one waits for its phase
  int64_t last_generation_ = 0;
  std::vector<Strike> strikes_;
  std::vector<Burst> bursts_;
};

}  // namespace sgactor::apps
