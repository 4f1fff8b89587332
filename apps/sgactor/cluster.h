#pragma once
#include "actors/runtime/coordinator.h"
#include "actors/runtime/node_children.h"
#include "actors/runtime/remote_session.h"
#include "actors/runtime/training.h"
#include "apps/sgactor/cluster_options.h"
#include "apps/sgactor/job_spec.h"
#include "apps/sgactor/run_directory.h"
#include "graph/base/status.h"
#include "graph/plan/plan.h"

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace sgactor::apps {

/// The coordinator's side of a run in several processes: listens, starts this host's node, takes
/// nodes and workers in, deals the logical ranks, and ends everybody. One thread: the main one.
class Cluster {
 public:
  struct Setup {
    ClusterOptions options;
    Launcher launcher;
    std::string devices;  ///< of each worker
    std::string job;      ///< resolved, as TOML
    std::string job_name;
    std::string log_level;
    int64_t num_workers = 1;  ///< that host ranks
  };
  /// Listens; nothing else is there yet. Errors: kInvalidArgument: a wrong option, a port in use.
  static Result<std::unique_ptr<Cluster>> create(Setup setup);
  /// Ends everybody, if end() did not.
  ~Cluster();
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  /// Writes the token into the run directory, prints how others join, starts this host's node and
  /// those of the hosts file, and waits until there are as many workers as needed. Errors:
  /// kTimeout, scope kDevice, saying what is there and what is missing; kCancelled if `stop` is
  /// set; the end of a node.
  Status gather(const RunDirectory& run, const std::atomic<bool>& stop);

  struct Work {
    const graph::Plan* plan = nullptr;
    const graph::Plan* validation_plan = nullptr;
    std::string run_directory;
    int64_t first_step = 1;
    std::string checkpoint;  ///< step directory; empty: initial weights
    actors::TrainingSpec spec;
    actors::TrainingObserver* observer = nullptr;
  };
  /// Loads the plan everywhere and runs it to its end. Errors: of the worker or node that failed
  /// first, which the message names.
  Result<actors::TrainingSummary> run(const Work& work, const std::atomic<bool>& stop);

  /// Tells everybody to end and waits for this host's processes: two seconds at most, then they are
  /// killed. `why` is ok for an orderly end.
  void end(const Status& why);

 private:
  struct Worker {
    actors::wire::PeerId peer = actors::wire::kNobody;
    actors::Peer who;
    bool loaded = false;
    std::string address;
    std::vector<int32_t> ranks;
  };
  struct Node {
    actors::Peer who;
    int32_t first_index = 0;
    int32_t num_started = 0;
  };

  explicit Cluster(Setup setup) : setup_(std::move(setup)) {}
  Status listen();
  Status start_local_nodes(const RunDirectory& run);
  Status start_node(const std::vector<std::string>& before, int64_t workers, int32_t tag);
  void print_join_line() const;
  void start_workers();
  /// Handles one event, or none within the time; a failure that ends the run comes back.
  Status step(int64_t timeout_ms);
  Status on_event(actors::SessionEvent& event);
  Status on_left(const actors::Peer& peer, const Status& why);
  Status check_children();
  [[nodiscard]] std::string missing() const;
  [[nodiscard]] bool complete() const;
  Status load(const Work& work, const std::atomic<bool>& stop);
  actors::wire::Routes routes() const;
  /// After a failure: what is known about its cause by now.
  Status explain(const Status& failure);

  Setup setup_;
  uint64_t job_hash_ = 0;
  NodeRange nodes_wanted_;
  std::vector<HostLine> hosts_;
  int64_t workers_per_node_ = 1;
  std::string token_;
  std::vector<std::string> addresses_;
  std::string secret_;
  actors::TlsIdentity member_;
  std::unique_ptr<actors::RemoteSession> session_;
  actors::NodeChildren children_;
  std::map<actors::wire::PeerId, Node> nodes_;
  std::map<int32_t, Worker> workers_;  // by index
  int32_t next_index_ = 0;
  size_t num_loaded_ = 0;
  bool running_ = false;
  bool ended_ = false;
  std::string lost_;  // who was lost, and how
};

}  // namespace sgactor::apps
