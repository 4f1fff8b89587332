#include "apps/sgactor/cluster.h"

#include "actors/runtime/gateway.h"
#include "actors/runtime/tls_identity.h"
#include "apps/sgactor/clock.h"
#include "apps/sgactor/cluster_course.h"
#include "apps/sgactor/cluster_ranks.h"
#include "apps/sgactor/device_deal.h"
#include "apps/sgactor/stop_signal.h"
#include "graph/base/hash.h"
#include "graph/base/log.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <sstream>

namespace sgactor::apps {
namespace {

namespace wire = actors::wire;
using Kind = actors::SessionEvent::Kind;

constexpr int64_t kStepMs = 50;
constexpr int64_t kFlushMs = 500;
constexpr int64_t kGraceMs = 1300;

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
  created_ms_ = now_ms();
  std::string bind = o.bind;
  if (bind.empty()) bind = setup_.launcher.master_address;
  if (bind.empty()) bind = "127.0.0.1";
  int64_t port = o.port != 0 ? o.port : setup_.launcher.master_port;
  SGA_TRY(make_identity());
  // Those that wait look there first; a port of ours is free again, or the token names another.
  bool same_port = false;
  if (setup_.left && port == 0) {
    for (const std::string& address : setup_.left->facts.server.addresses) {
      if (const auto at = actors::parse_host_port(address); at.ok()) port = at->port;
    }
    same_port = port != 0;
  }
  actors::GatewaySelf self;
  self.is_coordinator = true;
  self.build = build_id(program_file());
  self.job_hash = job_hash_;
  SGA_ASSIGN(session_, actors::RemoteSession::create(server_, self, {}, 2));
  auto bound = session_->listen(bind, static_cast<uint16_t>(port));
  if (!bound.ok() && same_port) bound = session_->listen(bind, 0);
  if (!bound.ok()) return bound.status().with_context(o.port != 0 ? "--port" : "--bind");
  on_this_host_ = bind == "127.0.0.1" || bind == "::1";
  supervision::StormPolicy storm;
  storm.max_faults = static_cast<int32_t>(setup_.max_faults);
  storm.max_faults_of_place = std::max(storm.max_faults_of_place, storm.max_faults / 5);
  storm_ = supervision::StormBreaker(storm);
  const bool everywhere = bind == "0.0.0.0" || bind == "::";
  const std::string host = everywhere ? host_name() : bind;
  addresses_ = {host.find(':') == std::string::npos ? fmt::format("{}:{}", host, *bound)
                                                    : fmt::format("[{}]:{}", host, *bound)};
  return {};
}

/// Of a run that is taken over it is what the one before had: that is how others know this one.
Status Cluster::make_identity() {
  if (setup_.left) {
    server_ = setup_.left->facts.server.identity;
    member_ = setup_.left->member;
    secret_ = setup_.left->facts.secret;
    next_index_ = setup_.left->facts.next_index;
    closed_devices_ = setup_.left->facts.closed;
    fingerprints_ = setup_.left->facts.fingerprints;
    return {};
  }
  SGA_ASSIGN(const auto authority, actors::TlsAuthority::create());
  SGA_ASSIGN(server_, authority->issue_server());
  SGA_ASSIGN(member_, authority->issue_member());
  SGA_ASSIGN(secret_, actors::random_bytes(32));
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
  return children_.start(words, tag, outlives()).status();
}

Status Cluster::start_local_nodes() {
  const std::string program = program_file();
  if (setup_.options.hosts.empty()) return start_node({program}, workers_per_node_, 0);
  std::istringstream words(setup_.options.ssh);
  const std::vector<std::string> ssh{std::istream_iterator<std::string>(words), {}};
  if (ssh.empty()) return invalid_argument("--ssh: expected a program");
  for (size_t i = 0; i < hosts_.size(); ++i) {
    // The run directory and the program lie at the same place on every host.
    std::vector<std::string> before = ssh;
    for (const std::string& word :
         {std::string("-o"), std::string("BatchMode=yes"), std::string("-o"),
          std::string("ConnectTimeout=10"), std::string("-tt"), hosts_[i].host, program}) {
      before.push_back(word);
    }
    SGA_TRY(start_node(before, hosts_[i].workers, static_cast<int32_t>(i)));
  }
  return {};
}

void Cluster::print_join_line() const {
  std::printf("join      sgactor node --join %s --token %s\n", addresses_.front().c_str(),
              token_.c_str());
  std::fflush(stdout);
}

Status Cluster::gather(const RunDirectory& run, const std::atomic<bool>& stop) {
  token_ = std::filesystem::absolute(run.path).string() + "/control/token";
  SGA_TRY(actors::write_token(token_, {addresses_, member_}));
  if (setup_.left) SGA_TRY(await_returned(stop));
  const bool returned = !nodes_.empty();
  if (!returned) SGA_TRY(start_local_nodes());
  print_join_line();
  // What is missing there is started when all know where they stand (settle_returned). Those that
  // have returned compute as their ranks did.
  if (returned) return {};
  const int64_t deadline = now_ms() + setup_.options.join_timeout_s * 1000;
  while (!complete()) {
    if (stop.load()) return interrupted();
    if (now_ms() >= deadline) return no_device(missing());
    SGA_TRY(step(kStepMs));
  }
  return check_arithmetic(run, stop);
}

bool Cluster::complete() const {
  // Devices that have failed since the run began are missing where it is resumed.
  const bool fewer =
      setup_.left && !closed_devices_.empty() && !workers_.empty() && starting_.empty();
  if (fewer) return true;
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
    const auto there = static_cast<int64_t>(workers_.size() + starting_.size());
    start_workers_of(id, node, std::min(room, total - there));
  }
}

