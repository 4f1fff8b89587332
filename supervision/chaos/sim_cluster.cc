// Actors of CAF's testing scheduler around the processes of sim_process.h. One thread; whoever is
// ready is drawn at random; when nobody is, time jumps to the earliest timer.
#include "supervision/chaos/sim_cluster.h"

#include "graph/base/hash.h"
#include "supervision/chaos/sim_judge.h"
#include "supervision/chaos/sim_process.h"

#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>
#include <caf/allowed_unsafe_message_type.hpp>
#include <caf/detail/test_actor_clock.hpp>
#include <caf/event_based_actor.hpp>
#include <caf/mailbox_element.hpp>
#include <caf/scheduler/test_coordinator.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>

namespace sgactor::supervision {
namespace {

struct Packet {
  Message message;
};
struct Wake {};
struct Written {
  int64_t number = 0;
  bool ok = false;
};
/// What happens to the world by itself, at its time.
struct WorldEvent {
  enum class Kind : uint8_t {
    kDiskDone,
    kExitSeen,
    kRespawnWorker,
    kRestartNode,
    kRestartCoordinator
  };
  Kind kind = Kind::kDiskDone;
  int64_t id = 0;  ///< journal entry, worker, slot, slots
  int32_t node = 0;
  int64_t life = 0;  ///< of the coordinator
};

}  // namespace
}  // namespace sgactor::supervision

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(sgactor::supervision::Packet)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(sgactor::supervision::Wake)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(sgactor::supervision::Written)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(sgactor::supervision::WorldEvent)

namespace sgactor::supervision {
namespace {

class SimConfig : public caf::actor_system_config {
 public:
  SimConfig() { set("scheduler.policy", caf::atom("testing")); }
};

/// The address under which the world's own events are logged.
constexpr Address kWorldAddress{Address::Kind::kCoordinator, -1};

class SimCluster final : public SimHost {
 public:
  SimCluster(const SimScenario& scenario, const SimRunOptions& options);
  ~SimCluster() override;
  SimResult run();

  // What actors hand over.
  void deliver(const Address& to, const Packet& packet);
  void deliver(const Address& to, const Wake& wake);
  void deliver(const Address& to, const Written& written);
  void deliver(const WorldEvent& event);

  // SimHost
  [[nodiscard]] int64_t now_us() const override;
  const SimScenario& scenario() const override { return scenario_; }
  void send(const Address& from, Envelope envelope) override;
  void broadcast(const WorldRef& world) override;
  void wake_at(const Address& who, int64_t at_us) override;
  void write_journal(const JournalEntry& entry) override;
  void quit(const Address& who) override { ending_.push_back(who); }
  void kill_if_told(WorkerId worker) override;
  void on_phase(SimPhase phase, WorkerId subject) override;
  void on_work(RankId rank, int64_t incarnation, Work work, int64_t step,
               int32_t micro_batch) override {
    judge_.on_work(rank, incarnation, work, step, micro_batch);
  }
  void on_state(RankId rank, int64_t step, const State& state) override {
    judge_.on_state(rank, step, state, now_us());
  }
  void on_broken(const Status& status) override {
    judge_.fail(SimOutcome::kBroken, status.to_string());
  }
  void on_decided(const CoordinatorCore& core) override;

 private:
  struct Process {
    std::unique_ptr<SimProcess> process;
    caf::strong_actor_ptr actor;
    Member member;  ///< of a worker; of a node only `node`
    int64_t frozen_until_us = 0;
    int64_t cut_until_us = 0;
    int64_t slow_until_us = 0;
    bool zombie = false;
  };

  // Life and death.
  template <class P, class... Args>
  P* spawn(const Address& address, const Member& member, Args&&... args);
  void start_node(NodeId node, int32_t num_workers);
  void start_worker(NodeId node, int32_t slot);
  void start_coordinator(bool first);
  void tell_node(NodeId node);
  void hard_kill(const caf::strong_actor_ptr& actor);
  void end_worker(WorkerId worker, bool seen_by_node);
  void end_node(NodeId node);
  void end_coordinator();
  Process* find(const Address& address);
  NodeProcess* node_process(NodeId node);

