// sgactor node: owns the devices of one host, starts a worker process a device, watches them.
#include "apps/sgactor/node.h"

#include "actors/runtime/node_children.h"
#include "actors/runtime/remote_session.h"
#include "apps/sgactor/cluster_ranks.h"
#include "apps/sgactor/cluster_standing.h"
#include "apps/sgactor/command_line.h"
#include "apps/sgactor/device.h"
#include "apps/sgactor/device_deal.h"
#include "apps/sgactor/fault_injection.h"
#include "apps/sgactor/mirror_directory.h"
#include "apps/sgactor/stop_signal.h"
#include "graph/base/log.h"
#include "supervision/monitor/driver_faults.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

namespace sgactor::apps {
namespace {

namespace wire = actors::wire;
using Kind = actors::SessionEvent::Kind;

constexpr int64_t kGraceMs = 1000;
constexpr int kPollMs = 100;

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

class Node {
 public:
  Node(actors::RemoteSession& session, const NodeOptions& options, std::string coordinator,
       std::vector<std::string> devices)
      : session_(session),
        options_(options),
        coordinator_(std::move(coordinator)),
        devices_(std::move(devices)),
        driver_faults_({.visible = environment("CUDA_VISIBLE_DEVICES")}) {}

  /// Until the coordinator says so or is gone. Returns the exit code.
  int serve(const std::atomic<bool>& stop) {
    stop_ = &stop;
    tell_standing();
    while (!over_) {
      wait();
      if (stop.load() && !told_stop_) {
        told_stop_ = true;
        session_.send(wire::kCoordinatorPeer,
                      wire::StopJob{fmt::format("node {} was asked to stop", host_name())});
      }
      for (const actors::NodeChildren::Exit& exit : children_.take_exits()) {
        driver_faults_.forget(exit.tag);
        if (exit.clean()) continue;
        session_.send(wire::kCoordinatorPeer, wire::WorkerExited{exit.tag, exit.pid, exit.how});
      }
      while (auto event = session_.next(0)) on_event(*event);
      tell(injected_faults_);
      tell(driver_faults_);
    }
    if (!children_.end(exit_code_ == kExitDone ? kGraceMs : 0) && exit_code_ == kExitDone) {
      log::warn("node {}: workers did not end in time and were killed", host_name());
    }
    return exit_code_;
  }

 private:
  void tell(supervision::DeviceFaults& faults) {
    while (const auto fault = faults.next()) {
      session_.send(wire::kCoordinatorPeer,
                    to_wire(kDeviceFault, {"xid", fault->worker, fault->xid}));
    }
  }

  /// Sleeps until there is an event or the end of a child. poll() skips what is -1.
  void wait() const {
    std::vector<pollfd> fds = {{session_.event_fd(), POLLIN, 0},
                               {driver_faults_.event_fd(), POLLIN, 0}};
    for (int fd : children_.fds()) fds.push_back({fd, POLLIN, 0});
    ::poll(fds.data(), fds.size(), kPollMs);
  }

  void on_event(const actors::SessionEvent& event) {
    if (event.kind == Kind::kLeft) {
      if (stand_by(event.status)) return;
      log::info("node {}: {}", host_name(), event.status.message());
      over_ = true;
      exit_code_ = kExitFailed;
    } else if (event.kind == Kind::kMessage) {
      const wire::Body& body = event.envelope.body;
      if (const auto* order = std::get_if<wire::StartWorkers>(&body)) {
        start_workers(*order, event.envelope.receiver);
      } else if (const auto* end = std::get_if<wire::EndWorker>(&body)) {
        children_.kill(end->index, end->only_if_stopped);
      } else if (const auto* opaque = std::get_if<wire::Opaque>(&body)) {
        if (opaque->kind == kTerms) return take_terms(opaque->payload);
        const auto fault = parse_injected(opaque->payload);
        if (opaque->kind == kInjectFault && fault.ok() && takes_injections()) {
          injected_faults_.add({fault->worker, static_cast<int32_t>(fault->value)});
        }
      } else if (const auto* shutdown = std::get_if<wire::Shutdown>(&body)) {
        over_ = true;
        exit_code_ = shutdown->why.ok() ? kExitDone : kExitFailed;
      }
    }
  }

  void take_terms(const std::string& payload) {
    const auto terms = parse_terms(payload);
    if (!terms.ok()) return;
    terms_ = *terms;
    if (terms_.mirror.empty() || (mirror_.held() && mirror_.path() == terms_.mirror)) return;
    mirror_.take(terms_.mirror);
  }

  /// Waits for whoever takes the run over; workers wait likewise. False: nobody came.
  bool stand_by(const Status& why) {
    if (terms_.orphan_ms <= 0 || stop_->load()) return false;
    log::info("node {}: {}; waits {} s for `sgactor train --resume`", host_name(), why.message(),
              (terms_.orphan_ms + 999) / 1000);
    const auto give_up = [this] {
      children_.take_exits();
      return stop_->load();
    };
    if (!join_again(session_, coordinator_, options_.token, terms_.orphan_ms, give_up)) {
      return false;
    }
    tell_standing();
    return true;
  }

  /// To a coordinator that it has just joined.
  void tell_standing() {
    Standing standing;
    standing.node_pid = ::getpid();
    standing.alive = children_.tags();
    standing.devices = devices_;
    session_.send(wire::kCoordinatorPeer, to_wire(standing));
  }

