#pragma once
#include "actors/runtime/coordinator.h"
#include "actors/runtime/node_children.h"
#include "actors/runtime/remote_session.h"
#include "actors/runtime/training.h"
#include "apps/sgactor/arithmetic.h"
#include "apps/sgactor/cluster_left.h"
#include "apps/sgactor/cluster_options.h"
#include "apps/sgactor/cluster_standing.h"
#include "apps/sgactor/fault_injection.h"
#include "apps/sgactor/hang_views.h"
#include "apps/sgactor/job_spec.h"
#include "apps/sgactor/mirror_directory.h"
#include "apps/sgactor/profile_request.h"
#include "apps/sgactor/recovery_log.h"
#include "apps/sgactor/replay_check.h"
#include "apps/sgactor/replica_copy.h"
#include "apps/sgactor/run_directory.h"
#include "graph/base/status.h"
#include "graph/plan/plan.h"
#include "supervision/monitor/device_faults.h"
#include "supervision/monitor/hang_inquiry.h"
#include "supervision/monitor/progress_watch.h"
#include "supervision/policy/fault_policy.h"
#include "supervision/policy/storm_breaker.h"
#include "supervision/recovery/replicas.h"

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace sgactor::apps {

class StatusBoard;
enum class RunState : uint8_t;

/// The coordinator's side of a run in several processes: listens, starts this host's node, takes
/// nodes and workers in, deals the logical ranks, and ends everybody. One thread: the main one.
///
/// A run is a row of attempts. Each loads the plan into the workers that are there, from the newest
/// copy of the state, and goes on until the job is done. When workers are lost, others take their
/// ranks over within the attempt, and survivors execute nothing again; where that cannot be, the
/// attempt ends and the next one begins in a new generation, behind the step committed last. Steps
/// that are executed again must give the same bits.
class Cluster {
 public:
  struct Setup {
    ClusterOptions options;
    Launcher launcher;
    std::string devices;  ///< of this host's workers, together
    std::string job;      ///< resolved, as TOML
    std::string job_name;
    std::string log_level;
    int64_t num_workers = 1;      ///< that host ranks
    bool recovers = true;         ///< false: the first loss ends the run
    int64_t mirror_interval = 0;  ///< steps between copies of the state in memory
    bool replicas = false;        ///< no such copies: lost state comes from data-parallel replicas
    int64_t max_faults = 20;      ///< a minute; more end the run
    bool allow_inexact = false;   ///< ranks may move to workers of another arithmetic
    int64_t orphan_ms = 0;        ///< others wait as long for another coordinator; 0: not
    std::optional<LeftRun> left;  ///< of a coordinator that has died: taken over
    RankArithmetic arithmetic;    ///< by what a run that is resumed was computed; empty: not known
    double progress_factor = 0;   ///< as supervision::ProgressWatch has them
    double progress_floor_s = 10;
    double expected_step_ms = 0;
    StatusBoard* status = nullptr;  ///< is told who takes part; null: nobody
  };
  /// Listens; nothing else is there yet. Errors: kInvalidArgument: a wrong option, a port in use.
  static Result<std::unique_ptr<Cluster>> create(Setup setup);
  /// Ends everybody, if end() did not.
  ~Cluster();
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  /// Writes the token into the run directory, prints how others join, starts this host's node and
  /// those of the hosts file, and waits until there are as many workers as needed, of the
  /// arithmetic that the run has. Errors: kTimeout, scope kDevice, saying what is there and what is
  /// missing; as other_arithmetic; kCancelled if `stop` is set; the end of a node.
  Status gather(const RunDirectory& run, const std::atomic<bool>& stop);

  struct Work {
    const graph::Plan* plan = nullptr;
    const graph::Plan* validation_plan = nullptr;
    std::string run_directory;
    int64_t first_step = 1;
    RecordedSteps recorded;  ///< from first_step on, by a coordinator before this one
    std::string checkpoint;  ///< step directory; empty: initial weights
    actors::TrainingSpec spec;
    actors::TrainingObserver* observer = nullptr;
    /// Told by what all ranks compute from a step on: before the first one, and when it changes.
    std::function<void(int64_t first_step, const RankArithmetic&)> on_arithmetic;
  };
  /// Loads the plan everywhere and runs it to its end, through losses of workers. Errors: what
  /// could not be survived, naming the worker or node that failed first; kCorruption if a step came
  /// out otherwise when it was executed again.
  Result<actors::TrainingSummary> run(const Work& work, const std::atomic<bool>& stop);

  /// Tells everybody to end and waits for this host's processes: two seconds at most, then they are
  /// killed. `why` is ok for an orderly end.
  void end(const Status& why);

 private:
  struct Worker {
    actors::wire::PeerId peer = actors::wire::kNobody;
    actors::Peer who;
    std::string address;
    std::string fingerprint;     ///< of its arithmetic, as far as is known
    std::vector<int32_t> ranks;  ///< none: a spare
    int32_t place = 0;
    int32_t life = 0;       ///< names it on the data plane (data_peer): another one after a respawn
    bool prepared = false;  ///< was sent the plan before it is needed
    int64_t num_asked = 0;  ///< answers to LoadPlan that are still missing
    int64_t heard_ms = 0;
    int64_t suspected_ms = 0;  ///< 0: not
  };
  struct Node {
    actors::Peer who;
    int32_t num_started = 0;
    std::vector<std::string> devices;  ///< what it deals to workers
  };
  /// Where a worker can run: a device of a node.
  struct Place {
    actors::wire::PeerId node = actors::wire::kNobody;
    std::string device;  ///< "": none, no worker can run there
    std::string host;    ///< the node's, which may have left
  };
  struct Fault {
    supervision::FaultKind kind = supervision::FaultKind::kWorkerExit;
    Status status;
    int32_t index = -1;  ///< of the worker; -1: of nobody
    std::string culprit;
    double silent_ms = 0;  ///< since the last sign of life, where that is how it was found
    int64_t detected_ms = 0;
    double detected_unix = 0;
  };
  /// A suspicion that somebody does not move, and what workers answer.
  struct Hang {
    std::optional<supervision::HangInquiry> inquiry;
    bool confirmed = false;
    bool reported = false;
    std::string fault;
    std::string culprit;
    std::vector<int32_t> silent;  ///< indices
    std::vector<HangWorker> workers;
    int64_t detected_ms = 0;
    double still_ms = 0;
    int64_t generation = 0;  ///< in which; 0: not known yet
  };
  /// An injected fault that waits for a phase of a recovery.
  struct Armed {
    std::string phase;
    bool of_coordinator = false;
    int32_t worker = -1;
    bool spare = false;  ///< the one that takes over
  };
  /// Of a whole run. Services outlive the actors that use them.
  struct Course;

  explicit Cluster(Setup setup)
      : setup_(std::move(setup)),
        progress_(setup_.progress_factor, static_cast<int64_t>(setup_.progress_floor_s * 1000),
                  setup_.expected_step_ms) {}
  // --- membership: cluster.cc ---
  Status listen();
  Status make_identity();
  Status start_local_nodes();
  Status start_node(const std::vector<std::string>& before, int64_t workers, int32_t tag);
  void print_join_line() const;
  void start_workers();
  void start_workers_of(actors::wire::PeerId id, Node& node, int64_t count);
  void start_worker_at(int32_t place);
  void forget_starting(actors::wire::PeerId node);
  [[nodiscard]] std::string free_device(actors::wire::PeerId node) const;
  int32_t add_place(const Node& node, const std::string& device);
  [[nodiscard]] bool is_closed(int32_t place) const;
  void close_device(int32_t place);
  /// Handles one event, or none within the time; a failure that ends the run comes back.
  Status step(int64_t timeout_ms);
  Status on_event(actors::SessionEvent& event);
  Status on_joined(const actors::Peer& peer);
  Status on_left(const actors::Peer& peer, const Status& why);
  Status on_exited(const actors::wire::WorkerExited& exited);
  Status on_answer(const actors::SessionEvent& event);
  [[nodiscard]] HostDevice kind_of(const Worker& worker) const;
  [[nodiscard]] bool fits(const Worker& worker, int32_t rank) const;
  [[nodiscard]] int64_t num_arithmetics() const;
  [[nodiscard]] int64_t num_wanted() const;
  [[nodiscard]] std::vector<int32_t> choose_hosts() const;
  [[nodiscard]] Result<std::map<int32_t, std::vector<int32_t>>> deal_apart(
      const std::vector<int32_t>& chosen) const;
  bool takes_arithmetic(Worker& worker, const std::string& fingerprint);
  void keep_fingerprints(const Course& course, int64_t first_step);
  Status check_children();
  Status lose(int32_t index, supervision::FaultKind kind, const Status& why);
  /// Found at `detected_ms` by now_ms(); 0: now. `culprit` "": what the Status says.
  static Fault make_fault(supervision::FaultKind kind, Status status, int32_t index,
                          std::string culprit = "", int64_t detected_ms = 0);
  supervision::StormBreaker::Verdict count_storm(int32_t place);
  void count_fault(int32_t place);
  Worker* find_peer(actors::wire::PeerId peer);
  [[nodiscard]] std::string missing() const;
  [[nodiscard]] bool complete() const;

  // --- a run that is resumed: cluster_arithmetic.cc ---
  Status ask_arithmetic(const std::atomic<bool>& stop);
  void on_arithmetic(actors::wire::PeerId from, const std::string& fingerprint);
  Status check_arithmetic(const RunDirectory& run, const std::atomic<bool>& stop);

  // --- recovery in place: cluster_adopt.cc ---
  void listen_to_fences(Course& course, actors::CoordinatorHost& host);
  actors::SpawnWorker stand_in(const Worker& worker, const actors::wire::Routes& routes) const;
  Status check_adoption(const Course& course) const;
  static bool is_broken_link(const Fault& fault);
  static bool is_respawn(const Fault& fault);
  void note_failure(Course& course, int32_t rank, const Status& why);
  actors::SpawnWorker in_place_of(const Worker& worker, actors::SpawnWorker spawn) const;
  Status note_broken_link(Course& course);
  [[nodiscard]] bool is_hosted(const Course& course, int32_t rank) const;
  Status recover_in_place(Course& course, const actors::CoordinatorActor& coordinator);
  Status begin_fence(Course& course, const actors::CoordinatorActor& coordinator);
  Status on_fenced(Course& course);
  Status find_state(Course& course, int64_t committed);
  bool find_adopters(Course& course);
  void load_adopter(Course& course, int32_t index, Worker& worker);
  void load_respawns(Course& course);
  void prepare_spares(const Course& course);
  void join_adopters(Course& course, const actors::CoordinatorActor& coordinator);

  // --- state from replicas: cluster_replicas.cc ---
  [[nodiscard]] supervision::Holder holder_of(const Course& course, int32_t rank) const;
  static int64_t copy_limit_ms(const Course& course);
  Status begin_copy(const Course& course, int64_t step, const std::set<int32_t>& excluded);
  void on_state_copied(const std::string& payload);
  Status finish_copy(const Course& course);
  void drop_copy();
  static void remove_left_copies(const std::string& mirror_root);
  Status copy_now(const Course& course, int64_t step);
  Status restore_from_replicas(Course& course);
  [[nodiscard]] Status beyond_replicas(const Course& course, const Status& why) const;
  void warn_of_parts(const Course& course) const;

  // --- who does not move: cluster_hang.cc ---
  void ask_views();
  void on_views(actors::wire::PeerId peer, const std::string& payload);
  void confirm_silence(int32_t index, const Worker& worker, const Status& why);
  void check_progress(Course& course);
  void settle_hang(Course& course);
  void blame(Course& course, const supervision::HangReport& report);
  void report_hang(const Course& course, const supervision::HangReport& report,
                   const std::vector<supervision::RankView>& views);
  void finish_hang(Course& course);

  // --- a run whose coordinator has died: cluster_takeover.cc ---
  [[nodiscard]] bool outlives() const;
  Status keep_left(const Work& work, uint64_t schema_hash);
  void rewrite_left();
  int32_t take_index();
  void on_returned(const actors::Peer& peer);
  void on_standing(actors::wire::PeerId from, const std::string& payload);
  [[nodiscard]] bool all_returned() const;
  Status await_returned(const std::atomic<bool>& stop);
  void forget_returned(int32_t index);
  void settle_returned();
  void answer_early_faults();
  void end_returned();
  [[nodiscard]] std::vector<ReplayCheck::Point> left_points(const Course& course) const;
  void deal_returned(Course& course);
  void expel_stale();
  Status load_missing(Course& course, int64_t committed, const std::atomic<bool>& stop);
  static Status journal_standing(Course& course, actors::CommitRecord record);
  Status take_over(Course& course, const std::atomic<bool>& stop);

  // --- attempts: cluster_run.cc ---
  Status start_course(const Work& work, Course& course);
  Status deal(Course& course);
  Status load(Course& course, const std::atomic<bool>& stop);
  actors::wire::Routes routes() const;
  static void begin_fresh(Course& course, const std::vector<int64_t>& lives);
  Status prepare(Course& course, const std::atomic<bool>& stop);
  Result<std::shared_ptr<actors::CoordinatorHost>> make_host(Course& course);
  Result<actors::RunOutcome> attempt(Course& course, const std::atomic<bool>& stop);
  void watch(Course& course, const std::atomic<bool>& stop);
  Status go_on(Course& course, const Status& failure);
  Status judge(Course& course, const Status& failure);
  [[nodiscard]] std::string longest_unheard() const;
  void find_cause(const Status& failure);
  void open_recovery(Course& course);
  void end_workers_at_fault();
  bool end_those_at_fault();
  void check_silence();
  void note_progress(Course& course);
  void write_recovery(Course& course);
  void write_state(const Course& course);
  [[nodiscard]] int64_t num_active() const;
  [[nodiscard]] bool should_deal_again() const;

  // --- the status page: cluster_status.cc ---
  [[nodiscard]] RunState run_state() const;
  void show_status(bool at_once);

  // --- requests, devices, hosts that are left: cluster_control.cc ---
  bool take_request(const Work& work);
  void resize(int64_t workers);
  void inject(const InjectedFault& fault);
  void arm(const std::string& text);
  void strike_at(const Course& course, std::string_view phase);
  void ask_profile(const Work& work, int64_t steps);
  void on_profiled(actors::wire::PeerId from, const std::string& payload);
  void on_opaque(actors::wire::PeerId from, const actors::wire::Opaque& message);
  void on_device_fault(const supervision::DeviceFault& device);
  void on_wrong_bits(const Course& course, int32_t rank, const Status& why);
  [[nodiscard]] bool is_leaving(const Worker& worker) const;
  [[nodiscard]] int64_t num_staying() const;
  [[nodiscard]] bool can_leave(const std::set<actors::wire::PeerId>& nodes) const;
  Status drain_host(const std::string& host);
  Status drain_node(actors::wire::PeerId node);
  void end_leaving();

  Setup setup_;
  uint64_t job_hash_ = 0;
  NodeRange nodes_wanted_;
  std::vector<HostLine> hosts_;
  int64_t workers_per_node_ = 1;
  std::string token_;
  std::vector<std::string> addresses_;
  std::string secret_;
  bool on_this_host_ = true;  // nobody else can reach the control port
  actors::TlsIdentity member_;
  actors::TlsIdentity server_;
  int64_t created_ms_ = 0;
  LeftFacts left_;
  RunDirectory left_run_;      // empty: nothing is left behind
  Terms terms_;                // of those that join
  bool returning_ = false;     // await_returned
  bool settled_ = true;        // false: those that return have no places yet
  bool holds_faults_ = false;  // of devices, until it is known who hosts what
  std::vector<supervision::DeviceFault> early_faults_;
  std::map<int32_t, Standing> standings_;                       // by index
  std::map<actors::wire::PeerId, std::vector<int32_t>> alive_;  // workers, by node
  std::unique_ptr<actors::RemoteSession> session_;
  actors::NodeChildren children_;
  std::map<actors::wire::PeerId, Node> nodes_;
  std::map<int32_t, Worker> workers_;  // by index
  std::vector<Place> places_;
  std::map<HostDevice, std::string> arithmetic_at_;  // of workers that were there, by kind_of
  std::map<int32_t, std::string> fingerprints_;  // of the arithmetic of ranks, as they were loaded
  std::map<int32_t, std::string> told_fingerprints_;  // to Work::on_arithmetic
  std::set<int32_t> unknown_;            // indices of workers whose arithmetic is asked for
  bool moved_inexactly_ = false;         // since the recovery under way has begun
  std::map<int32_t, int32_t> starting_;  // index to place of those that have not joined yet
  int32_t next_index_ = 0;
  std::set<actors::wire::PeerId> draining_;  // nodes
  std::set<int32_t> closed_places_;          // where no worker is started any more
  std::set<HostDevice> closed_devices_;      // the same, of exclusive ones: for every node
  std::set<int32_t> loading_;                // indices whose answer is waited for
  std::vector<Fault> faults_;                // of the attempt under way
  supervision::StormBreaker storm_;
  Status storm_status_;
  int64_t looked_ms_ = 0;  // check_silence's last time
  Hang hang_;
  supervision::ProgressWatch progress_;
  std::vector<Armed> armed_;
  std::atomic<bool> strikes_journalled_{false};  // this process, at its next record
  /// What stands for workers at the coordinator, by process. Its actor's thread adds.
  struct Proxies {
    std::mutex mutex;
    std::map<actors::wire::PeerId, actors::WorkerActor> by_peer;
  };
  std::shared_ptr<Proxies> proxies_ = std::make_shared<Proxies>();
  bool running_ = false;
  bool state_stale_ = false;  // control/state.json: spares have come or gone
  bool ended_ = false;
  const Course* shown_ = nullptr;  // of the run under way
  int64_t shown_ms_ = 0;
  int64_t num_faults_ = 0;
  ReplicaCopy copy_;
  std::unique_ptr<MirrorDirectory> memory_;
  std::string shared_mirror_;               // below the run directory; empty: none
  std::map<int32_t, std::string> endings_;  // how workers ended, by index
  std::string lost_;                        // who was lost, and how
  ProfileRequest profile_;
  const Work* profiled_work_ = nullptr;  // that profile_ is of
};

}  // namespace sgactor::apps