  // Faults.
  void check_faults();
  void inject(const SimFault& fault);
  WorkerId choose_worker(const SimFault& fault) const;
  NodeId choose_node(const SimFault& fault) const;
  [[nodiscard]] bool reachable(const Process& p) const;
  [[nodiscard]] bool survives_without(WorkerId worker, NodeId node);
  bool copy_exists(RankId rank, NodeId except);
  void strike_worker(WorkerId worker, const SimFault& fault);
  void strike_node(NodeId node, const SimFault& fault);

  // Events.
  bool step();
  template <class T>
  void schedule(const caf::strong_actor_ptr& to, int64_t delay_us, T message);
  void schedule_world(int64_t delay_us, WorldEvent event);
  void log(const Address& to, std::string_view what, uint64_t hash);
  [[nodiscard]] bool cut(const Process& a, const Process& b) const;

  SimScenario scenario_;
  SimRunOptions options_;
  SimRandom random_;
  SimConfig config_;
  caf::actor_system system_;
  caf::scheduler::test_coordinator& scheduler_;
  caf::strong_actor_ptr world_actor_;
  std::map<Address, Process> processes_;
  WorkerId next_worker_ = 0;
  NodeId next_node_ = 0;
  std::vector<Address> ending_;

  // The coordinator's disk.
  std::string disk_;
  std::string in_flight_;
  int64_t coordinator_life_ = 0;
  int64_t disk_slow_until_us_ = 0;
  int64_t disk_full_until_us_ = 0;

