#include "apps/sgactor/cluster.h"

#include "actors/runtime/gateway.h"
#include "actors/runtime/journal.h"
#include "actors/runtime/services.h"
#include "actors/runtime/tls_identity.h"
#include "actors/runtime/training_system.h"
#include "apps/sgactor/cluster_ranks.h"
#include "apps/sgactor/stop_signal.h"
#include "graph/base/hash.h"
#include "graph/base/log.h"
#include "graph/plan/serial.h"

#include <caf/send.hpp>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <future>

namespace sgactor::apps {
namespace {

namespace wire = actors::wire;
using Kind = actors::SessionEvent::Kind;

constexpr int64_t kStepMs = 50;
constexpr int64_t kLoadMs = 120'000;
constexpr int64_t kFlushMs = 500;
constexpr int64_t kGraceMs = 1300;
constexpr int64_t kExplainMs = 200;

int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

Status no_device(const std::string& message) {
  return make_status(Code::kUnsupported, message, Scope::kDevice);
}

Status interrupted() { return make_status(Code::kCancelled, "interrupted before the first step"); }

}  // namespace

Result<std::unique_ptr<Cluster>> Cluster::create(Setup setup) {
  std::unique_ptr<Cluster> out(new Cluster(std::move(setup)));
  SGA_TRY(out->listen());
  return out;
}

Cluster::~Cluster() { end(make_status(Code::kCancelled, "the coordinator has given up")); }

Status Cluster::listen() {
  const ClusterOptions& o = setup_.options;
  if (!o.nodes.empty()) {
    SGA_ASSIGN(nodes_wanted_, parse_nodes(o.nodes));
  } else if (setup_.launcher.size > 1) {
    nodes_wanted_ = {setup_.launcher.size, setup_.launcher.size};
  }
  if (!o.hosts.empty()) {
    SGA_ASSIGN(hosts_, read_hosts(o.hosts));
    nodes_wanted_.min = static_cast<int32_t>(hosts_.size());
    nodes_wanted_.max = std::max(nodes_wanted_.max, nodes_wanted_.min);
  }
  const int64_t total = setup_.num_workers + o.spares;
  workers_per_node_ = (total + nodes_wanted_.min - 1) / nodes_wanted_.min;
  job_hash_ = hash64(setup_.job);
  std::string bind = o.bind;
  if (bind.empty()) bind = setup_.launcher.master_address;
  if (bind.empty()) bind = "127.0.0.1";
  const int64_t port = o.port != 0 ? o.port : setup_.launcher.master_port;
  SGA_ASSIGN(const auto authority, actors::TlsAuthority::create());
  SGA_ASSIGN(const actors::TlsIdentity server, authority->issue_server());
  actors::GatewaySelf self;
  self.is_coordinator = true;
  self.build = build_id(program_file());
  self.job_hash = job_hash_;
  SGA_ASSIGN(session_, actors::RemoteSession::create(server, self, {}, 2));
  const auto bound = session_->listen(bind, static_cast<uint16_t>(port));
  if (!bound.ok()) return bound.status().with_context(o.port != 0 ? "--port" : "--bind");
  const bool everywhere = bind == "0.0.0.0" || bind == "::";
  const std::string host = everywhere ? host_name() : bind;
  addresses_ = {host.find(':') == std::string::npos ? fmt::format("{}:{}", host, *bound)
                                                    : fmt::format("[{}]:{}", host, *bound)};
  SGA_ASSIGN(const actors::TlsIdentity member, authority->issue_member());
  SGA_ASSIGN(secret_, actors::random_bytes(32));
  member_ = member;
  return {};
}

Status Cluster::start_node(const std::vector<std::string>& before, int64_t workers, int32_t tag) {
  std::vector<std::string> words = before;
  for (const std::string& word :
       {std::string("node"), "--token=" + token_, "--join=" + addresses_.front(),
        "--devices=" + setup_.devices, fmt::format("--workers={}", workers),
        "--log-level=" + setup_.log_level}) {
    words.push_back(word);
  }
  return children_.start(words, tag).status();
}

Status Cluster::start_local_nodes(const RunDirectory& run) {
  token_ = std::filesystem::absolute(run.path).string() + "/control/token";
  SGA_TRY(actors::write_token(token_, {addresses_, member_}));
  const std::string program = program_file();
  if (setup_.options.hosts.empty()) return start_node({program}, workers_per_node_, 0);
  for (size_t i = 0; i < hosts_.size(); ++i) {
    // The run directory and the program lie at the same place on every host.
    SGA_TRY(start_node({"/usr/bin/ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-tt",
                        hosts_[i].host, program},
                       hosts_[i].workers, static_cast<int32_t>(i)));
  }
  return {};
}

void Cluster::print_join_line() const {
  std::printf("join      sgactor node --join %s --token %s\n", addresses_.front().c_str(),
              token_.c_str());
  std::fflush(stdout);
}

Status Cluster::gather(const RunDirectory& run, const std::atomic<bool>& stop) {
  SGA_TRY(start_local_nodes(run));
  print_join_line();
  const int64_t deadline = now_ms() + setup_.options.join_timeout_s * 1000;
  while (!complete()) {
    if (stop.load()) return interrupted();
    if (now_ms() >= deadline) return no_device(missing());
    SGA_TRY(step(kStepMs));
  }
  return {};
}

bool Cluster::complete() const {
  return static_cast<int64_t>(nodes_.size()) >= nodes_wanted_.min &&
         static_cast<int64_t>(workers_.size()) >= setup_.num_workers + setup_.options.spares;
}

std::string Cluster::missing() const {
  std::string nodes;
  for (const auto& [id, node] : nodes_) nodes += (nodes.empty() ? "" : ", ") + node.who.name();
  return fmt::format("after {} s {} of {} nodes and {} of {} workers have joined ({})",
                     setup_.options.join_timeout_s, nodes_.size(), nodes_wanted_.min,
                     workers_.size(), setup_.num_workers + setup_.options.spares,
                     nodes.empty() ? "none" : nodes);
}

/// Nodes get workers in the order in which they joined, once enough of them are there; who comes
/// later is a spare.
void Cluster::start_workers() {
  if (static_cast<int64_t>(nodes_.size()) < nodes_wanted_.min) return;
  const int64_t total = setup_.num_workers + setup_.options.spares;
  for (auto& [id, node] : nodes_) {
    if (node.num_started > 0 || node.who.hello.spare) continue;
    const int64_t room = static_cast<int64_t>(node.who.hello.devices.size());
    const int64_t count = std::min(room, total - next_index_);
    if (count <= 0) continue;
    wire::StartWorkers order;
    order.devices.assign(node.who.hello.devices.begin(),
                         node.who.hello.devices.begin() + static_cast<int64_t>(count));
    order.first_index = next_index_;
    node.first_index = next_index_;
    node.num_started = static_cast<int32_t>(count);
    next_index_ += static_cast<int32_t>(count);
    session_->send(id, std::move(order));
  }
}

Status Cluster::on_left(const actors::Peer& peer, const Status& why) {
  if (peer.hello.role == wire::Role::kNode) {
    const auto it = nodes_.find(peer.id);
    if (it == nodes_.end()) return {};
    const bool idle = it->second.num_started == 0;
    nodes_.erase(it);
    if (idle) {
      log::info("{}", why.message());
      return {};
    }
    lost_ = why.message();
    return why;
  }
  const auto it = workers_.find(peer.hello.index);
  if (it == workers_.end() || it->second.peer != peer.id) return {};
  const bool idle = running_ && it->second.ranks.empty();
  workers_.erase(it);
  if (idle) {
    log::info("{}", why.message());
    return {};
  }
  if (lost_.empty()) lost_ = why.message();
  // While it runs, its proxy tells the coordinator, whose outcome counts.
  return running_ ? Status() : why;
}

Status Cluster::on_event(actors::SessionEvent& event) {
  if (event.kind == Kind::kLeft) return on_left(event.peer, event.status);
  if (event.kind == Kind::kJoined) {
    const wire::Hello& hello = event.peer.hello;
    if (hello.role == wire::Role::kWorker) {
      workers_[hello.index] = {event.peer.id, event.peer, false, {}, {}};
      return {};
    }
    const bool late =
        running_ || complete() || static_cast<int64_t>(nodes_.size()) >= nodes_wanted_.max;
    nodes_[event.peer.id] = {event.peer, 0, 0};
    if (late) log::info("{} has joined as a spare", event.peer.name());
    if (!late) start_workers();
    return {};
  }
  if (event.kind == Kind::kAnswer) {
    SGA_TRY(event.status);
    const auto* loaded = std::get_if<wire::PlanLoaded>(&event.envelope.body);
    const auto it = loaded == nullptr ? workers_.end() : workers_.find(loaded->worker);
    if (it == workers_.end()) return corruption("a worker answered with another message");
    if (!it->second.loaded) ++num_loaded_;
    it->second.loaded = true;
    it->second.address = loaded->address;
    return {};
  }
  if (event.kind != Kind::kMessage) return {};
  if (const auto* exited = std::get_if<wire::WorkerExited>(&event.envelope.body)) {
    lost_ =
        fmt::format("worker {} (pid {}) has ended: {}", exited->index, exited->pid, exited->how);
    return running_ ? Status() : make_status(Code::kDisconnected, lost_, Scope::kRank);
  }
  if (const auto* asked = std::get_if<wire::StopJob>(&event.envelope.body)) {
    log::info("stops after this step: {}", asked->reason);
    request_stop();
  }
  return {};
}

Status Cluster::check_children() {
  for (const actors::NodeChildren::Exit& exit : children_.take_exits()) {
    lost_ = fmt::format("the node of this host (pid {}) has ended: {}", exit.pid, exit.how);
    return make_status(Code::kDisconnected, lost_, Scope::kRank);
  }
  return {};
}

Status Cluster::step(int64_t timeout_ms) {
  if (auto event = session_->next(timeout_ms)) SGA_TRY(on_event(*event));
  return check_children();
}

wire::Routes Cluster::routes() const {
  wire::Routes out;
  for (const auto& [index, worker] : workers_) {
    if (worker.ranks.empty()) continue;  // a spare: a later generation may route to it
    out.routes.push_back({worker.peer, worker.address, worker.ranks});
  }
  return out;
}

Status Cluster::load(const Work& work, const std::atomic<bool>& stop) {
  const auto dealt = deal_ranks(*work.plan, static_cast<int32_t>(setup_.num_workers));
  wire::LoadPlan message;
  message.job_hash = job_hash_;
  message.job = setup_.job;
  message.job_name = setup_.job_name;
  message.plan = graph::serialize_plan(*work.plan);
  if (work.validation_plan != nullptr) {
    message.validation_plan = graph::serialize_plan(*work.validation_plan);
  }
  message.run_directory = work.run_directory;
  message.first_step = work.first_step;
  message.checkpoint = work.checkpoint;
  message.secret = secret_;
  size_t next = 0;
  for (auto& [index, worker] : workers_) {
    if (next < dealt.size()) worker.ranks = dealt[next++];
    message.ranks = worker.ranks;
    message.worker = index;
    session_->ask(worker.peer, message, kLoadMs);
  }
  while (num_loaded_ < workers_.size()) {
    if (stop.load()) return interrupted();
    SGA_TRY(step(kStepMs));
  }
  return {};
}

Status Cluster::explain(const Status& failure) {
  // Who was lost is often known a moment after what broke because of it.
  const int64_t deadline = now_ms() + kExplainMs;
  while (now_ms() < deadline) {
    if (const Status s = step(10); !s.ok()) break;
    if (lost_.find("has ended") != std::string::npos) break;
  }
  if (lost_.empty() || failure.message().find(lost_) != std::string::npos) return failure;
  return Status(failure.code(), failure.scope(), lost_ + "; " + failure.message(),
                failure.origin());
}

Result<actors::TrainingSummary> Cluster::run(const Work& work, const std::atomic<bool>& stop) {
  SGA_TRY(load(work, stop));
  SGA_ASSIGN(std::shared_ptr<actors::Journal> journal,
             actors::open_journal(work.spec.journal_file));
  const auto storage = actors::create_thread_service("sga-storage");
  const auto journal_service = actors::create_thread_service("sga-journal");
  const actors::Services services{nullptr, nullptr, storage.get(), journal_service.get()};
  auto shared = std::make_shared<actors::RunShared>();
  actors::TrainingInputs inputs;
  inputs.plan = work.plan;
  inputs.validation_plan = work.validation_plan;
  inputs.observer = work.observer;
  inputs.stop = &stop;
  SGA_ASSIGN(const auto host,
             actors::create_coordinator_host(work.spec, inputs, services, journal, shared));
  const wire::Routes routes = this->routes();
  for (const auto& [index, worker] : workers_) {
    if (worker.ranks.empty()) continue;
    host->workers.push_back(
        [gateway = session_->gateway(), worker = worker, routes](
            caf::local_actor* parent, const actors::CoordinatorActor& coordinator) {
          auto proxy =
              actors::spawn_worker_proxy(parent, gateway, worker.peer, worker.ranks, coordinator);
          // Behind the proxy's own message to the gateway, so that no answer comes before it.
          caf::anon_send(gateway, actors::SendToPeer{worker.peer, routes, 0});
          return proxy;
        });
  }
  auto promise = std::make_shared<std::promise<actors::RunOutcome>>();
  std::future<actors::RunOutcome> future = promise->get_future();
  host->on_finished = [promise, session = session_.get()](const actors::RunOutcome& outcome) {
    promise->set_value(outcome);
    session->post();
  };
  running_ = true;
  const actors::CoordinatorActor coordinator = actors::spawn_coordinator(session_->system(), host);
  Status broken;
  while (future.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
    if (const Status s = step(kStepMs); broken.ok() && !s.ok()) {
      broken = s;
      // Ends the run with this Status unless it has ended by itself.
      caf::anon_send(coordinator, actors::FaultReport{0, s});
    }
  }
  const actors::RunOutcome outcome = future.get();
  host->workers.clear();
  if (!outcome.status.ok()) return explain(outcome.status);
  actors::TrainingSummary summary;
  summary.last_step = outcome.last_step;
  summary.interrupted = outcome.interrupted;
  for (const actors::PoolStats& pool : outcome.pools) {
    summary.arena_high_water_bytes =
        std::max(summary.arena_high_water_bytes, pool.high_water_bytes);
  }
  summary.seconds = outcome.step_seconds;
  summary.kernel_seconds = outcome.kernel_seconds;
  summary.num_messages = shared->num_messages();
  return summary;
}

void Cluster::end(const Status& why) {
  if (ended_) return;
  ended_ = true;
  if (session_ == nullptr) return;
  for (const auto& [index, worker] : workers_) {
    session_->send(worker.peer, wire::Shutdown{why});
  }
  for (const auto& [id, node] : nodes_) session_->send(id, wire::Shutdown{why});
  session_->flush(kFlushMs);
  children_.end(kGraceMs);
  if (!token_.empty()) {
    ::unlink(token_.c_str());
    ::rmdir(token_.substr(0, token_.rfind('/')).c_str());
  }
  const actors::HubStats stats = session_->stats();
  if (stats.strangers > 0) {
    log::info("control port: {} connections were not taken", stats.strangers);
  }
}

}  // namespace sgactor::apps
