#include "transport/core/message_fabric.h"

#include "graph/base/log.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

namespace sgactor::transport {

namespace {
constexpr int64_t kOpenAgainNs = 20'000'000;
}  // namespace

MessageFabric::MessageFabric(PeerId self, Progress* progress, FabricOptions options)
    : self_(self),
      progress_(progress),
      options_(std::move(options)),
      context_(*progress, options_.messages) {}

MessageFabric::~MessageFabric() = default;

void MessageFabric::run_inside(Progress::Task task) {
  if (progress_->inside()) {
    task();
    return;
  }
  progress_->post([task = std::move(task), alive = std::weak_ptr<bool>(alive_)] {
    if (alive.lock()) task();
  });
}

void MessageFabric::shut_down() {
  const Status why = make_status(Code::kCancelled, "the fabric is closed");
  alive_.reset();
  for (auto& [link, guest] : guests_) guest.link->close();
  guests_.clear();
  peer_lost_.clear();
  for (auto& [id, peer] : peers_) {
    if (peer.link) peer.link->close();
    peer.messages->fail(why);
    peer.state = State::kGone;
    for (const ConnectDone& done : std::exchange(peer.waiting, {})) done(why);
  }
  context_.deliver();
  retired_.clear();
  peer_of_link_.clear();
  peers_.clear();
}

MessageFabric::Peer& MessageFabric::peer_of(PeerId peer) {
  Peer& p = peers_[peer];
  if (!p.messages) p.messages = std::make_unique<MessageTable>(peer, peer == self_, context_);
  return p;
}

Endpoint& MessageFabric::endpoint(PeerId peer) { return *peer_of(peer).messages; }

// Connecting.

void MessageFabric::connect(PeerId peer, std::string address, ConnectDone done) {
  run_inside([this, peer, address = std::move(address), done = std::move(done)]() mutable {
    connect_inside(peer, std::move(address), std::move(done));
  });
}

void MessageFabric::connect_inside(PeerId peer, std::string address, ConnectDone done) {
  Peer& p = peer_of(peer);
  if (p.state == State::kOpen || peer == self_) return done({});
  if (p.barred) {
    return done(make_status(Code::kDisconnected, fmt::format("peer {} is gone", peer)));
  }
  if (p.state == State::kGone) begin_again(peer, p);
  p.waiting.push_back(std::move(done));
  if (p.state == State::kConnecting) return;
  progress_->post_after(options_.connect_timeout_ns,
                        [this, peer, attempt = ++p.attempt, alive = std::weak_ptr<bool>(alive_)] {
                          if (alive.lock()) time_out_connect(peer, attempt);
                        });
  p.state = State::kConnecting;
  p.address = std::move(address);
  if (self_ < peer) open_link(peer, p.address);
}

void MessageFabric::begin_again(PeerId id, Peer& peer) {
  peer.state = State::kIdle;
  peer.messages = std::make_unique<MessageTable>(id, id == self_, context_);
}

void MessageFabric::time_out_connect(PeerId peer, uint64_t attempt) {
  Peer& p = peer_of(peer);
  if (p.state != State::kConnecting || p.attempt != attempt) return;
  p.state = State::kIdle;
  const Status why =
      make_status(Code::kTimeout, fmt::format("no connection with peer {} in time", peer));
  for (const ConnectDone& done : std::exchange(p.waiting, {})) done(why);
}

void MessageFabric::open_failed(PeerId peer, const Status& why, bool gone) {
  if (gone) {
    lose(peer, why, false);
  } else {
    open_again_later(peer);
  }
}

void MessageFabric::open_again_later(PeerId peer) {
  progress_->post_after(kOpenAgainNs, [this, peer, alive = std::weak_ptr<bool>(alive_)] {
    if (!alive.lock()) return;
    Peer& p = peer_of(peer);
    if (p.state == State::kConnecting) open_link(peer, p.address);
  });
}

void MessageFabric::link_opened(std::unique_ptr<Link> link, std::optional<PeerId> expected) {
  SGA_CHECK(options_.keyed_hash != nullptr, "links between processes need a keyed hash");
  if (!expected) {
    const auto num_strangers = std::count_if(guests_.begin(), guests_.end(),
                                             [](const auto& g) { return !g.second.expected; });
    if (static_cast<size_t>(num_strangers) >= options_.max_unproved_links) evict_oldest_guest();
  }
  Link* raw = link.get();
  raw->set_handler(this);
  const auto role = expected ? Handshake::Role::kInitiator : Handshake::Role::kAcceptor;
  Guest guest{std::move(link),
              Handshake(role, self_, expected, options_.secret, *options_.keyed_hash),
              expected,
              num_guests_ever_++,
              progress_->now_ns() + options_.handshake_timeout_ns,
              std::nullopt};
  Guest& kept = guests_.emplace(raw, std::move(guest)).first->second;
  sweep_guests_later();
  send_to_guest(kept, kept.handshake.hello());
}

// One timer for all guests: a timer each would let a flood of strangers pile up timers.
void MessageFabric::sweep_guests_later() {
  if (sweep_posted_ || guests_.empty()) return;
  sweep_posted_ = true;
  int64_t due_ns = guests_.begin()->second.due_ns;
  for (const auto& [link, guest] : guests_) due_ns = std::min(due_ns, guest.due_ns);
  progress_->post_after(due_ns - progress_->now_ns(), [this, alive = std::weak_ptr<bool>(alive_)] {
    if (alive.lock()) sweep_guests();
  });
}

void MessageFabric::sweep_guests() {
  sweep_posted_ = false;
  std::vector<Link*> late;
  for (const auto& [link, guest] : guests_) {
    if (guest.due_ns <= progress_->now_ns()) late.push_back(link);
  }
  for (Link* link : late) refuse_guest(*link, make_status(Code::kTimeout, "no proof in time"));
  sweep_guests_later();
}

void MessageFabric::evict_oldest_guest() {
  Guest* oldest = nullptr;
  for (auto& [link, guest] : guests_) {
    if (guest.expected) continue;
    if (oldest == nullptr || guest.number < oldest->number) oldest = &guest;
  }
  refuse_guest(*oldest->link, make_status(Code::kOverloaded, "too many links without a proof"));
}

void MessageFabric::send_to_guest(Guest& guest, const Handshake::Frame& frame) {
  FrameHeader header;
  header.kind = frame.kind;
  header.payload_bytes = static_cast<uint32_t>(frame.payload.size());
  if (guest.link->try_send(header, frame.payload)) {
    guest.link->flush();
  } else {
    guest.unsent = frame;
  }
}

void MessageFabric::guest_frame(Guest& guest, const FrameHeader& header,
                                std::span<const std::byte> payload) {
  Link& link = *guest.link;
  auto answer = guest.handshake.on_frame(header.kind, payload);
  if (!answer.ok()) return refuse_guest(link, answer.status());
  if (*answer) send_to_guest(guest, **answer);
  if (!guest.handshake.done()) return;
  const PeerId peer = guest.handshake.peer();
  std::unique_ptr<Link> admitted = std::move(guest.link);
  guests_.erase(&link);
  admit(peer, std::move(admitted));
}

void MessageFabric::refuse_guest(Link& link, const Status& why) {
  const auto it = guests_.find(&link);
  if (it == guests_.end()) return;
  const std::optional<PeerId> expected = it->second.expected;
  std::unique_ptr<Link> refused = std::move(it->second.link);
  guests_.erase(it);
  refused->close();
  retire(std::move(refused));
  // Who opened the link tries again: a flood of strangers may have pushed it out at the other end.
  if (expected) {
    open_again_later(*expected);
  } else {
    count_refused(why);
  }
}

void MessageFabric::count_refused(const Status& why) {
  // A line at each power of two: a flood fills no disk.
  const auto count = static_cast<uint64_t>(++context_.stats.refused_links);
  if (std::has_single_bit(count)) {
    log::info("data plane of process {}: {} links refused, the last one: {}", self_, count,
              why.message());
  }
}

void MessageFabric::link_trusted(PeerId peer, std::unique_ptr<Link> link) {
  admit(peer, std::move(link));
}

void MessageFabric::admit(PeerId peer, std::unique_ptr<Link> link) {
  Peer& p = peer_of(peer);
  if (p.barred) {
    link->close();
    retire(std::move(link));
    count_refused(make_status(Code::kCancelled, fmt::format("peer {} again", peer)));
    return;
  }
  // It has proved itself, so it has lost the link that this side may hold still.
  if (p.state == State::kOpen) {
    lose(peer, make_status(Code::kDisconnected, fmt::format("peer {} begins again", peer)), true);
  }
  if (p.state == State::kGone) begin_again(peer, p);
  link->set_proved();
  if (!options_.faults.empty()) {
    link = std::make_unique<FaultyLink>(std::move(link), self_, peer, options_.faults, *progress_);
  }
  link->set_handler(this);
  peer_of_link_[link.get()] = peer;
  p.link = std::move(link);
  p.state = State::kOpen;
  p.messages->open(p.link.get());
  ++context_.stats.open_peers;
  beat_later();
  for (const ConnectDone& done : std::exchange(p.waiting, {})) done({});
}

void MessageFabric::beat_later() {
  if (options_.beat_ns <= 0 || std::exchange(beat_posted_, true)) return;
  progress_->post_after(options_.beat_ns, [this, alive = std::weak_ptr<bool>(alive_)] {
    if (alive.lock()) beat();
  });
}

void MessageFabric::beat() {
  beat_posted_ = false;
  bool any = false;
  for (auto& [id, peer] : peers_) {
    if (peer.state != State::kOpen) continue;
    any = true;
    if (const Status s = peer.messages->beat(progress_->now_ns()); !s.ok()) {
      log::warn("{}", s.message());
      lose(id, s, true);
    }
  }
  if (any) beat_later();
}

// Frames and ends.

void MessageFabric::on_frame(Link& link, const FrameHeader& header,
                             std::span<const std::byte> payload) {
  if (const auto peer = peer_of_link_.find(&link); peer != peer_of_link_.end()) {
    const PeerId id = peer->second;
    if (Status s = peers_[id].messages->on_frame(header, payload); !s.ok()) {
      log::warn("{}", s.message());
      lose(id, s, true);
    }
    return;
  }
  if (const auto guest = guests_.find(&link); guest != guests_.end()) {
    guest_frame(guest->second, header, payload);
  }
}

std::span<std::byte> MessageFabric::place_for(Link& link, const FrameHeader& header) {
  const auto peer = peer_of_link_.find(&link);
  if (peer == peer_of_link_.end()) return {};
  return peers_[peer->second].messages->place_for(header);
}

void MessageFabric::on_writable(Link& link) {
  if (const auto peer = peer_of_link_.find(&link); peer != peer_of_link_.end()) {
    peers_[peer->second].messages->pump();
  } else if (const auto guest = guests_.find(&link); guest != guests_.end()) {
    if (const auto frame = std::exchange(guest->second.unsent, std::nullopt)) {
      send_to_guest(guest->second, *frame);
    }
  }
}

void MessageFabric::on_closed(Link& link, const Status& why) {
  if (const auto peer = peer_of_link_.find(&link); peer != peer_of_link_.end()) {
    lose(peer->second, why, true);
  } else {
    refuse_guest(link, why);
  }
}

void MessageFabric::abort_peer(PeerId peer, const Status& why) {
  run_inside([this, peer, message = why.message()] {
    peer_of(peer).barred = true;
    lose(peer, make_status(Code::kCancelled, message), false);
  });
}

void MessageFabric::lose(PeerId peer, const Status& reason, bool tell) {
  // Whatever broke it, to those who use it the link is gone.
  const Status why = reason.code() == Code::kCancelled
                         ? reason
                         : make_status(Code::kDisconnected, reason.message());
  Peer& p = peer_of(peer);
  if (p.state == State::kGone) return;
  if (p.state == State::kOpen) --context_.stats.open_peers;
  p.state = State::kGone;
  if (p.link) {
    peer_of_link_.erase(p.link.get());
    p.link->close();
    retire(std::move(p.link));
  }
  p.messages->fail(why);
  for (const ConnectDone& done : std::exchange(p.waiting, {})) done(why);
  if (!tell) return;
  for (const PeerLost& observer : std::vector<PeerLost>(peer_lost_)) observer(peer, why);
}

void MessageFabric::retire(std::unique_ptr<Link> link) {
  // The link may be the one whose callback we are in. It is kept here rather than in the task: a
  // loop that is stopping drops tasks at once.
  retired_.push_back(std::move(link));
  if (retired_.size() > 1) return;
  progress_->post([this, alive = std::weak_ptr<bool>(alive_)] {
    if (!alive.lock()) return;
    // A link's end may move other links on, which may retire meanwhile.
    const auto gone = std::exchange(retired_, {});
  });
}

void MessageFabric::fence(Generation generation) {
  run_inside([this, generation] {
    if (generation <= context_.fence) return;
    context_.fence = generation;
    for (auto& [id, peer] : peers_) {
      if (peer.messages) peer.messages->drop_stale();
    }
  });
}

void MessageFabric::add_peer_lost(PeerLost observer) {
  run_inside([this, observer = std::move(observer)]() mutable {
    peer_lost_.push_back(std::move(observer));
  });
}

}  // namespace sgactor::transport
