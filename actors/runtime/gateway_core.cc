#include "actors/runtime/gateway_core.h"

#include <fmt/format.h>

#include <algorithm>

namespace sgactor::actors {
namespace {

constexpr size_t kMaxNameBytes = 256;
constexpr size_t kMaxDevices = 1024;

/// The rank that a step message speaks for; nothing for other messages.
std::optional<int32_t> rank_of(const wire::Body& body) {
  return std::visit(
      [](const auto& m) -> std::optional<int32_t> {
        if constexpr (requires { m.rank; }) {
          return m.rank;
        } else {
          return std::nullopt;
        }
      },
      body);
}

/// Messages that carry their own generation keep it.
int64_t generation_of(const wire::Body& body, int64_t current) {
  return std::visit(
      [&](const auto& m) -> int64_t {
        if constexpr (requires { m.generation; }) {
          return m.generation;
        } else {
          return current;
        }
      },
      body);
}

Status lost(const Peer& peer, const Status& why) {
  return Status(why.code(), Scope::kRank, peer.name() + " is gone: " + why.message(), why.origin());
}

}  // namespace

std::string Peer::name() const {
  if (id == wire::kCoordinatorPeer) return "the coordinator at " + address;
  if (hello.role == wire::Role::kNode)
    return fmt::format("node {} (pid {})", hello.host, hello.pid);
  return fmt::format("worker {} (pid {} on {})", hello.index, hello.pid, hello.host);
}

wire::Envelope GatewayCore::make(wire::PeerId to, wire::Body body) const {
  wire::Envelope out;
  out.sender = id_;
  out.receiver = to;
  out.generation = generation_of(body, generation_);
  out.body = std::move(body);
  return out;
}

void GatewayCore::push(LinkId link, const wire::Envelope& envelope, Effects& out) {
  auto bytes = wire::encode(envelope);
  if (bytes.ok()) {
    out.emplace_back(SendFrame{link, std::move(*bytes)});
  } else {
    out.emplace_back(Note{bytes.status().message()});
  }
}

GatewayCore::Effects GatewayCore::on_opened(LinkId link, const std::string& address,
                                            bool accepted) {
  Effects out;
  if (accepted != self_.is_coordinator) {
    out.emplace_back(CloseLink{link});
    return out;
  }
  links_[link] = {address, accepted, wire::kNobody};
  if (accepted) return out;
  wire::Hello hello = self_.hello;
  hello.build = self_.build;
  hello.job_hash = self_.job_hash;
  push(link, make(wire::kCoordinatorPeer, std::move(hello)), out);
  return out;
}

GatewayCore::Effects GatewayCore::on_frame(LinkId link, std::string_view bytes) {
  Effects out;
  const auto it = links_.find(link);
  if (it == links_.end()) return out;
  auto envelope = wire::decode(bytes);
  if (!envelope.ok()) {
    if (it->second.peer == wire::kNobody) {
      refuse(link, envelope.status(), out);
    } else {
      lose(it->second.peer, envelope.status(), out);
    }
    return out;
  }
  if (it->second.peer != wire::kNobody) {
    const LinkState state = it->second;
    on_peer_message(link, state, std::move(*envelope), out);
  } else if (self_.is_coordinator) {
    on_hello(link, *envelope, out);
  } else {
    on_welcome(link, *envelope, out);
  }
  return out;
}

Status GatewayCore::check_hello(const wire::Hello& hello) const {
  if (hello.build != self_.build) {
    return invalid_argument(fmt::format("{} on {} runs build {}, the coordinator runs build {}",
                                        wire::to_string(hello.role), hello.host, hello.build,
                                        self_.build));
  }
  if (hello.job_hash != 0 && hello.job_hash != self_.job_hash) {
    return invalid_argument(fmt::format(
        "{} on {} has another job file than the coordinator: hash {:016x}, expected {:016x}",
        wire::to_string(hello.role), hello.host, hello.job_hash, self_.job_hash));
  }
  return {};
}

void GatewayCore::on_hello(LinkId link, const wire::Envelope& envelope, Effects& out) {
  const auto* hello = std::get_if<wire::Hello>(&envelope.body);
  if (hello == nullptr) {
    return refuse(link, corruption("the first message was no hello"), out);
  }
  if (hello->host.size() > kMaxNameBytes || hello->build.size() > kMaxNameBytes ||
      hello->devices.size() > kMaxDevices) {
    return refuse(link, corruption("a hello that is too long"), out);
  }
  if (const Status s = check_hello(*hello); !s.ok()) return refuse(link, s, out);
  LinkState& state = links_.at(link);
  state.peer = next_peer_++;
  PeerState peer{{state.peer, *hello, state.address}, link, {}};
  out.emplace_back(Admit{link});
  push(link, make(state.peer, wire::Welcome{state.peer, self_.job_hash}), out);
  out.emplace_back(Joined{peer.peer});
  peers_.emplace(state.peer, std::move(peer));
  counts_.num_peers = static_cast<int64_t>(peers_.size());
}

void GatewayCore::refuse(LinkId link, const Status& why, Effects& out) {
  ++counts_.refused;
  const std::string address = links_.at(link).address;
  links_.erase(link);
  if (self_.is_coordinator) {
    push(link, make(wire::kNobody, wire::Refused{why}), out);
    out.emplace_back(CloseLink{link});
    out.emplace_back(Note{fmt::format("{} may not join: {}", address, why.message())});
    return;
  }
  Peer coordinator;
  coordinator.id = wire::kCoordinatorPeer;
  coordinator.address = address;
  out.emplace_back(CloseLink{link});
  out.emplace_back(Left{coordinator, why});
}

void GatewayCore::on_welcome(LinkId link, const wire::Envelope& envelope, Effects& out) {
  if (const auto* refused = std::get_if<wire::Refused>(&envelope.body)) {
    return refuse(link, refused->why.ok() ? corruption("refused") : refused->why, out);
  }
  const auto* welcome = std::get_if<wire::Welcome>(&envelope.body);
  if (welcome == nullptr || welcome->peer <= wire::kCoordinatorPeer) {
    return refuse(link, corruption("the coordinator's first message was no welcome"), out);
  }
  id_ = welcome->peer;
  LinkState& state = links_.at(link);
  state.peer = wire::kCoordinatorPeer;
  PeerState peer;
  peer.peer.id = wire::kCoordinatorPeer;
  peer.peer.address = state.address;
  peer.link = link;
  out.emplace_back(Joined{peer.peer});
  peers_.insert_or_assign(wire::kCoordinatorPeer, std::move(peer));
  counts_.num_peers = 1;
}

bool GatewayCore::may_speak(const PeerState& peer, const wire::Body& body) const {
  if (!self_.is_coordinator) return true;
  const std::optional<int32_t> rank = rank_of(body);
  return !rank || peer.ranks.contains(*rank);
}

void GatewayCore::on_peer_message(LinkId, const LinkState& state, wire::Envelope envelope,
                                  Effects& out) {
  const PeerState& peer = peers_.at(state.peer);
  if (self_.is_coordinator && envelope.sender != state.peer) {
    return lose(state.peer, corruption("it speaks for another process"), out);
  }
  if (envelope.receiver != id_) {
    const auto target = peers_.find(envelope.receiver);
    if (!self_.is_coordinator || target == peers_.end()) return;
    ++counts_.relayed;
    return push(target->second.link, envelope, out);
  }
  if (!may_speak(peer, envelope.body)) {
    return lose(state.peer, corruption("it speaks for a rank that it does not host"), out);
  }
  if (const auto* routes = std::get_if<wire::Routes>(&envelope.body); routes != nullptr) {
    generation_ = std::max(generation_, routes->generation);
  }
  if (wire::belongs_to_generation(envelope.body) && envelope.generation != generation_) {
    ++counts_.stale;
    return;
  }
  if (envelope.answers == 0) return (void)out.emplace_back(Deliver{std::move(envelope)});
  const auto pending = pending_.find(envelope.answers);
  if (pending == pending_.end() || pending->second.peer != envelope.sender) return;  // too late
  const uint64_t token = pending->second.token;
  pending_.erase(pending);
  if (const auto* failed = std::get_if<wire::Failed>(&envelope.body)) {
    const Status why = failed->why.ok() ? internal_error("failed") : failed->why;
    return (void)out.emplace_back(Answered{token, why.with_context(peer.peer.name())});
  }
  out.emplace_back(Answered{token, std::move(envelope.body)});
}

GatewayCore::Effects GatewayCore::on_closed(LinkId link, const Status& why) {
  Effects out;
  const auto it = links_.find(link);
  if (it == links_.end()) {
    // A connect that came to nothing.
    if (!self_.is_coordinator) {
      Peer coordinator;
      coordinator.id = wire::kCoordinatorPeer;
      out.emplace_back(Left{coordinator, why});
    }
    return out;
  }
  const LinkState state = it->second;
  if (state.peer != wire::kNobody) {
    lose(state.peer, why, out);
  } else {
    links_.erase(it);
    if (!self_.is_coordinator) {
      Peer coordinator;
      coordinator.id = wire::kCoordinatorPeer;
      coordinator.address = state.address;
      out.emplace_back(Left{coordinator, why});
    }
  }
  return out;
}

void GatewayCore::lose(wire::PeerId id, const Status& why, Effects& out) {
  const auto it = peers_.find(id);
  if (it == peers_.end()) return;
  const PeerState state = std::move(it->second);
  peers_.erase(it);
  links_.erase(state.link);
  counts_.num_peers = static_cast<int64_t>(peers_.size());
  out.emplace_back(CloseLink{state.link});
  const Status status = lost(state.peer, why);
  // First: who is asked a question and is gone has not refused it.
  out.emplace_back(Left{state.peer, status});
  for (auto p = pending_.begin(); p != pending_.end();) {
    if (p->second.peer != id) {
      ++p;
      continue;
    }
    out.emplace_back(Answered{p->second.token, status});
    p = pending_.erase(p);
  }
}

GatewayCore::Effects GatewayCore::send(wire::PeerId to, wire::Body body, uint64_t answers) {
  Effects out;
  const auto direct = peers_.find(to);
  const auto relay = peers_.find(wire::kCoordinatorPeer);
  const auto via = direct != peers_.end() ? direct : relay;
  if (via == peers_.end()) return out;
  wire::Envelope envelope = make(to, std::move(body));
  envelope.answers = answers;
  push(via->second.link, envelope, out);
  return out;
}

GatewayCore::Effects GatewayCore::ask(wire::PeerId to, wire::Body body, uint64_t token,
                                      int64_t deadline_ms) {
  Effects out;
  const auto peer = peers_.find(to);
  if (peer == peers_.end()) {
    out.emplace_back(Answered{
        token, make_status(Code::kDisconnected, fmt::format("peer {} is gone", to), Scope::kRank)});
    return out;
  }
  const uint64_t request = next_request_++;
  pending_[request] = {to, token, deadline_ms, wire::name_of(body)};
  wire::Envelope envelope = make(to, std::move(body));
  envelope.request = request;
  auto bytes = wire::encode(envelope);
  if (bytes.ok()) {
    out.emplace_back(SendFrame{peer->second.link, std::move(*bytes)});
  } else {
    pending_.erase(request);
    out.emplace_back(Answered{token, bytes.status()});
  }
  return out;
}

GatewayCore::Effects GatewayCore::tick(int64_t now_ms) {
  Effects out;
  for (auto p = pending_.begin(); p != pending_.end();) {
    if (p->second.deadline_ms > now_ms) {
      ++p;
      continue;
    }
    const auto peer = peers_.find(p->second.peer);
    const std::string name = peer == peers_.end() ? "a peer" : peer->second.peer.name();
    out.emplace_back(Answered{
        p->second.token,
        make_status(Code::kTimeout, fmt::format("{} did not answer {}", name, p->second.what),
                    Scope::kRank)});
    p = pending_.erase(p);
  }
  return out;
}

GatewayCore::Effects GatewayCore::expel(wire::PeerId id, const Status& why) {
  Effects out = send(id, wire::Shutdown{why});
  lose(id, why.ok() ? make_status(Code::kCancelled, "told to end") : why, out);
  return out;
}

void GatewayCore::set_ranks(wire::PeerId id, const std::vector<int32_t>& ranks) {
  if (const auto it = peers_.find(id); it != peers_.end()) {
    it->second.ranks = {ranks.begin(), ranks.end()};
  }
}

}  // namespace sgactor::actors