  /// From now on XID events of the worker's device are reported, if it has one and a driver says
  /// them.
  void listen_to(int32_t worker, const std::string& device) {
    const auto index_of = [](const std::string& text) {
      const auto spec = parse_devices(text);
      return spec.ok() && spec->backend == "cuda" ? spec->options.device_index : -1;
    };
    if (index_of(device) < 0) return;
    // All that later workers may run on: the first call decides what is listened to.
    std::vector<int32_t> all;
    for (const std::string& d : devices_) {
      if (index_of(d) >= 0) all.push_back(index_of(d));
    }
    const Status status = driver_faults_.assign(worker, index_of(device), all);
    if (!status.ok()) {
      log::warn("node {}: device faults are not heard: {}", host_name(), status.message());
    }
  }

  void start_workers(const wire::StartWorkers& order, wire::PeerId self) {
    for (size_t i = 0; i < order.devices.size(); ++i) {
      const int32_t index = order.first_index + static_cast<int32_t>(i);
      std::vector<std::string> words = {program_file(),
                                        "worker",
                                        "--join=" + coordinator_,
                                        "--token=" + options_.token,
                                        "--devices=" + order.devices[i],
                                        fmt::format("--node={}", self),
                                        fmt::format("--index={}", index),
                                        "--log-level=" + options_.log_level};
      if (!options_.bind.empty()) words.push_back("--bind=" + options_.bind);
      const auto pid = children_.start(words, index);
      if (pid.ok()) {
        listen_to(index, order.devices[i]);
        continue;
      }
      session_.send(wire::kCoordinatorPeer, wire::WorkerExited{index, 0, pid.status().message()});
    }
  }

  actors::RemoteSession& session_;
  const NodeOptions& options_;
  std::string coordinator_;
  std::vector<std::string> devices_;
  const std::atomic<bool>* stop_ = nullptr;
  Terms terms_;
  MirrorHold mirror_;
  actors::NodeChildren children_;
  supervision::InjectedDeviceFaults injected_faults_;
  supervision::DriverFaults driver_faults_;
  bool over_ = false;
  bool told_stop_ = false;
  int exit_code_ = kExitDone;
};

/// Those that workers of this host are dealt.
std::vector<std::string> find_devices(const NodeOptions& options) {
  const auto found = devices_here(options.devices);
  if (found.ok()) return *found;
  if (options.workers > 1) {
    log::warn("node {}: devices cannot be counted: {}", host_name(), found.status().message());
  }
  return devices_of_host(options.devices, 1);
}

/// A host that cannot be reached is a missing device, not a failed run.
Status unreachable(const Status& status) {
  if (status.code() != Code::kDisconnected && status.code() != Code::kTimeout) return status;
  return Status(Code::kUnsupported, Scope::kDevice, status.message(), status.origin());
}

/// The token may be written a moment after this process starts, where a launcher starts all.
Result<actors::JoinToken> wait_for_token(const NodeOptions& options,
                                         const std::atomic<bool>& stop) {
  for (int64_t waited = 0;; waited += kPollMs) {
    std::error_code error;
    const bool there = std::filesystem::exists(options.token, error);
    if (there || stop.load() || waited >= options.wait_ms) break;
    ::poll(nullptr, 0, kPollMs);
  }
  return actors::read_token(options.token);
}

}  // namespace

Result<int> run_node(const NodeOptions& options) {
  log::init({.level = log_level(options.log_level)});
  SGA_TRY(parse_devices(options.devices).status());
  if (!options.join.empty()) {
    if (const auto place = actors::parse_host_port(options.join); !place.ok()) {
      return place.status().with_context("--join");
    }
  }
  const std::atomic<bool>& stop = install_stop_signals();
  auto token = wait_for_token(options, stop);
  if (!token.ok()) return token.status().with_context("--token");
  if (!options.join.empty()) token->addresses = {options.join};
  if (token->addresses.empty()) return invalid_argument("--join: expected HOST:PORT");
  actors::GatewaySelf self;
  self.build = build_id(program_file());
  self.job_hash = options.job_hash;
  self.hello.role = wire::Role::kNode;
  self.hello.host = host_name();
  self.hello.pid = ::getpid();
  self.hello.spare = options.spare;
  const std::vector<std::string> devices = find_devices(options);
  self.hello.devices = deal_devices(devices, options.workers, options.first_device);
  SGA_ASSIGN(auto session, actors::RemoteSession::create(token->identity, self, {}, 1));
  auto coordinator = session->join(token->addresses, options.join_timeout_s * 1000);
  if (!coordinator.ok()) return unreachable(coordinator.status());
  if (const std::string note = sharing_note(devices, options.workers); !note.empty()) {
    log::warn("node {}: {}", host_name(), note);
  }
  Node node(*session, options, coordinator->address, devices);
  return node.serve(stop);
}

void add_node(CLI::App& app, CommandLine& line) {
  CLI::App* sub = app.add_subcommand("node", "lend this host's devices to a run");
  auto options = std::make_shared<NodeOptions>();
  sub->add_option("--join", options->join, "HOST:PORT of the coordinator; default: the token's");
  sub->add_option("--token", options->token, "token file of the run")->required();
  sub->add_option("--devices", options->devices, "of each worker, as for train")
      ->capture_default_str();
  sub->add_option("--workers", options->workers, "worker processes that this host may run")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  sub->add_option("--bind", options->bind, "address that other hosts reach this one by");
  sub->add_option("--log-level", options->log_level)->group("");
  sub->add_option("--join-timeout", options->join_timeout_s, "seconds to try to reach the run")
      ->check(CLI::Range(1, 86400))
      ->capture_default_str();
  sub->add_flag("--spare", options->spare, "wait for a loss");
  sub->callback([&line, options] { line.action = [options] { return run_node(*options); }; });
}

}  // namespace sgactor::apps
