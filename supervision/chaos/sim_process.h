#pragma once
#include "graph/base/status.h"
#include "supervision/chaos/sim_scenario.h"
#include "supervision/chaos/symbolic_mesh.h"
#include "supervision/recovery/coordinator_core.h"
#include "supervision/recovery/mirror_core.h"
#include "supervision/recovery/rank_core.h"

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

namespace sgactor::supervision {

/// What a simulated process can do to the world around it.
class SimHost {
 public:
  virtual ~SimHost() = default;
  [[nodiscard]] virtual int64_t now_us() const = 0;
  virtual const SimScenario& scenario() const = 0;
  virtual void send(const Address& from, Envelope envelope) = 0;
  /// Tells all live processes, members or not.
  virtual void broadcast(const WorldRef& world) = 0;
  virtual void wake_at(const Address& who, int64_t at_us) = 0;
  /// Answered by CoordinatorProcess::on_written.
  virtual void write_journal(const JournalEntry& entry) = 0;
  /// The process ends when this handler has returned.
  virtual void quit(const Address& who) = 0;
  /// The node kills a worker of its own that has been taken for dead, unless the scenario says that
  /// it stays alive.
  virtual void kill_if_told(WorkerId worker) = 0;

  // Notes for the judge.
  virtual void on_phase(SimPhase phase, WorkerId subject) = 0;
  virtual void on_work(RankId rank, int64_t incarnation, Work work, int64_t step,
                       int32_t micro_batch) = 0;
  virtual void on_state(RankId rank, int64_t step, const State& state) = 0;
  virtual void on_broken(const Status& status) = 0;
  virtual void on_decided(const CoordinatorCore& core) = 0;
};

/// A process: a pure machine or two, and the wiring of messages to them.
class SimProcess {
 public:
  SimProcess(SimHost& host, Address self) : host_(host), self_(self) {}
  virtual ~SimProcess() = default;
  SimProcess(const SimProcess&) = delete;
  SimProcess& operator=(const SimProcess&) = delete;
  virtual void on_start() = 0;
  virtual void on_message(const Message& message) = 0;
  virtual void on_wake() = 0;

 protected:
  void send_all(Outbox& out);
  /// Asks to be woken at `at_us` unless an earlier wake is under way already.
  void wake_at(int64_t at_us);
  void woken() { wake_us_ = INT64_MAX; }

  SimHost& host_;
  Address self_;

 private:
  int64_t wake_us_ = INT64_MAX;
};

class WorkerProcess final : public SimProcess {
 public:
  WorkerProcess(SimHost& host, WorkerId worker);
  void on_start() override;
  void on_message(const Message& message) override;
  void on_wake() override;
  /// Incarnation of a rank that is restored and lives here; 0 if none does.
  [[nodiscard]] int64_t lives(RankId rank) const;

 private:
  struct Hosted {
    std::unique_ptr<RankCore> core;
    std::unique_ptr<SymbolicRank> program;
    int64_t first_step = -1;  ///< that this life executes; -1: not restored
    bool voted = false;
  };
  void on_world(const WorldRef& world);
  void adopt(RankId rank);
  void pump(RankId rank, Hosted& hosted);
  void flush();
  Hosted* find(RankId rank);

  WorldRef world_;
  bool member_ = false;
  std::map<RankId, Hosted> ranks_;
  Outbox out_;
  int64_t next_beat_us_ = 0;
  int64_t beats_ = 0;
};

class NodeProcess final : public SimProcess {
 public:
  NodeProcess(SimHost& host, NodeId node);
  void on_start() override;
  void on_message(const Message& message) override;
  void on_wake() override;
  /// The node has seen a worker of its own start or end; the coordinator is told at once.
  void on_workers(std::vector<Member> workers);
  [[nodiscard]] const MirrorCore& mirror() const { return mirror_; }

 private:
  void on_world(const WorldRef& world);
  void beat();

  NodeId node_;
  MirrorCore mirror_;
  WorldRef world_;
  bool member_ = false;
  std::vector<Member> workers_;
  std::vector<WorkerId> were_members_;
  int64_t next_beat_us_ = 0;
  int64_t beats_ = 0;
};

class CoordinatorProcess final : public SimProcess {
 public:
  CoordinatorProcess(SimHost& host, const ReplayedJournal& journal);
  void on_start() override;
  void on_message(const Message& message) override;
  void on_wake() override;
  void on_written(int64_t number, bool ok);
  [[nodiscard]] const CoordinatorCore& core() const { return core_; }

 private:
  void flush();
  CoordinatorCore core_;
  int64_t generation_ = 0;
};

}  // namespace sgactor::supervision