void Cluster::start_workers_of(wire::PeerId id, Node& node, int64_t count) {
  if (count <= 0) return;
  wire::StartWorkers order;
  order.first_index = next_index_;
  const wire::Hello& hello = node.who.hello;
  for (const std::string& device : hello.devices) {
    if (static_cast<int64_t>(order.devices.size()) == count) break;
    if (closed_devices_.contains({hello.host, device})) {
      log::warn("{}: {} has failed before: no worker is started there", node.who.name(), device);
      continue;
    }
    order.devices.push_back(device);
    starting_[take_index()] = add_place(node, device);
  }
  if (order.devices.empty()) return;
  node.num_started = static_cast<int32_t>(order.devices.size());
  session_->send(id, std::move(order));
}

int32_t Cluster::add_place(const Node& node, const std::string& device) {
  places_.push_back({node.who.id, device, node.who.hello.host});
  return static_cast<int32_t>(places_.size()) - 1;
}

bool Cluster::is_closed(int32_t place) const {
  if (closed_places_.contains(place)) return true;
  if (place < 0) return false;
  const Place& at = places_[static_cast<size_t>(place)];
  return at.device.empty() || closed_devices_.contains({at.host, at.device});
}

/// Nobody comes from a node that has gone.
void Cluster::forget_starting(wire::PeerId node) {
  std::erase_if(starting_, [this, node](const auto& s) {
    return places_[static_cast<size_t>(s.second)].node == node;
  });
}

void Cluster::start_worker_at(int32_t place) {
  const Place& at = places_[static_cast<size_t>(place)];
  if (!nodes_.contains(at.node) || draining_.contains(at.node)) return;
  if (is_closed(place)) return;
  const int32_t index = take_index();
  starting_[index] = place;
  session_->send(at.node, wire::StartWorkers{{at.device}, index});
}

/// The device of a node for one worker more; "" if none may be used any more.
std::string Cluster::free_device(wire::PeerId node) const {
  const Node& at = nodes_.at(node);
  std::vector<std::string> taken;
  std::set<std::string> closed;
  const auto on_node = [&](int32_t place) {
    return place >= 0 && places_[static_cast<size_t>(place)].node == node;
  };
  const auto device_at = [&](int32_t place) { return places_[static_cast<size_t>(place)].device; };
  for (const auto& [index, worker] : workers_) {
    if (on_node(worker.place)) taken.push_back(device_at(worker.place));
  }
  for (const auto& [index, place] : starting_) {
    if (on_node(place)) taken.push_back(device_at(place));
  }
  for (const auto& [host, device] : closed_devices_) {
    if (host == at.who.hello.host) closed.insert(device);
  }
  return least_taken(at.devices.empty() ? at.who.hello.devices : at.devices, taken, closed);
}

/// No worker is started any more on the device of this place: where it is a device of its own, by
/// no node of its host, and by no coordinator after this one.
void Cluster::close_device(int32_t place) {
  closed_places_.insert(place);
  if (place < 0) return;
  const Place& at = places_[static_cast<size_t>(place)];
  if (!is_exclusive(at.device) || !closed_devices_.insert({at.host, at.device}).second) return;
  if (left_run_.path.empty()) return;
  left_.closed = closed_devices_;
  rewrite_left();
}

