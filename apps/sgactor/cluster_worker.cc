// sgactor worker: the process of one device, started by a node. Not for people.
#include "apps/sgactor/cluster_worker.h"

#include "actors/runtime/remote_session.h"
#include "actors/runtime/services.h"
#include "actors/runtime/snapshot.h"
#include "actors/runtime/standing_proxy.h"
#include "actors/runtime/worker_assembly.h"
#include "apps/sgactor/clock.h"
#include "apps/sgactor/cluster_ranks.h"
#include "apps/sgactor/cluster_standing.h"
#include "apps/sgactor/command_line.h"
#include "apps/sgactor/data_plane.h"
#include "apps/sgactor/device.h"
#include "apps/sgactor/fault_injection.h"
#include "apps/sgactor/hang_views.h"
#include "apps/sgactor/model_source.h"
#include "apps/sgactor/profile_request.h"
#include "apps/sgactor/replica_copy.h"
#include "apps/sgactor/start.h"
#include "apps/sgactor/strategy_choice.h"
#include "apps/sgactor/training_spec.h"
#include "graph/base/hash.h"
#include "graph/base/log.h"
#include "graph/plan/serial.h"
#include "transport/storage/checkpoint.h"

#include <CLI/CLI.hpp>
#include <caf/send.hpp>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <utility>

