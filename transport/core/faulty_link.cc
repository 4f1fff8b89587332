#include "transport/core/faulty_link.h"

#include "graph/base/philox.h"

#include <algorithm>
#include <utility>

namespace sgactor::transport {
namespace {

constexpr size_t kMaxHeldBytes = size_t{16} << 20;

bool of_handshake(const FrameHeader& header) {
  return header.kind == FrameKind::kHello || header.kind == FrameKind::kProof;
}

}  // namespace

void LinkFaults::arm(PeerId peer, const Fault& fault) {
  const std::lock_guard lock(mutex_);
  armed_[peer].push_back(fault);
  used_ = true;
}

void LinkFaults::cut(PeerId peer, int64_t until_ns) {
  const std::lock_guard lock(mutex_);
  cut_until_ns_[peer] = until_ns;
  used_ = true;
}

bool LinkFaults::any(PeerId peer) const {
  if (!used_.load(std::memory_order_relaxed)) return false;
  const std::lock_guard lock(mutex_);
  return armed_.contains(peer) || cut_until_ns_.contains(peer);
}

std::optional<LinkFaults::Fault> LinkFaults::take(PeerId peer) {
  const std::lock_guard lock(mutex_);
  const auto it = armed_.find(peer);
  if (it == armed_.end()) return std::nullopt;
  if (it->second.front().skip > 0) {
    --it->second.front().skip;
    return std::nullopt;
  }
  const Fault fault = it->second.front();
  it->second.pop_front();
  if (it->second.empty()) armed_.erase(it);
  return fault;
}

bool LinkFaults::is_cut(PeerId peer, int64_t now_ns) const {
  if (!used_.load(std::memory_order_relaxed)) return false;
  const std::lock_guard lock(mutex_);
  const auto it = cut_until_ns_.find(peer);
  return it != cut_until_ns_.end() && now_ns < it->second;
}

FaultyLink::FaultyLink(std::unique_ptr<Link> inner, PeerId self, PeerId peer, FaultScript script,
                       Progress& progress)
    : inner_(std::move(inner)),
      self_(self),
      peer_(peer),
      script_(std::move(script)),
      progress_(progress) {
  inner_->set_handler(this);
}

FaultyLink::~FaultyLink() = default;

bool FaultyLink::try_send(const FrameHeader& header, std::span<const std::byte> payload) {
  if (closed_) return true;
  if (of_handshake(header)) return inner_->try_send(header, payload);
  if (passes()) {
    if (!inner_->try_send(header, payload)) return false;
    ++num_frames_;
    return true;
  }
  if (held_bytes_ > kMaxHeldBytes) {
    refused_ = true;
    return false;
  }
  const uint64_t frame = num_frames_++;
  int64_t delay_ns = 0;
  if (script_.max_random_delay_ns > 0) {
    const PhiloxStream random{script_.seed, static_cast<uint64_t>(self_) << 32 | peer_};
    delay_ns = static_cast<int64_t>(
        random.below(frame, static_cast<uint64_t>(script_.max_random_delay_ns)));
  }
  FrameHeader sent = header;
  std::vector<std::byte> bytes(payload.begin(), payload.end());
  int num_copies = is_cut() ? 0 : 1;
  std::vector<LinkFaults::Fault> faults;
  for (const FaultScript::Rule& rule : script_.rules) {
    if (rule.peer == peer_ && rule.frame == frame) faults.push_back({rule.action, rule.delay_ns});
  }
  if (script_.live && !payload.empty()) {
    if (const auto fault = script_.live->take(peer_)) faults.push_back(*fault);
  }
  for (const LinkFaults::Fault& fault : faults) {
    switch (fault.action) {
      case FaultScript::Action::kDrop:
        num_copies = 0;
        break;
      case FaultScript::Action::kDuplicate:
        num_copies = 2;
        break;
      case FaultScript::Action::kCorrupt:
        if (!bytes.empty()) bytes[bytes.size() / 2] ^= std::byte{0x10};
        break;
      case FaultScript::Action::kDelay:
        delay_ns += fault.delay_ns;
        break;
      case FaultScript::Action::kDisconnect:
        disconnect();
        return true;
    }
  }
  for (int i = 0; i < num_copies; ++i) hold(sent, bytes, progress_.now_ns() + delay_ns);
  release();
  return true;
}

bool FaultyLink::try_lend(const FrameHeader& header, std::span<const std::byte> payload) {
  if (closed_ || !passes()) return try_send(header, payload);
  if (!inner_->try_lend(header, payload)) return false;
  ++num_frames_;
  return true;
}

bool FaultyLink::passes() const {
  return held_.empty() && script_.rules.empty() && script_.max_random_delay_ns == 0 &&
         !(script_.live && script_.live->any(peer_));
}

bool FaultyLink::is_cut() const {
  return script_.live && script_.live->is_cut(peer_, progress_.now_ns());
}

void FaultyLink::hold(const FrameHeader& header, std::span<const std::byte> payload,
                      int64_t due_ns) {
  last_due_ns_ = std::max(last_due_ns_, due_ns);  // frames of a link never overtake each other
  held_.push_back({last_due_ns_, header, {payload.begin(), payload.end()}});
  held_bytes_ += payload.size();
  const int64_t wait_ns = last_due_ns_ - progress_.now_ns();
  if (wait_ns <= 0) return;
  progress_.post_after(wait_ns, [this, alive = std::weak_ptr<bool>(alive_)] {
    if (alive.lock()) release();
  });
}

void FaultyLink::release() {
  const bool was_full = held_bytes_ > kMaxHeldBytes;
  while (!closed_ && !held_.empty() && held_.front().due_ns <= progress_.now_ns()) {
    if (!inner_->try_send(held_.front().header, held_.front().payload)) return;
    held_bytes_ -= held_.front().payload.size();
    held_.pop_front();
  }
  inner_->flush();
  if (was_full && refused_ && !closed_) {
    refused_ = false;
    progress_.post([this, alive = std::weak_ptr<bool>(alive_)] {
      if (alive.lock() && !closed_) handler_->on_writable(*this);
    });
  }
}

void FaultyLink::disconnect() {
  close();
  progress_.post([this, alive = std::weak_ptr<bool>(alive_)] {
    if (alive.lock()) {
      handler_->on_closed(*this, make_status(Code::kDisconnected, "disconnected by the script"));
    }
  });
}

void FaultyLink::close() {
  if (std::exchange(closed_, true)) return;
  held_.clear();
  held_bytes_ = 0;
  inner_->close();
}

void FaultyLink::on_frame(Link& /*link*/, const FrameHeader& header,
                          std::span<const std::byte> payload) {
  if (!closed_ && !is_cut()) handler_->on_frame(*this, header, payload);
}

std::span<std::byte> FaultyLink::place_for(Link& /*link*/, const FrameHeader& header) {
  if (closed_ || is_cut()) return {};
  return handler_->place_for(*this, header);
}

void FaultyLink::on_writable(Link& /*link*/) {
  release();
  if (!closed_) handler_->on_writable(*this);
}

void FaultyLink::on_closed(Link& /*link*/, const Status& why) {
  if (std::exchange(closed_, true)) return;
  handler_->on_closed(*this, why);
}

}  // namespace sgactor::transport