Cluster::Fault Cluster::make_fault(supervision::FaultKind kind, Status status, int32_t index,
                                   std::string culprit, int64_t detected_ms) {
  const int64_t now = now_ms();
  Fault fault;
  fault.kind = kind;
  fault.index = index;
  fault.culprit = culprit.empty() ? status.message() : std::move(culprit);
  fault.status = std::move(status);
  fault.detected_ms = detected_ms == 0 ? now : detected_ms;
  fault.detected_unix = unix_seconds() - static_cast<double>(now - fault.detected_ms) / 1e3;
  return fault;
}

/// What the storm breaker says of another fault there; the run ends where it says so.
supervision::StormBreaker::Verdict Cluster::count_storm(int32_t place) {
  ++num_faults_;
  const auto verdict = storm_.on_fault(place, now_ms() * 1000);
  if (verdict == supervision::StormBreaker::Verdict::kStopJob) {
    storm_status_ =
        make_status(Code::kOverloaded,
                    fmt::format("{} faults within a minute", storm_.num_recent()), Scope::kJob);
  }
  return verdict;
}

void Cluster::count_fault(int32_t place) {
  switch (count_storm(place)) {
    case supervision::StormBreaker::Verdict::kGoOn:
      if (setup_.recovers && running_) start_worker_at(place);
      return;
    case supervision::StormBreaker::Verdict::kQuarantinePlace:
      log::warn("device {} fails again and again: no worker is started there any more", place);
      return;
    case supervision::StormBreaker::Verdict::kStopJob:
      return;
  }
}

/// A worker's process is gone, or as good as gone.
Status Cluster::lose(int32_t index, supervision::FaultKind kind, const Status& why) {
  const auto it = workers_.find(index);
  if (it == workers_.end()) return {};
  const Worker worker = std::move(it->second);
  workers_.erase(it);
  loading_.erase(index);
  copy_.forget(index);
  if (lost_.empty()) lost_ = why.message();
  if (!running_) return why;
  if (worker.suspected_ms > 0) confirm_silence(index, worker, why);
  count_fault(worker.place);
  if (worker.ranks.empty()) {
    state_stale_ = true;
    log::info("a spare is lost: {}", why.message());
    return {};
  }
  const bool hangs = worker.suspected_ms > 0;
  Fault fault =
      make_fault(hangs ? supervision::FaultKind::kHang : kind, why, index, "", worker.suspected_ms);
  if (hangs) fault.silent_ms = static_cast<double>(worker.suspected_ms - worker.heard_ms);
  faults_.push_back(std::move(fault));
  return {};
}

Cluster::Worker* Cluster::find_peer(wire::PeerId peer) {
  for (auto& [index, worker] : workers_) {
    if (worker.peer == peer) return &worker;
  }
  return nullptr;
}

Status Cluster::on_left(const actors::Peer& peer, const Status& why) {
  if (returning_) {
    // Who is there shows when all have had their time.
    if (find_peer(peer.id) != nullptr) forget_returned(peer.hello.index);
    alive_.erase(peer.id);
    nodes_.erase(peer.id);
    return {};
  }
  if (peer.hello.role == wire::Role::kNode) {
    const auto it = nodes_.find(peer.id);
    if (it == nodes_.end()) return {};
    const bool idle = it->second.num_started == 0;
    nodes_.erase(it);
    forget_starting(peer.id);
    if (idle || (running_ && setup_.recovers)) {
      log::info("{}", why.message());
      if (!idle && lost_.empty()) lost_ = why.message();
      return {};
    }
    lost_ = why.message();
    return why;
  }
  const Worker* worker = find_peer(peer.id);
  if (worker == nullptr) return {};
  return lose(peer.hello.index, supervision::FaultKind::kWorkerExit, why);
}

Status Cluster::on_exited(const wire::WorkerExited& exited) {
  if (returning_) {
    forget_returned(exited.index);
    return {};
  }
  const std::string text =
      fmt::format("worker {} (pid {}) has ended: {}", exited.index, exited.pid, exited.how);
  const Status why = make_status(Code::kDisconnected, text, Scope::kRank);
  endings_[exited.index] = text;  // says more than the broken link
  const auto starting = starting_.find(exited.index);
  if (starting != starting_.end()) {
    const int32_t place = starting->second;
    starting_.erase(starting);
    lost_ = text;
    if (!running_) return why;
    log::warn("{} before it had joined", text);
    count_fault(place);
    return {};
  }
  if (workers_.contains(exited.index)) {
    lost_ = text;
    return lose(exited.index, supervision::FaultKind::kWorkerExit, why);
  }
  if (std::any_of(faults_.begin(), faults_.end(),
                  [&](const Fault& f) { return f.index == exited.index; })) {
    lost_ = text;
  }
  return {};
}

