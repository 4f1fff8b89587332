// Cluster: what it is asked for from outside while it runs, by `sgactor ctl` and `sgactor chaos`,
// and what devices report.
#include "apps/sgactor/clock.h"
#include "apps/sgactor/cluster.h"
#include "apps/sgactor/cluster_course.h"
#include "apps/sgactor/fault_injection.h"
#include "graph/base/log.h"
#include "supervision/monitor/device_faults.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <sstream>

namespace sgactor::apps {

namespace wire = actors::wire;
using supervision::Action;

void Cluster::resize(int64_t workers) {
  log::info("{} workers from now on, as asked", workers);
  setup_.num_workers = workers;
  auto node = nodes_.begin();
  for (auto n = static_cast<int64_t>(workers_.size() + starting_.size());
       n < workers && !nodes_.empty(); ++n) {
    // Where nothing is left on a node the next one is asked.
    for (size_t tried = 0; tried < nodes_.size(); ++tried) {
      if (node == nodes_.end()) node = nodes_.begin();
      const wire::PeerId at = (node++)->first;
      const std::string device = draining_.contains(at) ? "" : free_device(at);
      if (device.empty()) continue;
      start_worker_at(add_place(nodes_.at(at), device));
      break;
    }
  }
}

/// `sgactor ctl` leaves what it asks for beside the state. True if something may have changed.
bool Cluster::take_request(const Work& work) {
  const std::string file = RunDirectory{work.run_directory}.request();
  if (::access(file.c_str(), F_OK) != 0) return false;
  std::ostringstream text;
  text << std::ifstream(file, std::ios::binary).rdbuf();
  ::unlink(file.c_str());
  const auto request = nlohmann::json::parse(text.str(), nullptr, /*allow_exceptions=*/false);
  if (request.is_object() && request.contains("resize") && request["resize"].is_number_integer()) {
    const auto workers = request["resize"].get<int64_t>();
    const auto ranks = static_cast<int64_t>(work.plan->ranks.size());
    if (workers < 1 || workers > ranks) {
      log::warn("{}: expected 1 to {}", file, ranks);
    } else if (workers != setup_.num_workers) {
      resize(workers);
    }
    return true;
  }
  if (request.is_object() && request.contains("drain") && request["drain"].is_string()) {
    const Status status = drain_host(request["drain"].get<std::string>());
    if (!status.ok()) log::warn("{}", status.message());
    return status.ok();
  }
  if (const auto steps = ProfileRequest::parse(text.str())) {
    ask_profile(work, *steps);
    return false;
  }
  if (request.is_object() && request.contains("phase")) {
    arm(text.str());
    return false;
  }
  const auto fault = parse_injected(text.str());
  if (!fault.ok()) {
    log::warn("{}: not understood", file);
  } else if (takes_injections()) {
    inject(*fault);
  } else {
    log::warn("{}: this run takes no injected faults", file);
  }
  return false;
}

void Cluster::inject(const InjectedFault& fault) {
  const auto it = workers_.find(fault.worker);
  if (it == workers_.end()) return log::warn("there is no worker {} to strike", fault.worker);
  const bool of_node = fault.kind == "xid";
  InjectedFault order = fault;
  if (fault.to_rank >= 0) {
    const auto other = std::find_if(workers_.begin(), workers_.end(), [&](const auto& w) {
      const std::vector<int32_t>& ranks = w.second.ranks;
      return std::find(ranks.begin(), ranks.end(), fault.to_rank) != ranks.end();
    });
    if (other == workers_.end() || other == it) {
      return log::warn("no link leads from worker {} to rank {}", fault.worker, fault.to_rank);
    }
    order.peer = data_peer(other->second.life);
  }
  session_->send(of_node ? it->second.who.hello.node : it->second.peer,
                 to_wire(kInjectFault, order));
}

// --- times, recorded on demand ---

void Cluster::ask_profile(const Work& work, int64_t steps) {
  std::set<int32_t> asked;
  for (const auto& [index, worker] : workers_) {
    if (worker.ranks.empty()) continue;
    asked.insert(index);
    session_->send(worker.peer, wire::Opaque{kTakeTimes, std::to_string(steps)});
  }
  log::info("{} workers record the times of {} steps, as asked", asked.size(), steps);
  profile_.begin(std::move(asked));
  profiled_work_ = &work;
}

void Cluster::on_profiled(wire::PeerId from, const std::string& payload) {
  auto answer = parse_answer(payload);
  const auto it = std::find_if(workers_.begin(), workers_.end(),
                               [&](const auto& w) { return w.second.peer == from; });
  if (!answer.ok() || it == workers_.end() || profiled_work_ == nullptr) return;
  if (!profile_.answer(it->first, std::move(*answer))) return;
  const RunDirectory run{profiled_work_->run_directory};
  const Status written = profile_.write(*profiled_work_->plan, run);
  if (!written.ok()) return log::warn("profile: {}", written.message());
  log::info("measured times are in {}", run.profile());
}

/// {"inject": "kill_coordinator" or "kill_worker", "phase": …} strikes later: see strike_at().
void Cluster::arm(const std::string& text) {
  const auto request = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto fault = parse_injected(text);
  if (!fault.ok() || !request["phase"].is_string() || !takes_injections()) {
    return log::warn("a fault of a phase is not understood, or not taken");
  }
  Armed armed;
  armed.phase = request["phase"].get<std::string>();
  armed.of_coordinator = fault->kind == "kill_coordinator";
  armed.worker = fault->worker;
  armed.spare = request.value("spare", false);
  const bool journalled = armed.phase == "journalled";
  if (journalled && armed.of_coordinator) {
    strikes_journalled_ = true;
  } else {
    armed_.push_back(std::move(armed));
  }
}

/// A recovery enters a phase: "fence" (the fence is asked for), "restore" (who takes over loads),
/// "resume" (all are told where all are), "replay" (the open step goes on).
void Cluster::strike_at(const Course& course, std::string_view phase) {
  for (auto it = armed_.begin(); it != armed_.end();) {
    if (it->phase != phase) {
      ++it;
      continue;
    }
    const Armed armed = *it;
    it = armed_.erase(it);
    if (armed.of_coordinator) ::kill(::getpid(), SIGKILL);
    auto victim = workers_.find(armed.worker);
    if (armed.spare) {
      victim = std::find_if(workers_.begin(), workers_.end(), [&](const auto& w) {
        return course.in_place.adopters.contains(w.first) ||
               (course.in_place.adopters.empty() && w.second.ranks.empty());
      });
    }
    if (victim == workers_.end()) {
      log::warn("there is nobody to strike in phase {}", phase);
    } else {
      session_->send(victim->second.who.hello.node, wire::EndWorker{victim->first, false});
    }
  }
}

// --- devices ---

void Cluster::on_opaque(wire::PeerId from, const wire::Opaque& message) {
  if (message.kind == kRankViews) return on_views(from, message.payload);
  if (message.kind == kProfiled) return on_profiled(from, message.payload);
  if (message.kind == kStanding) return on_standing(from, message.payload);
  if (message.kind == kStateCopied) return on_state_copied(message.payload);
  if (message.kind == kArithmetic) return on_arithmetic(from, message.payload);
  if (message.kind != kDeviceFault) return;
  const auto told = parse_injected(message.payload);
  if (told.ok()) on_device_fault({told->worker, static_cast<int32_t>(told->value)});
}

void Cluster::on_device_fault(const supervision::DeviceFault& device) {
  if (holds_faults_) return early_faults_.push_back(device);
  const auto it = workers_.find(device.worker);
  if (it == workers_.end()) return;  // has gone meanwhile
  const Worker& worker = it->second;
  const std::string text = worker.who.name() + ": " + supervision::to_string(device);
  const Action action = supervision::action_of(device);
  if (action == Action::kIgnore) return log::info("{}", text);
  log::warn("{}", text);
  if (action == Action::kDrainHost) {
    const Status status = drain_node(worker.who.hello.node);
    if (!status.ok()) log::warn("{}", status.message());
    return;
  }
  if (action == Action::kQuarantineDevice) close_device(worker.place);
  if (worker.ranks.empty() || !setup_.recovers) {
    session_->send(worker.who.hello.node, wire::EndWorker{device.worker, false});
    return;
  }
  faults_.push_back(make_fault(supervision::FaultKind::kDeviceFault,
                               make_status(Code::kDeviceFault, text, Scope::kDevice),
                               device.worker));
}

/// The step is not committed and what came of it is worth nothing: all begin again behind the step
/// before, without the device that lied.
void Cluster::on_wrong_bits(const Course& course, int32_t rank, const Status& why) {
  const int32_t index = course.hosts[static_cast<size_t>(rank)];
  const auto it = workers_.find(index);
  log::warn("{}", why.message());
  const bool there = it != workers_.end();
  if (there) close_device(it->second.place);
  const std::string culprit = there ? it->second.who.name() + ": " + why.message() : why.message();
  if (lost_.empty()) lost_ = culprit;
  faults_.push_back(
      make_fault(supervision::FaultKind::kWrongBits, why, there ? index : -1, culprit));
}

// --- leaving a host ---

bool Cluster::is_leaving(const Worker& worker) const {
  return draining_.contains(worker.who.hello.node);
}

int64_t Cluster::num_staying() const {
  return std::count_if(workers_.begin(), workers_.end(),
                       [this](const auto& w) { return !is_leaving(w.second); });
}

/// Whether workers of other nodes can take all ranks.
bool Cluster::can_leave(const std::set<wire::PeerId>& nodes) const {
  const auto stays = [&](int32_t rank) {
    return std::any_of(workers_.begin(), workers_.end(), [&](const auto& w) {
      return !nodes.contains(w.second.who.hello.node) && (rank < 0 || fits(w.second, rank));
    });
  };
  return stays(-1) && std::all_of(fingerprints_.begin(), fingerprints_.end(),
                                  [&](const auto& f) { return stays(f.first); });
}

Status Cluster::drain_host(const std::string& host) {
  std::vector<wire::PeerId> nodes;
  for (const auto& [id, node] : nodes_) {
    const wire::Hello& hello = node.who.hello;
    if (hello.host == host || std::to_string(hello.pid) == host) nodes.push_back(id);
  }
  if (nodes.empty()) return invalid_argument("drain " + host + ": there is no such host or node");
  std::set<wire::PeerId> all = draining_;
  all.insert(nodes.begin(), nodes.end());
  if (!can_leave(all)) {
    return invalid_argument("drain " + host + ": no worker would be left that could go on");
  }
  for (const wire::PeerId node : nodes) SGA_TRY(drain_node(node));
  return {};
}

/// Its workers host nothing from the next dealing on, which is due after this step.
Status Cluster::drain_node(wire::PeerId node) {
  const auto it = nodes_.find(node);
  if (it == nodes_.end()) return {};
  std::set<wire::PeerId> all = draining_;
  all.insert(node);
  if (!can_leave(all)) {
    return invalid_argument(it->second.who.name() +
                            " cannot be drained: no worker would be left that could go on");
  }
  log::info("{} is drained", it->second.who.name());
  draining_.insert(node);
  end_leaving();
  return {};
}

/// Ends those that leave and host nothing, and nodes that have no other worker.
void Cluster::end_leaving() {
  for (auto it = workers_.begin(); it != workers_.end();) {
    if (!is_leaving(it->second) || !it->second.ranks.empty()) {
      ++it;
      continue;
    }
    session_->send(it->second.peer, wire::Shutdown{Status()});
    it = workers_.erase(it);
  }
  for (const wire::PeerId node : draining_) {
    const auto it = nodes_.find(node);
    const bool busy = std::any_of(workers_.begin(), workers_.end(), [node](const auto& w) {
      return w.second.who.hello.node == node;
    });
    if (it == nodes_.end() || busy) continue;
    log::info("{} has been left", it->second.who.name());
    forget_starting(node);
    session_->send(node, wire::Shutdown{Status()});
    nodes_.erase(it);
  }
}

}  // namespace sgactor::apps