namespace sgactor::apps {
namespace {

namespace wire = actors::wire;
using Kind = actors::SessionEvent::Kind;

constexpr int64_t kJoinMs = 20'000;
constexpr int64_t kWaitMs = 1000;
constexpr int64_t kRecordingWaitMs = 50;  // between looks whether the steps of a profile are over
constexpr int64_t kAbandonMs = 5000;
constexpr int64_t kFreedMs = 5000;  // a driver takes this long to free what a killed process had
constexpr std::chrono::milliseconds kHeartbeat{100};

struct WorkerOptions {
  std::string join;
  std::string token;
  std::string devices = "cpu";
  std::string bind;
  std::string log_level = "info";
  int64_t node = 0;
  int64_t index = 0;
};

/// Threads on which a worker's actors may wait for files and devices.
struct WorkerServices {
  explicit WorkerServices(bool host_visible)
      : data(actors::create_thread_service("sga-data")),
        device(host_visible ? actors::create_inline_service()
                            : actors::create_thread_service("sga-device")),
        storage(actors::create_thread_service("sga-storage")) {}
  std::unique_ptr<actors::BlockingService> data, device, storage;
  [[nodiscard]] actors::Services view() const {
    return {data.get(), device.get(), storage.get(), nullptr};
  }
  void finish() {
    for (auto* service : {&data, &device, &storage}) service->reset();
  }
};

/// Tells the coordinator that this process runs, whatever its other threads are at, and how many
/// messages its actors have handled.
class Pulse {
 public:
  explicit Pulse(actors::RemoteSession& session) : thread_([this, &session] { beat(session); }) {}
  /// Whose messages count from now on.
  void follow(std::shared_ptr<actors::RunShared> shared) {
    const std::lock_guard lock(mutex_);
    shared_ = std::move(shared);
  }
  ~Pulse() {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Pulse(const Pulse&) = delete;
  Pulse& operator=(const Pulse&) = delete;

 private:
  void beat(actors::RemoteSession& session) {
    std::unique_lock lock(mutex_);
    for (int64_t n = 1; !over_; ++n) {
      const int64_t progress = shared_ ? shared_->num_messages() : 0;
      session.send(wire::kCoordinatorPeer, wire::Heartbeat{n, progress});
      changed_.wait_for(lock, kHeartbeat, [this] { return over_; });
    }
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  std::shared_ptr<actors::RunShared> shared_;
  std::thread thread_;
};

/// Of what all ranks of a plan share.
uint64_t key_of(const wire::LoadPlan& message) {
  return mix64(mix64(message.job_hash, hash64(message.plan)), hash64(message.validation_plan));
}

/// Whoever waits for the members of older routes need not wait any longer.
bool supersedes_routes(const actors::SessionEvent& event) {
  if (event.kind == Kind::kLeft) return true;
  const auto* opaque = std::get_if<wire::Opaque>(&event.envelope.body);
  return event.kind == Kind::kMessage &&
         ((opaque != nullptr && opaque->kind == kCopyState) ||
          std::holds_alternative<wire::Routes>(event.envelope.body) ||
          std::holds_alternative<wire::LoadPlan>(event.envelope.body) ||
          std::holds_alternative<wire::Shutdown>(event.envelope.body));
}

Result<std::unique_ptr<kernels::Backend>> open_device(const WorkerOptions& options,
                                                      const CommandLine& line) {
  SGA_ASSIGN(const DeviceSpec device, parse_devices(options.devices));
  return create_device(*line.backends, device);
}

/// What a worker holds once its plan is loaded. Destroyed in reverse order.
class Work {
 public:
  static Result<std::unique_ptr<Work>> create(const wire::LoadPlan& message,
                                              const WorkerOptions& options, const CommandLine& line,
                                              wire::PeerId self,
                                              std::shared_ptr<actors::ExecutionLedger> executions,
                                              std::unique_ptr<LoadedJob> ready,
                                              std::unique_ptr<kernels::Backend> opened) {
    auto out = std::make_unique<Work>();
    const int64_t begin_ms = now_ms();
    SGA_ASSIGN(const DeviceSpec device, parse_devices(options.devices));
    out->backend_ = std::move(opened);
    if (!out->backend_) {
      SGA_ASSIGN(out->backend_, create_device(*line.backends, device));
    }
    const int32_t threads = std::max(2, std::min(out->backend_->info().num_threads, 8));
    SGA_ASSIGN(out->job_, load_plan(message, threads, *line.strategies, std::move(ready)));
    HeldBeside beside;
    beside.validation = out->job_->validation ? &*out->job_->validation : nullptr;
    beside.snapshots = !out->job_->spec.checkpoint_root.empty();
    beside.verifies = out->job_->spec.verify_interval > 0;
    SGA_TRY(await_memory(*line.backends, device, out->job_->plan, message.ranks, beside, kFreedMs,
                         out->backend_));
    const int64_t loaded_ms = now_ms();
    out->ranks_ = message.ranks;
    out->run_directory_ = message.run_directory;
    out->first_step_ = message.first_step;
    out->life_ = message.worker;
    const bool alone = message.ranks.size() == out->job_->plan.ranks.size();
    DataPlaneOptions plane;
    plane.bind = options.bind;
    plane.alone = alone;
    plane.check_frames = frame_check_of(out->job_->job.resilience.check_frames);
    if (takes_injections()) {
      plane.faults = out->link_faults_ = std::make_shared<transport::LinkFaults>();
    }
    SGA_ASSIGN(out->plane_, DataPlane::create(self, message.secret, plane));
    out->services_ = std::make_unique<WorkerServices>(out->backend_->host_visible());
    actors::TrainingInputs inputs;
    inputs.plan = &out->job_->plan;
    inputs.validation_plan = out->job_->validation ? &*out->job_->validation : nullptr;
    inputs.backend = out->backend_.get();
    inputs.collectives = &out->plane_->collectives();
    inputs.sampler = out->job_->data.sampler.get();
    inputs.validation_sampler = out->job_->data.validation_sampler.get();
    inputs.initial_state = out->job_->state.get();
    SGA_ASSIGN(out->assembly_, actors::WorkerAssembly::create(
                                   out->job_->spec, inputs, message.ranks, out->services_->view()));
    out->assembly_->shared().executions = std::move(executions);
    if (takes_injections()) out->assembly_->shared().files = out->files_;
    log::debug("worker {}: plan and data in {} ms, memory and state in {} ms", options.index,
               loaded_ms - begin_ms, now_ms() - loaded_ms);
    return out;
  }

  wire::PlanLoaded loaded(int32_t worker) const {
    return {worker, plane_->address(), backend_->info().fingerprint};
  }
  Status run(const wire::Routes& routes, actors::RemoteSession& session) {
    if (ranks_.empty()) return {};
    // A life of a rank is named by the first generation that it hears of, whether or not it comes
    // to be ready in it: the coordinator has counted it in since then.
    if (!std::exchange(named_, true)) {
      for (actors::RankHost& rank : assembly_->host()->ranks) {
        rank.incarnation = routes.generation;
      }
    }
    // A peer that has died is waited for no longer than until somebody says who follows it.
    SGA_TRY(plane_->connect(routes, [&session] { return session.holds(supersedes_routes); }));
    const std::shared_ptr<actors::WorkerHost>& host = assembly_->host();
    host->generation = routes.generation;
    voice_->speak();
    if (proxy_) {
      const std::lock_guard lock(actor_->mutex);
      if (actor_->worker) caf::anon_send(actor_->worker, actors::Rejoined{routes.generation});
      return {};
    }
    proxy_ = actors::spawn_standing_proxy(
        session.system(), session.gateway(),
        [host, actor = actor_](caf::local_actor* parent,
                               const actors::CoordinatorActor& coordinator) {
          // Held meanwhile, so that whoever rejoins is heard or read in the host.
          const std::lock_guard lock(actor->mutex);
          actor->worker = actors::spawn_worker(parent, host, coordinator);
          return actor->worker;
        },
        ranks_.front(), voice_);
    return {};
  }
  /// The coordinator is gone: nothing is said until another one has named its routes.
  void hush() {
    voice_->hush();
    // Another one names a life that has not begun anew.
    if (!is_running()) named_ = false;
  }
  /// Another coordinator has taken this process.
  void bind_again(actors::RemoteSession& session) {
    const std::lock_guard lock(actor_->mutex);
    if (!actor_->worker) return;  // it binds itself
    caf::anon_send(session.gateway(), actors::BindCoordinator{actor_->worker, proxy_});
  }
  void describe(Standing& out) const {
    out.life = life_;
    out.runs = is_running();
    out.loaded_step = first_step_ - 1;
    out.begun = assembly_->host()->begun;
    out.address = plane_->address();
    out.failed = !voice_->failure().ok();
    for (const actors::RankHost& rank : assembly_->host()->ranks) {
      out.ranks.push_back(rank.rank);
      out.incarnations.push_back(rank.incarnation);
    }
  }
  /// Survivors have told what they wait for: whether that is a fault others decide.
  [[nodiscard]] bool is_running() const { return static_cast<bool>(proxy_); }
  [[nodiscard]] const std::shared_ptr<actors::RunShared>& shared() const {
    return assembly_->host()->shared;
  }
  /// Records the next steps for a profile.
  void record_steps(int64_t steps) {
    if (ranks_.empty()) return;
    assembly_->shared().tracer.record_steps(steps);
    records_ = true;
  }
  [[nodiscard]] bool records() const { return records_; }
  /// Tells the coordinator once the steps are recorded.
  void finish_recording(actors::RemoteSession& session) {
    if (!records_) return;
    const std::string file =
        fmt::format("{}/trace/profile_rank{}.json.gz", run_directory_, ranks_.front());
    const auto answer = apps::finish_recording(assembly_->shared().tracer, ranks_.front(), false,
                                               file, backend_->info());
    if (!answer) return;
    records_ = false;
    session.send(wire::kCoordinatorPeer, wire::Opaque{kProfiled, encode_answer(*answer)});
  }
  [[nodiscard]] std::string views() const { return encode_views(rank_views(*assembly_)); }
  Status inject(const InjectedFault& fault) {
    if (fault.kind == "bit_flip") {
      // Of one rank: what several ranks had wrong no comparison would tell apart.
      for (auto& lane : assembly_->ranks().front().training.context->lanes->lanes) {
        if (lane.channel) lane.channel->flip_bit();
      }
      return {};
    }
    return apps::inject(fault, assembly_->shared(), *files_, *link_faults_);
  }
  /// Writes the state of a rank for those that have lost theirs, once it is there, and tells the
  /// coordinator.
  void copy_state(const ReplicaOrder& order, actors::RemoteSession& session) {
    ReplicaAnswer answer;
    answer.copy = order.copy;
    answer.rank = order.rank;
    const auto& setups = assembly_->ranks();
    const auto setup = std::find_if(setups.begin(), setups.end(),
                                    [&](const auto& r) { return r.rank == order.rank; });
    if (setup == setups.end()) {
      answer.failure = "is not hosted here";
      return session.send(wire::kCoordinatorPeer, to_wire(answer));
    }
    const actors::RankHost& host =
        assembly_->host()->ranks[static_cast<size_t>(setup - setups.begin())];
    const bool there = host.state->step() == order.step;
    if (const Status failed = voice_->failure(); !there && !failed.ok()) {
      answer.failure = failed.message();
      return session.send(wire::kCoordinatorPeer, to_wire(answer));
    }
    host.state->when(order.step, [order, answer, &session, context = setup->training.context,
                                  data = services_->data.get()](const actors::StepDone& done) {
      // That thread's own work is for steps, and none is begun meanwhile.
      data->submit([order, answer, &session, context,
                    done] { return write_state(order, answer, session, *context, done); },
                   [](const Status&) {});
    });
    if (there) return;
    // Voted for, and the commit was not heard; if it was, this changes nothing.
    const std::lock_guard lock(actor_->mutex);
    if (actor_->worker) {
      caf::anon_send(actor_->worker, actors::Commit{order.step, assembly_->host()->generation});
    }
  }
  /// Ends an attempt, wherever it is. False if its actors do not end: the process is lost then.
  bool abandon(actors::RemoteSession& session) {
    const Status why = make_status(Code::kCancelled, "the attempt is over");
    // How its end is felt is nobody's business.
    hush();
    end_proxy();
    // Whoever waits for a peer would wait for ever.
    plane_->abort(why);
    assembly_->abort(why);
    if (!session.await_others(kAbandonMs)) return false;
    services_->finish();
    assembly_->close();
    return true;
  }
  /// Ends the actors, then what they use. After an orderly end only.
  Status end(actors::RemoteSession& session) {
    end_proxy();
    session.end_actors();
    plane_->abort(make_status(Code::kCancelled, "the run is over"));
    services_->finish();
    assembly_->close();
    const actors::TrainingSpec& spec = job_->spec;
    if (spec.trace_file.empty() || ranks_.empty()) return {};
    return assembly_->shared().tracer.write(spec.trace_file, ranks_.front());
  }

 private:
  static Status write_state(const ReplicaOrder& order, ReplicaAnswer answer,
                            actors::RemoteSession& session, const actors::ProgramContext& context,
                            const actors::StepDone& done) {
    const auto part = actors::write_replica(context, order.root, order.step,
                                            fmt::format("replica-{}", order.rank));
    if (part.ok()) answer.part = part->part;
    if (!part.ok()) answer.failure = part.status().message();
    if (done.tokens > 0) answer.done = done;
    session.send(wire::kCoordinatorPeer, to_wire(answer));
    return part.status();
  }
  /// The worker's actor, which the proxy's thread spawns.
  struct Actor {
    std::mutex mutex;
    actors::WorkerActor worker;
  };
  void end_proxy() {
    if (proxy_) caf::anon_send_exit(proxy_, caf::exit_reason::user_shutdown);
    proxy_ = nullptr;
    const std::lock_guard lock(actor_->mutex);
    actor_->worker = nullptr;
  }

  std::shared_ptr<Actor> actor_ = std::make_shared<Actor>();
  std::unique_ptr<kernels::Backend> backend_;
  std::unique_ptr<LoadedJob> job_;
  std::unique_ptr<DataPlane> plane_;
  std::unique_ptr<WorkerServices> services_;
  std::unique_ptr<actors::WorkerAssembly> assembly_;
  std::vector<int32_t> ranks_;
  bool named_ = false;  // the life of its ranks
  int64_t first_step_ = 1;
  int32_t life_ = 0;
  std::shared_ptr<actors::Voice> voice_ = std::make_shared<actors::Voice>();
  std::shared_ptr<FaultyFiles> files_ = std::make_shared<FaultyFiles>();
  std::shared_ptr<transport::LinkFaults> link_faults_;  // null: no fault is injected
  actors::CoordinatorActor proxy_;
  std::string run_directory_;
  bool records_ = false;  // a profile that the coordinator waits for
};

/// The process ends at once: whatever it was doing is worth nothing any more, and waiting for a
/// device or a peer could take for ever.
[[noreturn]] void quit_now(const WorkerOptions& options, const Status& why) {
  log::info("worker {}: ends: {}", options.index, why.message());
  std::_Exit(kExitFailed);
}

/// The rank in whose name a process reports what befalls it as a whole.
int32_t first_rank(const wire::Routes& routes, wire::PeerId self) {
  for (const wire::Route& route : routes.routes) {
    if (route.peer == self && !route.ranks.empty()) return route.ranks.front();
  }
  return 0;
}

/// What a coordinator that takes a run over must know of each worker: also of one that was started
/// for the coordinator before and finds this one.
void tell_standing(actors::RemoteSession& session, const WorkerOptions& options, const Work* work) {
  Standing standing;
  standing.worker = static_cast<int32_t>(options.index);
  standing.node_pid = ::getppid();
  standing.devices = {options.devices};
  if (work != nullptr) work->describe(standing);
  session.send(wire::kCoordinatorPeer, to_wire(standing));
}

/// Waits for whoever takes the run over, with all that `work` holds. False: nobody came.
bool stand_by(actors::RemoteSession& session, WorkerOptions& options, const Terms& terms,
              Work* work) {
  if (terms.orphan_ms <= 0) return false;
  if (work != nullptr) work->hush();
  if (!join_again(session, options.join, options.token, terms.orphan_ms, {})) return false;
  if (work != nullptr) work->bind_again(session);
  tell_standing(session, options, work);
  return true;
}

/// Why a worker does not load what it was dealt. Where its device is too small, another worker on
/// the same one would find it so: that ends the run.
Status refusal(const Status& why) {
  if (why.code() != Code::kOutOfMemory) return why;
  return Status(why.code(), Scope::kJob, why.message(), why.origin());
}

/// From the welcome to the shutdown.
int serve(actors::RemoteSession& session, Pulse& pulse, WorkerOptions& options,
          const CommandLine& line) {
  std::unique_ptr<Work> work;
  Terms terms;
  wire::PeerId self = data_peer(static_cast<int32_t>(options.index));
  std::unique_ptr<LoadedJob> ready;
  std::unique_ptr<kernels::Backend> opened;  // for the first plan
  const auto executions = std::make_shared<actors::ExecutionLedger>();
  tell_standing(session, options, nullptr);
  while (true) {
    if (work) work->finish_recording(session);
    const std::optional<actors::SessionEvent> event =
        session.next(work && work->records() ? kRecordingWaitMs : kWaitMs);
    if (!event) continue;
    if (event->kind == Kind::kLeft && !stand_by(session, options, terms, work.get())) {
      quit_now(options, event->status);
    }
    if (event->kind != Kind::kMessage) continue;
    const wire::Body& body = event->envelope.body;
    const auto* load = std::get_if<wire::LoadPlan>(&body);
    if (load != nullptr && load->ranks.empty()) {
      // Of a spare: what it can do before anybody is lost. If it fails that shows when it counts.
      auto prepared = prepare_plan(*load, *line.strategies);
      if (prepared.ok()) ready = std::move(*prepared);
    } else if (load != nullptr) {
      if (work && !work->abandon(session)) {
        quit_now(options, internal_error("the actors of the attempt before did not end"));
      }
      work.reset();
      self = data_peer(load->worker);
      auto made =
          Work::create(*load, options, line, self, executions, std::move(ready), std::move(opened));
      if (made.ok()) {
        work = std::move(*made);
        pulse.follow(work->shared());
        session.send(event->peer.id, work->loaded(load->worker), event->envelope.request);
      } else {
        session.send(event->peer.id, wire::Failed{refusal(made.status())}, event->envelope.request);
      }
    } else if (const auto* routes = std::get_if<wire::Routes>(&body); routes && work) {
      const bool rejoins = work->is_running();
      const Status s = work->run(*routes, session);
      if (!s.ok() && s.code() != Code::kCancelled) {
        // Nothing is lost here: another peer may have gone meanwhile, and other routes follow then.
        const bool waits = rejoins || s.code() == Code::kDisconnected || s.code() == Code::kTimeout;
        session.send(event->peer.id, actors::FaultReport{first_rank(*routes, self), s, waits});
      }
    } else if (const auto* told = std::get_if<wire::Opaque>(&body); told && told->kind == kTerms) {
      if (const auto given = parse_terms(told->payload); given.ok()) terms = *given;
    } else if (const auto* times = std::get_if<wire::Opaque>(&body);
               times && times->kind == kTakeTimes && work) {
      int64_t steps = 0;
      const char* end = times->payload.data() + times->payload.size();
      if (std::from_chars(times->payload.data(), end, steps).ptr == end && steps > 0)
        work->record_steps(std::min(steps, kMostProfileSteps));
    } else if (const auto* doubt = std::get_if<wire::Opaque>(&body);
               doubt && doubt->kind == kAskArithmetic) {
      if (!work && !opened) {
        // One that does not open says why when the plan comes.
        auto device = open_device(options, line);
        if (device.ok()) opened = std::move(*device);
      }
      const std::string fingerprint = work     ? work->loaded(0).fingerprint
                                      : opened ? opened->info().fingerprint
                                               : "";
      session.send(event->peer.id, wire::Opaque{kArithmetic, fingerprint});
    } else if (const auto* asked = std::get_if<wire::Opaque>(&body);
               asked && asked->kind == kAskViews) {
      session.send(event->peer.id, wire::Opaque{kRankViews, work ? work->views() : "[]"});
    } else if (const auto* copy = std::get_if<wire::Opaque>(&body);
               copy && copy->kind == kCopyState) {
      const auto order = parse_replica_order(copy->payload);
      if (order.ok() && work) {
        work->copy_state(*order, session);
      } else if (order.ok()) {
        session.send(event->peer.id,
                     to_wire(ReplicaAnswer{order->copy, order->rank, "nothing is loaded", "", {}}));
      }
    } else if (const auto* opaque = std::get_if<wire::Opaque>(&body);
               opaque && opaque->kind == kInjectFault && work && takes_injections()) {
      const auto fault = parse_injected(opaque->payload);
      const Status done = fault.ok() ? work->inject(*fault) : fault.status();
      if (!done.ok()) log::warn("worker {}: {}", options.index, done.message());
      if (done.ok())
        log::info("worker {} (peer {}): injected {} towards peer {}", options.index, self,
                  fault->kind, fault->peer);
    } else if (const auto* shutdown = std::get_if<wire::Shutdown>(&body)) {
      if (!shutdown->why.ok()) quit_now(options, shutdown->why);
      const Status ended = work ? work->end(session) : Status();
      work.reset();
      if (!ended.ok()) log::warn("worker {}: {}", options.index, ended.message());
      return kExitDone;
    }
  }
}

Result<int> worker(const CommandLine& line, WorkerOptions options) {
  log::init({.level = log_level(options.log_level)});
  SGA_ASSIGN(const actors::JoinToken token, actors::read_token(options.token));
  actors::GatewaySelf self;
  self.build = build_id(program_file());
  self.hello.role = wire::Role::kWorker;
  self.hello.host = host_name();
  self.hello.pid = ::getpid();
  self.hello.node = static_cast<wire::PeerId>(options.node);
  self.hello.index = static_cast<int32_t>(options.index);
  SGA_ASSIGN(auto session, actors::RemoteSession::create(token.identity, self, {}, 2));
  const std::vector<std::string> addresses =
      options.join.empty() ? token.addresses : std::vector<std::string>{options.join};
  SGA_ASSIGN(const actors::Peer coordinator, session->join(addresses, kJoinMs));
  if (options.bind.empty()) options.bind = local_address_towards(coordinator.address);
  Pulse pulse(*session);
  return serve(*session, pulse, options, line);
}

}  // namespace

Result<std::unique_ptr<LoadedJob>> prepare_plan(const wire::LoadPlan& message,
                                                const actors::StrategyTable& strategies) {
  auto out = std::make_unique<LoadedJob>();
  out->key = key_of(message);
  if (hash64(message.job) != message.job_hash) {
    return corruption("the job that came is not the one that its hash names");
  }
  SGA_ASSIGN(out->job, parse_job(message.job, "the coordinator's job", {}));
  out->job.name = message.job_name;
  SGA_TRY(choose_strategy(strategies, out->job));
  SGA_ASSIGN(out->config, load_model(out->job));
  SGA_ASSIGN(out->plan, graph::deserialize_plan(message.plan));
  if (!message.validation_plan.empty()) {
    SGA_ASSIGN(out->validation, graph::deserialize_plan(message.validation_plan));
  }
  SGA_ASSIGN(out->data, open_training_data(out->job, out->config.vocab_size));
  return out;
}

Result<std::unique_ptr<LoadedJob>> load_plan(const wire::LoadPlan& message,
                                             int32_t scheduler_threads,
                                             const actors::StrategyTable& strategies,
                                             std::unique_ptr<LoadedJob> ready) {
  std::unique_ptr<LoadedJob> out = std::move(ready);
  if (!out || out->key != key_of(message)) {
    SGA_ASSIGN(out, prepare_plan(message, strategies));
  }
  if (message.checkpoint.empty()) {
    SGA_ASSIGN(Start start, fresh_start(out->job, out->config));
    out->state = std::move(start.state);
  } else {
    SGA_ASSIGN(out->state, transport::Checkpoint::open(message.checkpoint));
  }
  out->spec = training_spec(out->job, RunDirectory{message.run_directory}, message.first_step,
                            out->validation.has_value(), scheduler_threads);
  out->spec.mirror_root = message.mirror_root;
  out->spec.redo_from = message.redo_from;
  if (!out->spec.trace_file.empty() && !message.ranks.empty()) {
    out->spec.trace_file =
        fmt::format("{}/trace/rank{}_trace.json.gz", message.run_directory, message.ranks.front());
  }
  return out;
}

void add_worker(CLI::App& app, CommandLine& line) {
  CLI::App* sub = app.add_subcommand("worker", "one device of a node; started by it")->group("");
  auto options = std::make_shared<WorkerOptions>();
  sub->add_option("--join", options->join);
  sub->add_option("--token", options->token)->required();
  sub->add_option("--devices", options->devices);
  sub->add_option("--bind", options->bind);
  sub->add_option("--log-level", options->log_level);
  sub->add_option("--node", options->node)->check(CLI::Range(int64_t{0}, int64_t{1} << 31));
  sub->add_option("--index", options->index)->check(CLI::Range(0, 1 << 20));
  sub->callback(
      [&line, options] { line.action = [&line, options] { return worker(line, *options); }; });
}

}  // namespace sgactor::apps