Status Cluster::on_joined(const actors::Peer& peer) {
  const wire::Hello& hello = peer.hello;
  if (returning_) {
    on_returned(peer);
    return {};
  }
  if (running_ && terms_.orphan_ms > 0) session_->send(peer.id, to_wire(terms_));
  if (hello.role == wire::Role::kWorker) {
    const auto starting = starting_.find(hello.index);
    if (starting == starting_.end()) {
      session_->expel(peer.id, invalid_argument("nobody has asked for this worker"));
      return {};
    }
    Worker worker;
    worker.peer = peer.id;
    worker.who = peer;
    worker.place = starting->second;
    worker.life = hello.index;
    worker.heard_ms = now_ms();
    starting_.erase(starting);
    if (const auto at = arithmetic_at_.find(kind_of(worker)); at != arithmetic_at_.end()) {
      worker.fingerprint = at->second;
    }
    workers_[hello.index] = std::move(worker);
    state_stale_ = true;
    return {};
  }
  const bool late =
      running_ || complete() || static_cast<int64_t>(nodes_.size()) >= nodes_wanted_.max;
  Node& node = nodes_[peer.id] = {peer, 0, {}};
  if (late) log::info("{} has joined as a spare", peer.name());
  if (!late) start_workers();
  if (running_ && setup_.recovers) {
    start_workers_of(peer.id, node, static_cast<int64_t>(hello.devices.size()));
  }
  return {};
}

Status Cluster::on_answer(const actors::SessionEvent& event) {
  Worker* worker = find_peer(event.peer.id);
  if (worker == nullptr) return {};  // has gone meanwhile
  // An answer of an attempt that was given up is not the one that is waited for.
  if (--worker->num_asked > 0) return {};
  const int32_t index = worker->who.hello.index;
  if (!event.status.ok()) {
    // Whoever is still here has refused, or has not answered in time.
    if (event.status.code() == Code::kDisconnected) return {};
    // A device that does not open, or a process that does not answer, is this worker's alone: it is
    // replaced. What else it refuses others would refuse too.
    const bool late = event.status.code() == Code::kTimeout;
    const bool own = late || event.status.scope() == Scope::kDevice;
    const auto kind = late ? supervision::FaultKind::kHang : supervision::FaultKind::kActorFailure;
    faults_.push_back(make_fault(kind, event.status, own ? index : -1));
    return {};
  }
  const auto* loaded = std::get_if<wire::PlanLoaded>(&event.envelope.body);
  if (loaded == nullptr || loaded->worker != worker->life) {
    return corruption("a worker answered with another message");
  }
  worker->address = loaded->address;
  loading_.erase(index);
  if (takes_arithmetic(*worker, loaded->fingerprint)) return {};
  closed_places_.insert(worker->place);
  faults_.push_back(make_fault(
      supervision::FaultKind::kActorFailure,
      make_status(Code::kUnsupported, worker->who.name() + ": its arithmetic is another one's",
                  Scope::kDevice),
      index));
  return {};
}

/// Its host, and the kind of its device: workers of which compute alike, as a rule.
HostDevice Cluster::kind_of(const Worker& worker) const {
  const std::string device =
      worker.place < 0 ? "" : places_[static_cast<size_t>(worker.place)].device;
  return {worker.who.hello.host, device.substr(0, device.find(':'))};
}

/// As far as is known.
bool Cluster::fits(const Worker& worker, int32_t rank) const {
  if (setup_.allow_inexact || worker.fingerprint.empty()) return true;
  const auto known = fingerprints_.find(rank);
  return known == fingerprints_.end() || known->second == worker.fingerprint;
}

/// That ranks must be kept apart by.
int64_t Cluster::num_arithmetics() const {
  if (setup_.allow_inexact) return 1;
  std::set<std::string> all;
  for (const auto& [rank, fingerprint] : fingerprints_) all.insert(fingerprint);
  return std::max<int64_t>(1, static_cast<int64_t>(all.size()));
}