  size_t next_fault_ = 0;
  int64_t fault_base_ = 0;  ///< event at which the fault before struck
  int64_t phase_hits_ = 0;
  WorkerId phase_subject_ = kNone;
  SimJudge judge_;
  SimResult result_;
  std::deque<std::string> trace_;
};

caf::behavior process_actor(caf::event_based_actor* /*self*/, SimCluster* cluster, Address me) {
  return {
      [=](const Packet& p) { cluster->deliver(me, p); },
      [=](const Wake& w) { cluster->deliver(me, w); },
      [=](const Written& w) { cluster->deliver(me, w); },
  };
}

caf::behavior world_actor(caf::event_based_actor* /*self*/, SimCluster* cluster) {
  return {[=](const WorldEvent& e) { cluster->deliver(e); }};
}

SimCluster::SimCluster(const SimScenario& scenario, const SimRunOptions& options)
    : scenario_(scenario),
      options_(options),
      random_(scenario.seed ^ 0xC0FFEEULL),
      system_(config_),
      scheduler_(dynamic_cast<caf::scheduler::test_coordinator&>(system_.scheduler())),
      judge_(scenario_) {
  world_actor_ = caf::actor_cast<caf::strong_actor_ptr>(system_.spawn(world_actor, this));
  const int32_t workers = scenario_.num_workers;
  for (int32_t n = 0; n < scenario_.num_nodes; ++n) {
    start_node(next_node_++, (workers + scenario_.num_nodes - 1 - n) / scenario_.num_nodes);
  }
  start_coordinator(true);
}

SimCluster::~SimCluster() {
  for (auto& [address, p] : processes_) hard_kill(p.actor);
  processes_.clear();
  hard_kill(world_actor_);
  world_actor_.reset();
  scheduler_.clock().cancel_all();
  scheduler_.run();
}

int64_t SimCluster::now_us() const {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             scheduler_.clock().now().time_since_epoch())
      .count();
}

template <class T>
void SimCluster::schedule(const caf::strong_actor_ptr& to, int64_t delay_us, T message) {
  auto& clock = scheduler_.clock();
  clock.schedule_message(
      clock.now() + std::chrono::microseconds(delay_us), to,
      caf::make_mailbox_element(nullptr, caf::make_message_id(), {}, std::move(message)));
}

void SimCluster::schedule_world(int64_t delay_us, WorldEvent event) {
  schedule(world_actor_, delay_us, event);
}

bool SimCluster::step() {
  auto& jobs = scheduler_.jobs;
  if (jobs.empty()) return scheduler_.trigger_timeout();
  const auto i = static_cast<size_t>(random_.below(static_cast<int64_t>(jobs.size())));
  if (i > 0) std::swap(jobs[0], jobs[i]);
  return scheduler_.try_run_once();
}

SimResult SimCluster::run() {
  while (!judge_.over()) {
    if (!step()) {
      judge_.fail(SimOutcome::kStuck, "nothing is left to happen");
      break;
    }
    while (!ending_.empty()) {
      const Address who = ending_.back();
      ending_.pop_back();
      if (who.kind == Address::Kind::kWorker) end_worker(who.id, true);
      if (who.kind == Address::Kind::kNode) end_node(who.id);
    }
    check_faults();
    judge_.check_progress(now_us(), result_.events);
  }
  result_.outcome = judge_.outcome();
  result_.message = judge_.message();
  result_.state_hash = judge_.state_hash();
  result_.virtual_us = now_us();
  result_.recoveries = judge_.recoveries();
  result_.adoptions = judge_.adoptions();
  result_.reexecuted = judge_.reexecuted();
  result_.survivors_reexecuted = judge_.survivors_reexecuted();
  result_.trace.assign(trace_.begin(), trace_.end());
  return result_;
}

void SimCluster::log(const Address& to, std::string_view what, uint64_t hash) {
  ++result_.events;
  result_.event_hash = mix64(result_.event_hash, static_cast<uint64_t>(now_us()));
  result_.event_hash = mix64(
      result_.event_hash, (static_cast<uint64_t>(to.kind) << 32U) + static_cast<uint32_t>(to.id));
  result_.event_hash = mix64(result_.event_hash, hash);
  if (options_.trace_events == 0) return;
  trace_.push_back(fmt::format("{:>8} {:>10} us  {:<14} {}", result_.events, now_us(),
                               describe_address(to), what));
  if (trace_.size() > static_cast<size_t>(options_.trace_events)) trace_.pop_front();
}

// --- delivery ---

void SimCluster::deliver(const Address& to, const Packet& packet) {
  Process* p = find(to);
  if (p == nullptr) return;
  if (p->frozen_until_us > now_us())
    return schedule(p->actor, p->frozen_until_us - now_us(), packet);
  log(to, options_.trace_events > 0 ? describe_message(packet.message) : "",
      hash_message(packet.message));
  p->process->on_message(packet.message);
}

void SimCluster::deliver(const Address& to, const Wake& wake) {
  Process* p = find(to);
  if (p == nullptr) return;
  if (p->frozen_until_us > now_us()) return schedule(p->actor, p->frozen_until_us - now_us(), wake);
  log(to, "wakes", 1);
  p->process->on_wake();
}

void SimCluster::deliver(const Address& to, const Written& written) {
  Process* p = find(to);
  if (p == nullptr) return;
  log(to, written.ok ? "journal entry is durable" : "journal entry could not be written", 2);
  static_cast<CoordinatorProcess&>(*p->process).on_written(written.number, written.ok);
}

void SimCluster::deliver(const WorldEvent& event) {
  log(kWorldAddress, "world", 16 + static_cast<uint64_t>(event.kind));
  switch (event.kind) {
    case WorldEvent::Kind::kDiskDone: {
      if (event.life != coordinator_life_ || in_flight_.empty()) return;
      const bool ok = now_us() >= disk_full_until_us_;
      if (ok) disk_ += in_flight_;
      in_flight_.clear();
      if (Process* p = find(coordinator_address())) {
        schedule(p->actor, random_.between(5, 60), Written{event.id, ok});
      }
      if (ok) on_phase(SimPhase::kDurable, kNone);
      return;
    }
    case WorldEvent::Kind::kExitSeen:
      tell_node(event.node);
      return;
    case WorldEvent::Kind::kRespawnWorker:
      if (find(node_address(event.node)) != nullptr) {
        start_worker(event.node, static_cast<int32_t>(event.id));
        tell_node(event.node);
      }
      return;
    case WorldEvent::Kind::kRestartNode:
      start_node(next_node_++, static_cast<int32_t>(event.id));
      return;
    case WorldEvent::Kind::kRestartCoordinator:
      start_coordinator(false);
      return;
  }
}

bool SimCluster::cut(const Process& a, const Process& b) const {
  const int64_t now = now_us();
  if (a.cut_until_us <= now && b.cut_until_us <= now) return false;
  // A node that is cut off still talks to its own workers, unless one of the two is cut off alone.
  const bool same_node = a.member.node != kNone && a.member.node == b.member.node;
  return !(same_node && a.cut_until_us == b.cut_until_us);
}

void SimCluster::send(const Address& from, Envelope envelope) {
  Process* source = find(from);
  Process* target = find(envelope.to);
  if (source == nullptr || target == nullptr) return;
  if (source == target) return schedule(target->actor, 1, Packet{std::move(envelope.message)});
  const SimNetworkProfile& net = scenario_.network;
  const int32_t copies = net.duplicate_percent > 0 && random_.chance(net.duplicate_percent) ? 2 : 1;
  for (int32_t c = 0; c < copies; ++c) {
    int64_t delay = random_.between(net.min_delay_us, net.max_delay_us);
    if (net.late_percent > 0 && random_.chance(net.late_percent)) {
      // Some so late that a recovery is over before.
      delay +=
          random_.chance(25) ? random_.between(20'000, 150'000) : random_.between(3'000, 23'000);
    }
    if (source->slow_until_us > now_us()) delay += random_.between(5'000, 40'000);
    const bool lost = net.drop_percent > 0 && random_.chance(net.drop_percent);
    if (lost || cut(*source, *target)) continue;
    schedule(target->actor, delay, Packet{envelope.message});
  }
}

void SimCluster::broadcast(const WorldRef& world) {
  for (const auto& [address, p] : processes_) {
    if (address != coordinator_address()) send(coordinator_address(), {address, world});
  }
}

void SimCluster::wake_at(const Address& who, int64_t at_us) {
  Process* p = find(who);
  if (p != nullptr) schedule(p->actor, std::max<int64_t>(1, at_us - now_us()), Wake{});
}

void SimCluster::write_journal(const JournalEntry& entry) {
  in_flight_ = format_entry(entry);
  int64_t delay = random_.between(100, 3'000);
  if (disk_slow_until_us_ > now_us()) delay += random_.between(20'000, 80'000);
  schedule_world(delay, {WorldEvent::Kind::kDiskDone, entry.number, kNone, coordinator_life_});
}

// --- life and death ---

SimCluster::Process* SimCluster::find(const Address& address) {
  const auto it = processes_.find(address);
  return it != processes_.end() ? &it->second : nullptr;
}

NodeProcess* SimCluster::node_process(NodeId node) {
  Process* p = find(node_address(node));
  return p != nullptr ? static_cast<NodeProcess*>(p->process.get()) : nullptr;
}

template <class P, class... Args>
P* SimCluster::spawn(const Address& address, const Member& member, Args&&... args) {
  Process& p = processes_[address];
  p.member = member;
  p.actor = caf::actor_cast<caf::strong_actor_ptr>(system_.spawn(process_actor, this, address));
  auto process = std::make_unique<P>(*this, std::forward<Args>(args)...);
  P* raw = process.get();
  p.process = std::move(process);
  raw->on_start();
  return raw;
}

void SimCluster::start_node(NodeId node, int32_t num_workers) {
  spawn<NodeProcess>(node_address(node), Member{kNone, node, 0, 0}, node);
  for (int32_t slot = 0; slot < num_workers; ++slot) start_worker(node, slot);
  tell_node(node);
}

void SimCluster::start_worker(NodeId node, int32_t slot) {
  const WorkerId worker = next_worker_++;
  spawn<WorkerProcess>(worker_address(worker), Member{worker, node, slot, 0}, worker);
}

void SimCluster::start_coordinator(bool first) {
  if (first) {
    std::vector<NodeId> nodes;
    std::vector<Member> workers;
    for (const auto& [address, p] : processes_) {
      if (address.kind == Address::Kind::kNode) nodes.push_back(address.id);
      if (address.kind == Address::Kind::kWorker) workers.push_back(p.member);
    }
    PlacementOptions placement;
    placement.max_ranks_per_worker = scenario_.max_ranks_per_worker;
    const auto world = initial_world(scenario_.mesh.num_ranks(), nodes, workers, placement);
    if (!world.ok()) return judge_.fail(SimOutcome::kBroken, world.status().to_string());
    disk_ = format_entry({0, difference({}, *world)});
  } else {
    ++result_.coordinator_restarts;
  }
  const auto journal = replay_journal(disk_);
  if (!journal.ok()) return judge_.fail(SimOutcome::kBroken, journal.status().to_string());
  disk_.resize(static_cast<size_t>(journal->valid_bytes));
  if (first) judge_.on_start(journal->world);
  spawn<CoordinatorProcess>(coordinator_address(), Member{}, *journal);
}

/// The list of its workers changes at the node, which says so at once.
void SimCluster::tell_node(NodeId node) {
  NodeProcess* process = node_process(node);
  if (process == nullptr) return;
  std::vector<Member> workers;
  for (const auto& [address, p] : processes_) {
    if (address.kind == Address::Kind::kWorker && p.member.node == node)
      workers.push_back(p.member);
  }
  process->on_workers(std::move(workers));
}

/// Death at a message boundary, at once: an exit message would wait behind the mailbox.
void SimCluster::hard_kill(const caf::strong_actor_ptr& actor) {
  auto* p = dynamic_cast<caf::scheduled_actor*>(actor->get());
  if (p == nullptr) return;
  auto& jobs = scheduler_.jobs;
  const auto it = std::find(jobs.begin(), jobs.end(), static_cast<caf::resumable*>(p));
  if (it != jobs.end()) {
    jobs.erase(it);
    intrusive_ptr_release(static_cast<caf::resumable*>(p));
  }
  p->context(system_.dummy_execution_unit());  // its old one was on the stack of try_run_once
  p->quit(caf::exit_reason::kill);
  p->finalize();
}

void SimCluster::end_worker(WorkerId worker, bool seen_by_node) {
  const auto it = processes_.find(worker_address(worker));
  if (it == processes_.end()) return;
  const Member member = it->second.member;
  hard_kill(it->second.actor);
  processes_.erase(it);
  if (!seen_by_node) return;
  const int64_t seen =
      random_.chance(50) ? random_.between(100, 3'000) : random_.between(3'000, 50'000);
  schedule_world(seen, {WorldEvent::Kind::kExitSeen, worker, member.node, 0});
  if (scenario_.respawn) {
    schedule_world(seen + random_.between(50'000, 300'000),
                   {WorldEvent::Kind::kRespawnWorker, member.slot, member.node, 0});
  }
}

void SimCluster::end_node(NodeId node) {
  if (find(node_address(node)) == nullptr) return;
  std::vector<WorkerId> workers;
  for (const auto& [address, p] : processes_) {
    if (address.kind == Address::Kind::kWorker && p.member.node == node)
      workers.push_back(address.id);
  }
  for (const WorkerId w : workers) end_worker(w, false);
  hard_kill(find(node_address(node))->actor);
  processes_.erase(node_address(node));
  if (scenario_.respawn) {
    schedule_world(random_.between(300'000, 800'000),
                   {WorldEvent::Kind::kRestartNode,
                    static_cast<int64_t>(std::max<size_t>(1, workers.size())), kNone, 0});
  }
}

void SimCluster::end_coordinator() {
  Process* p = find(coordinator_address());
  if (p == nullptr) return;
  hard_kill(p->actor);
  processes_.erase(coordinator_address());
  ++coordinator_life_;
  if (!in_flight_.empty()) {
    // What was being written is there as a whole, in part (sectors in any order), or not at all.
    const int64_t how = random_.below(4);
    const auto cut_at = static_cast<size_t>(random_.below(static_cast<int64_t>(in_flight_.size())));
    if (how == 0) disk_ += in_flight_;
    if (how == 1) disk_ += in_flight_.substr(0, cut_at);
    if (how == 2) {
      std::fill(in_flight_.begin() + static_cast<int64_t>(cut_at / 2),
                in_flight_.begin() + static_cast<int64_t>(cut_at), '\0');
      disk_ += cut_at / 2 < cut_at ? in_flight_ : std::string();
    }
    in_flight_.clear();
  }
  schedule_world(random_.between(20'000, 200'000),
                 {WorldEvent::Kind::kRestartCoordinator, 0, kNone, 0});
}

void SimCluster::kill_if_told(WorkerId worker) {
  Process* p = find(worker_address(worker));
  if (p != nullptr && !p->zombie) quit(worker_address(worker));
}

// --- judging ---

void SimCluster::on_decided(const CoordinatorCore& core) {
  const auto holds = [this](RankId rank, int64_t step, NodeId node) {
    NodeProcess* p = node_process(node);
    return p == nullptr || p->mirror().holds(rank, step);
  };
  int64_t room = 0;
  for (const Member& m : core.decided().workers) {
    if (find(worker_address(m.worker)) != nullptr) room += scenario_.max_ranks_per_worker;
  }
  judge_.on_decided(core, holds, room, now_us());
}

void SimCluster::on_phase(SimPhase phase, WorkerId subject) {
  if (next_fault_ >= scenario_.faults.size()) return;
  const SimFault& fault = scenario_.faults[next_fault_];
  if (fault.when != SimFault::When::kAtPhase || fault.phase != phase) return;
  ++phase_hits_;
  phase_subject_ = subject;
}

// --- faults ---

void SimCluster::check_faults() {
  if (next_fault_ >= scenario_.faults.size()) return;
  const SimFault& fault = scenario_.faults[next_fault_];
  const int64_t since = result_.events - fault_base_;
  constexpr int64_t kPatience = 600;
  const bool due = fault.when == SimFault::When::kAtPhase
                       ? phase_hits_ > fault.events || since > kPatience
                       : since >= fault.events;
  if (!due) return;
  const bool masked = next_fault_ < 32 && (options_.fault_mask >> next_fault_ & 1U) == 0;
  if (!masked) inject(fault);
  ++next_fault_;
  fault_base_ = result_.events;
  phase_hits_ = 0;
  phase_subject_ = kNone;
}

bool SimCluster::reachable(const Process& p) const {
  return p.frozen_until_us <= now_us() && p.cut_until_us <= now_us();
}

bool SimCluster::copy_exists(RankId rank, NodeId except) {
  const World& world = judge_.world();
  const RankPlace& place = world.ranks[static_cast<size_t>(rank)];
  for (const NodeId node : {place.source, place.mirror}) {
    if (node == kNone || node == except) continue;
    Process* p = find(node_address(node));
    if (p != nullptr && reachable(*p) &&
        node_process(node)->mirror().holds(rank, world.committed)) {
      return true;
    }
  }
  return false;
}

/// Nobody can survive the loss of a rank together with all copies of its state, or of all room: the
/// schedule stays below that.
bool SimCluster::survives_without(WorkerId worker, NodeId node) {
  const World& world = judge_.world();
  int64_t room = 0;
  for (const Member& m : world.workers) {
    Process* p = find(worker_address(m.worker));
    if (p == nullptr || m.worker == worker || m.node == node || !reachable(*p)) continue;
    room += scenario_.max_ranks_per_worker;
  }
  if (room < static_cast<int64_t>(world.ranks.size())) return false;
  for (size_t r = 0; r < world.ranks.size(); ++r) {
    const auto rank = static_cast<RankId>(r);
    const RankPlace& place = world.ranks[r];
    const Member* host = world.find(place.worker);
    const bool hit =
        place.worker == worker || (host != nullptr && host->node == node && node != kNone);
    if (!hit) {
      Process* p = find(worker_address(place.worker));
      const bool lives = p != nullptr && reachable(*p) &&
                         static_cast<WorkerProcess&>(*p->process).lives(rank) == place.incarnation;
      if (lives) continue;
    }
    if (world.committed > 0 && !copy_exists(rank, node)) return false;
  }
  return true;
}

WorkerId SimCluster::choose_worker(const SimFault& fault) const {
  if (fault.at_subject && phase_subject_ != kNone &&
      processes_.contains(worker_address(phase_subject_))) {
    return phase_subject_;
  }
  std::vector<WorkerId> candidates;
  for (const auto& [address, p] : processes_) {
    if (address.kind == Address::Kind::kWorker) candidates.push_back(address.id);
  }
  return candidates.empty() ? kNone : candidates[fault.draw % candidates.size()];
}

NodeId SimCluster::choose_node(const SimFault& fault) const {
  if (fault.at_subject && phase_subject_ != kNone) {
    const auto it = processes_.find(worker_address(phase_subject_));
    if (it != processes_.end()) return it->second.member.node;
  }
  std::vector<NodeId> candidates;
  for (const auto& [address, p] : processes_) {
    if (address.kind == Address::Kind::kNode) candidates.push_back(address.id);
  }
  return candidates.empty() ? kNone : candidates[fault.draw % candidates.size()];
}

void SimCluster::strike_worker(WorkerId worker, const SimFault& fault) {
  if (worker == kNone || !survives_without(worker, kNone)) return;
  Process& p = *find(worker_address(worker));
  const int64_t until = now_us() + fault.duration_us;
  ++result_.faults;
  switch (fault.kind) {
    case SimFaultKind::kKillWorker:
      return end_worker(worker, true);
    case SimFaultKind::kHangWorker:
      p.frozen_until_us = until;
      break;
    case SimFaultKind::kPartitionWorker:
      p.cut_until_us = until;
      break;
    default:
      p.slow_until_us = until;
      break;
  }
  p.zombie = fault.zombie;
}

void SimCluster::strike_node(NodeId node, const SimFault& fault) {
  if (node == kNone || !survives_without(kNone, node)) return;
  ++result_.faults;
  if (fault.kind == SimFaultKind::kKillNode) return end_node(node);
  for (auto& [address, p] : processes_) {
    if (p.member.node == node) p.cut_until_us = now_us() + fault.duration_us;
  }
}

void SimCluster::inject(const SimFault& fault) {
  if (options_.trace_events > 0) {
    trace_.push_back(
        fmt::format("{:>8} {:>10} us  FAULT {}", result_.events, now_us(), fault.describe()));
  }
  judge_.on_fault(now_us());
  switch (fault.kind) {
    case SimFaultKind::kKillWorker:
    case SimFaultKind::kHangWorker:
    case SimFaultKind::kPartitionWorker:
    case SimFaultKind::kSlowWorker:
      return strike_worker(choose_worker(fault), fault);
    case SimFaultKind::kKillNode:
    case SimFaultKind::kPartitionNode:
      return strike_node(choose_node(fault), fault);
    case SimFaultKind::kKillCoordinator:
      if (find(coordinator_address()) == nullptr) return;
      ++result_.faults;
      return end_coordinator();
    case SimFaultKind::kDiskSlow:
      ++result_.faults;
      disk_slow_until_us_ = now_us() + fault.duration_us;
      return;
    case SimFaultKind::kDiskFull:
      ++result_.faults;
      disk_full_until_us_ = now_us() + fault.duration_us;
      return;
  }
}

}  // namespace

std::string_view to_string(SimOutcome outcome) {
  switch (outcome) {
    case SimOutcome::kEqual:
      return "equal";
    case SimOutcome::kUnsurvivable:
      return "unsurvivable";
    case SimOutcome::kDiverged:
      return "diverged";
    case SimOutcome::kStuck:
      return "stuck";
    case SimOutcome::kBroken:
      return "broken";
    case SimOutcome::kLost:
      return "lost";
  }
  return "?";
}

SimResult run_scenario(const SimScenario& scenario, const SimRunOptions& options) {
  SimCluster cluster(scenario, options);
  return cluster.run();
}

}  // namespace sgactor::supervision
