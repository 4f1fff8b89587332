#pragma once
#include "supervision/chaos/sim_cluster.h"
#include "supervision/chaos/sim_process.h"

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <vector>

namespace sgactor::supervision {

/// Sees everything that happens in a simulated world and says whether it was right. Takes no part.
class SimJudge {
 public:
  explicit SimJudge(const SimScenario& scenario);

  void on_start(const World& world) { world_ = world; }
  void on_work(RankId rank, int64_t incarnation, Work work, int64_t step, int32_t micro_batch);
  /// A rank has the state after `step`: it must be that of the run without faults.
  void on_state(RankId rank, int64_t step, const State& state, int64_t now_us);
  void on_fault(int64_t now_us) { last_progress_us_ = now_us; }
  /// `holds(rank, step, node)`: that node could bring the rank to that step, or is dead. `room`:
  /// how many ranks the members that are alive could host.
  using Holds = std::function<bool(RankId, int64_t, NodeId)>;
  void on_decided(const CoordinatorCore& core, const Holds& holds, int64_t room, int64_t now_us);
  void check_progress(int64_t now_us, int64_t events);
  /// The first verdict stands.
  void fail(SimOutcome outcome, std::string message);

  [[nodiscard]] bool over() const { return over_; }
  [[nodiscard]] SimOutcome outcome() const { return outcome_; }
  [[nodiscard]] const std::string& message() const { return message_; }
  [[nodiscard]] uint64_t state_hash() const;
  /// The newest world that the coordinator has decided on.
  [[nodiscard]] const World& world() const { return world_; }
  [[nodiscard]] int32_t recoveries() const { return recoveries_; }
  [[nodiscard]] int32_t adoptions() const { return adoptions_; }
  [[nodiscard]] int64_t reexecuted() const { return reexecuted_; }
  [[nodiscard]] int64_t survivors_reexecuted() const { return survivors_reexecuted_; }

 private:
  void take_world(const World& next);
  void judge_failure(const CoordinatorCore& core, int64_t room);
  void check_sources(const Holds& holds);

  const SimScenario& scenario_;
  std::vector<std::vector<uint64_t>> expected_;  ///< state hash by step and rank
  std::vector<uint64_t> final_;                  ///< by rank; 0: not there yet
  World world_;
  int64_t sources_checked_ = 0;
  std::vector<bool> exposed_;  ///< a node that held the rank's state is gone, and no new copy known
  std::vector<int64_t> moved_;  ///< incarnation that took over from a worker that lives on
  int64_t announced_commit_ = 0;
  std::map<std::tuple<RankId, int64_t, int32_t, Work>, int64_t> executed_;  ///< by which life
  int64_t last_progress_us_ = 0;
  bool over_ = false;
  SimOutcome outcome_ = SimOutcome::kEqual;
  std::string message_;
  int32_t recoveries_ = 0;
  int32_t adoptions_ = 0;
  int64_t reexecuted_ = 0;
  int64_t survivors_reexecuted_ = 0;
};

// For event logs.
std::string describe_address(const Address& address);
std::string describe_message(const Message& message);
uint64_t hash_message(const Message& message);

}  // namespace sgactor::supervision