/// Workers that shall host ranks: one of each arithmetic at least.
int64_t Cluster::num_wanted() const { return std::max(setup_.num_workers, num_arithmetics()); }

/// Whether what the worker computes for its ranks keeps the bits that they had before; if not, and
/// it may all the same, that is remembered.
bool Cluster::takes_arithmetic(Worker& worker, const std::string& fingerprint) {
  worker.fingerprint = fingerprint;
  for (const int32_t rank : worker.ranks) {
    std::string& known = fingerprints_[rank];
    if (known.empty()) known = fingerprint;
    if (known == fingerprint) continue;
    log::warn("{} computes by {}, rank {} did by {}: {}", worker.who.name(), fingerprint, rank,
              known,
              setup_.allow_inexact
                  ? "bits may differ from here on (resilience.allow_inexact)"
                  : "it takes nothing over; resilience.allow_inexact = true would let it");
    if (!setup_.allow_inexact) return false;
    known = fingerprint;
    moved_inexactly_ = true;
  }
  arithmetic_at_[kind_of(worker)] = fingerprint;
  return true;
}

/// For the run's record, and for a coordinator after this one.
void Cluster::keep_fingerprints(const Course& course, int64_t first_step) {
  if (course.work->on_arithmetic && told_fingerprints_ != fingerprints_) {
    told_fingerprints_ = fingerprints_;
    course.work->on_arithmetic(first_step, fingerprints_);
  }
  if (left_run_.path.empty() || left_.fingerprints == fingerprints_) return;
  left_.fingerprints = fingerprints_;
  rewrite_left();
}

Status Cluster::on_event(actors::SessionEvent& event) {
  if (event.kind == Kind::kLeft) return on_left(event.peer, event.status);
  if (event.kind == Kind::kJoined) return on_joined(event.peer);
  if (event.kind == Kind::kAnswer) return on_answer(event);
  if (event.kind != Kind::kMessage) return {};
  if (const auto* beat = std::get_if<wire::Heartbeat>(&event.envelope.body)) {
    if (Worker* worker = find_peer(event.peer.id)) {
      worker->heard_ms = now_ms();
      worker->suspected_ms = 0;
      if (!worker->ranks.empty()) {
        progress_.on_count(worker->who.hello.index, beat->progress, worker->heard_ms);
      }
    }
  } else if (const auto* exited = std::get_if<wire::WorkerExited>(&event.envelope.body)) {
    return on_exited(*exited);
  } else if (const auto* asked = std::get_if<wire::StopJob>(&event.envelope.body)) {
    log::info("stops after this step: {}", asked->reason);
    request_stop();
  } else if (const auto* opaque = std::get_if<wire::Opaque>(&event.envelope.body)) {
    on_opaque(event.peer.id, *opaque);
  }
  return {};
}

Status Cluster::check_children() {
  for (const actors::NodeChildren::Exit& exit : children_.take_exits()) {
    const auto host = static_cast<size_t>(exit.tag);
    const std::string whose = host < hosts_.size() ? hosts_[host].host : "this host";
    lost_ = fmt::format("the node of {} (pid {}) has ended: {}", whose, exit.pid, exit.how);
    // Its workers follow it; whether anybody is left to go on shows then.
    if (running_ && setup_.recovers) continue;
    // Before the run begins it is a host or device that is not as asked.
    if (!running_) return no_device(lost_);
    return make_status(Code::kDisconnected, lost_, Scope::kRank);
  }
  return {};
}

Status Cluster::step(int64_t timeout_ms) {
  auto event = session_->next(timeout_ms);
  while (event) {
    SGA_TRY(on_event(*event));
    event = session_->next(0);
  }
  show_status(/*at_once=*/false);
  return check_children();
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
  end_returned();
  // Nobody writes to it any more.
  memory_.reset();
  std::error_code ignored;
  if (!shared_mirror_.empty()) std::filesystem::remove_all(shared_mirror_, ignored);
  if (!token_.empty()) {
    ::unlink(token_.c_str());
    for (const char* name : {"/state.json", "/request.json"}) {
      ::unlink((token_.substr(0, token_.rfind('/')) + name).c_str());
    }
    remove_left({std::filesystem::path(token_).parent_path().parent_path().string()});
    ::rmdir(token_.substr(0, token_.rfind('/')).c_str());
  }
  const actors::HubStats stats = session_->stats();
  if (stats.strangers > 0) {
    log::info("control port: {} connections were not taken", stats.strangers);
  }
}

}  // namespace sgactor::apps
