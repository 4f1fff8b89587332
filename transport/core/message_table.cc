#include "transport/core/message_table.h"

#include "graph/base/hash.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace sgactor::transport {
namespace {

// The checksum of a large payload costs a third of an all-reduce on loopback and more.
constexpr size_t kCheckedOnWires = size_t{64} << 10;

Status cancelled() { return make_status(Code::kCancelled, "transfer cancelled"); }

Status sizes_differ(uint64_t sent, uint64_t received) {
  return invalid_argument(
      fmt::format("a message of {} bytes meets a receive of {} bytes", sent, received));
}

uint64_t checksum_of(FrameHeader header, std::span<const std::byte> payload) {
  header.checksum = 0;
  const uint64_t of_header = hash64(std::as_bytes(std::span(&header, 1)));
  // 0 says that there is none.
  return std::max<uint64_t>(hash64(payload, of_header), 1);
}

}  // namespace

void MessageContext::complete(TransferSink* sink, uint64_t token, Status status) {
  completions_.push_back({sink, token, std::move(status)});
  if (scheduled_) return;
  scheduled_ = true;
  progress_.post([this, alive = std::weak_ptr<bool>(alive_)] {
    if (alive.lock()) deliver();
  });
}

void MessageContext::deliver() {
  scheduled_ = true;  // what the sinks queue is delivered by this loop
  while (!completions_.empty()) {
    const Completion next = std::move(completions_.front());
    completions_.pop_front();
    next.sink->on_transfer(next.token, next.status);
  }
  scheduled_ = false;
}

Status MessageTable::check_post(const Tag& tag) const {
  if (!failure_.ok()) return failure_;
  if (tag.generation < context_.fence) return cancelled();
  if (!is_self_ && link_ == nullptr) {
    return make_status(Code::kDisconnected, fmt::format("peer {} is not connected", peer_));
  }
  return {};
}

MessageTable::Transfers::iterator MessageTable::add(const Tag& tag, bool is_send,
                                                    const std::byte* data, size_t bytes,
                                                    uint64_t token, TransferSink& sink) {
  Transfer transfer;
  transfer.tag = tag;
  transfer.is_send = is_send;
  transfer.data = const_cast<std::byte*>(data);  // NOLINT: a send only reads it
  transfer.bytes = bytes;
  transfer.token = token;
  transfer.sink = &sink;
  return transfers_.emplace(context_.next_id++, transfer).first;
}

TransferId MessageTable::post_send(const Tag& tag, std::span<const std::byte> bytes, uint64_t token,
                                   TransferSink& sink) {
  const auto it = add(tag, true, bytes.data(), bytes.size(), token, sink);
  const TransferId id = it->first;
  if (Status s = check_post(tag); !s.ok()) {
    finish(it, s);
  } else if (sends_.contains(tag)) {
    finish(it, invalid_argument("a send of this tag is posted already"));
  } else if (is_self_) {
    start_self_send(it);
  } else {
    start_send(it);
    pump();
  }
  return id;
}

TransferId MessageTable::post_recv(const Tag& tag, std::span<std::byte> bytes, uint64_t token,
                                   TransferSink& sink) {
  return post_recv(add(tag, false, bytes.data(), bytes.size(), token, sink));
}

TransferId MessageTable::post_recv_to(const Tag& tag, size_t bytes, uint64_t token,
                                      TransferSink& sink, PayloadSink& payload) {
  const auto it = add(tag, false, nullptr, bytes, token, sink);
  it->second.payload = &payload;
  return post_recv(it);
}

TransferId MessageTable::post_recv(Transfers::iterator it) {
  const TransferId id = it->first;
  const Tag tag = it->second.tag;
  if (Status s = check_post(tag); !s.ok()) {
    finish(it, s);
  } else if (receives_.contains(tag)) {
    finish(it, invalid_argument("a receive of this tag is posted already"));
  } else if (is_self_) {
    start_self_recv(it);
  } else {
    start_recv(it);
    pump();
  }
  return id;
}

void MessageTable::finish(Transfers::iterator it, Status status) {
  const TransferId id = it->first;
  const Transfer transfer = it->second;
  transfers_.erase(it);
  auto& posted = transfer.is_send ? sends_ : receives_;
  if (const auto p = posted.find(transfer.tag); p != posted.end() && p->second == id) {
    posted.erase(p);
  }
  if (transfer.streaming) stop_streaming(id);
  if (id == lent_ || id == filling_) {
    // It ends early: its memory is its owner's from now on.
    if (link_ != nullptr && id == lent_) link_->keep_lent();
    if (link_ != nullptr && id == filling_) link_->forget_place();
    (id == lent_ ? lent_ : filling_) = 0;
  }
  if (transfer.is_send && transfer.bytes <= context_.options.eager_bytes && !status.ok()) {
    std::erase_if(control_, [id](const Control& c) { return c.eager == id; });
  }
  if (status.ok()) {
    ++(transfer.is_send ? context_.stats.messages_sent : context_.stats.messages_received);
    (transfer.is_send ? context_.stats.bytes_sent : context_.stats.bytes_received) +=
        static_cast<int64_t>(transfer.bytes);
  }
  context_.complete(transfer.sink, transfer.token, std::move(status));
}

void MessageTable::stop_streaming(TransferId id) {
  // The front one's turn ends with it.
  if (!streaming_.empty() && streaming_.front() == id) turn_bytes_ = 0;
  std::erase(streaming_, id);
}

void MessageTable::deliver(Transfer& recv, std::span<const std::byte> bytes) {
  constexpr uintptr_t kAlignment = 16;
  const size_t offset = std::exchange(recv.offset, recv.offset + bytes.size());
  if (bytes.empty()) return;
  if (recv.payload == nullptr) {
    // Equal where the link has put them there already.
    if (bytes.data() != recv.data + offset) {
      std::memmove(recv.data + offset, bytes.data(), bytes.size());
    }
    return;
  }
  if (reinterpret_cast<uintptr_t>(bytes.data()) % kAlignment != 0) {
    aligned_.assign(bytes.begin(), bytes.end());
    bytes = aligned_;
  }
  recv.payload->on_payload(recv.token, offset, bytes);
}

void MessageTable::cancel(TransferId id) {
  if (const auto it = transfers_.find(id); it != transfers_.end()) finish(it, cancelled());
}

// Both ends in this process.

void MessageTable::start_self_send(Transfers::iterator it) {
  const auto recv = receives_.find(it->second.tag);
  if (recv == receives_.end()) {
    sends_.emplace(it->second.tag, it->first);
  } else {
    join_self(it, transfers_.find(recv->second));
  }
}

void MessageTable::start_self_recv(Transfers::iterator it) {
  const auto send = sends_.find(it->second.tag);
  if (send == sends_.end()) {
    receives_.emplace(it->second.tag, it->first);
  } else {
    join_self(transfers_.find(send->second), it);
  }
}

void MessageTable::join_self(Transfers::iterator send, Transfers::iterator recv) {
  Status status;
  if (send->second.bytes != recv->second.bytes) {
    status = sizes_differ(send->second.bytes, recv->second.bytes);
  } else {
    deliver(recv->second, {send->second.data, send->second.bytes});
  }
  finish(send, status);
  finish(recv, status);
}

// Towards the peer.

void MessageTable::start_send(Transfers::iterator it) {
  const Transfer& send = it->second;
  if (send.bytes <= context_.options.eager_bytes) {
    queue_control(FrameKind::kEager, send.tag, 0, 0, it->first);
    return;
  }
  const auto ready = readies_.find(send.tag);
  if (ready == readies_.end()) {
    sends_.emplace(send.tag, it->first);
    queue_control(FrameKind::kAnnounce, send.tag, send.bytes, 0);
    return;
  }
  const Ready found = ready->second;
  readies_.erase(ready);
  begin_streaming(it, found);
}

void MessageTable::begin_streaming(Transfers::iterator it, const Ready& ready) {
  Transfer& send = it->second;
  if (ready.bytes != send.bytes) {
    queue_control(FrameKind::kAnnounce, send.tag, send.bytes, 0);  // so that the receive ends too
    finish(it, sizes_differ(send.bytes, ready.bytes));
    return;
  }
  send.receive_id = ready.receive_id;
  send.streaming = true;
  streaming_.push_back(it->first);
}

void MessageTable::start_recv(Transfers::iterator it) {
  Transfer& recv = it->second;
  if (const auto found = unexpected_.find(recv.tag); found != unexpected_.end()) {
    const std::vector<std::byte> payload = std::move(found->second);
    unexpected_.erase(found);
    unexpected_bytes_ -= payload.size();
    Status status;
    if (payload.size() != recv.bytes) {
      status = sizes_differ(payload.size(), recv.bytes);
    } else {
      deliver(recv, payload);
    }
    finish(it, status);
    return;
  }
  if (const auto found = announced_.find(recv.tag); found != announced_.end()) {
    const uint64_t bytes = found->second;
    announced_.erase(found);
    if (bytes != recv.bytes) {
      queue_control(FrameKind::kRefused, recv.tag, recv.bytes, 0);
      finish(it, sizes_differ(bytes, recv.bytes));
      return;
    }
  }
  receives_.emplace(recv.tag, it->first);
  if (recv.bytes > context_.options.eager_bytes) {
    queue_control(FrameKind::kReady, recv.tag, recv.bytes, it->first);
  }
}

void MessageTable::queue_control(FrameKind kind, const Tag& tag, uint64_t value,
                                 uint64_t receive_id, TransferId eager) {
  Control control;
  control.header.kind = kind;
  control.header.tag = tag;
  control.header.value = value;
  control.header.receive_id = receive_id;
  control.eager = eager;
  control_.push_back(control);
}

void MessageTable::open(Link* link) {
  SGA_CHECK(link_ == nullptr && failure_.ok(), "a peer has one link in its life");
  link_ = link;
  const FrameCheck check = context_.options.check_frames;
  checks_frames_ = check == FrameCheck::kAll || (check == FrameCheck::kWires && !link->in_memory());
}

Status MessageTable::beat(int64_t now_ns) {
  if (link_ == nullptr) return {};
  if (next_received_ != heard_ || transfers_.empty() || heard_ns_ == 0) heard_ns_ = now_ns;
  heard_ = next_received_;
  if (now_ns - heard_ns_ >= context_.options.silent_after_ns) {
    return make_status(Code::kTimeout, fmt::format("peer {}: nothing has come for {} ms", peer_,
                                                   (now_ns - heard_ns_) / 1'000'000));
  }
  const bool due = next_sent_ != marked_ || now_ns - marked_ns_ >= context_.options.mark_after_ns;
  if (!due || mark_queued_) return {};
  mark_queued_ = true;
  marked_ns_ = now_ns;
  queue_control(FrameKind::kMark, {}, 0, 0);
  pump();
  return {};
}

void MessageTable::pump() {
  settle_lent();
  while (link_ != nullptr) {
    if (!control_.empty()) {
      if (!send_control()) break;
    } else if (!streaming_.empty()) {
      if (!send_chunk()) break;
    } else {
      break;
    }
  }
  if (link_ != nullptr) link_->flush();
}

void MessageTable::settle_lent() {
  if (lent_ == 0 || link_ == nullptr || link_->is_lent()) return;
  const auto it = transfers_.find(std::exchange(lent_, 0));
  if (it->second.offset == it->second.bytes) finish(it, {});
}

std::span<const std::byte> MessageTable::checked(std::span<const std::byte> payload) const {
  const bool whole = context_.options.check_frames == FrameCheck::kAll;
  return whole || payload.size() <= kCheckedOnWires ? payload : std::span<const std::byte>();
}

bool MessageTable::send_frame(FrameHeader header, std::span<const std::byte> payload) {
  header.sequence = next_sent_;
  header.payload_bytes = static_cast<uint32_t>(payload.size());
  if (checks_frames_) header.checksum = checksum_of(header, checked(payload));
  const bool taken = header.kind == FrameKind::kData ? link_->try_lend(header, payload)
                                                     : link_->try_send(header, payload);
  if (!taken) return false;
  ++next_sent_;
  if (header.kind == FrameKind::kMark) {
    mark_queued_ = false;
    marked_ = next_sent_;
  }
  return true;
}

bool MessageTable::send_control() {
  const Control control = control_.front();
  const auto eager = transfers_.find(control.eager);
  std::span<const std::byte> payload;
  if (eager != transfers_.end()) payload = {eager->second.data, eager->second.bytes};
  if (!send_frame(control.header, payload)) return false;
  control_.pop_front();
  if (eager != transfers_.end()) finish(eager, {});
  return true;
}

bool MessageTable::send_chunk() {
  if (lent_ != 0) return false;
  const auto it = transfers_.find(streaming_.front());
  Transfer& send = it->second;
  FrameHeader header;
  header.kind = FrameKind::kData;
  header.tag = send.tag;
  header.value = send.offset;
  header.receive_id = send.receive_id;
  const size_t chunk = std::min(link_->max_payload(), send.bytes - send.offset);
  if (!send_frame(header, {send.data + send.offset, chunk})) return false;
  send.offset += chunk;
  turn_bytes_ += chunk;
  if (link_->is_lent()) lent_ = it->first;
  if (send.offset == send.bytes) {
    if (lent_ == it->first) {
      // It ends when the link has read it all.
      stop_streaming(it->first);
      send.streaming = false;
    } else {
      finish(it, {});
    }
  } else if (turn_bytes_ >= context_.options.turn_bytes) {
    streaming_.push_back(streaming_.front());
    streaming_.pop_front();
    turn_bytes_ = 0;
  }
  return true;
}

// From the peer.

Status MessageTable::on_frame(const FrameHeader& header, std::span<const std::byte> payload) {
  if (header.sequence < next_received_) {
    ++context_.stats.duplicate_frames;
    return {};
  }
  if (header.sequence > next_received_) {
    return corruption(fmt::format("peer {}: frame {} came instead of frame {}", peer_,
                                  header.sequence, next_received_));
  }
  ++next_received_;
  if (header.checksum != 0 && header.checksum != checksum_of(header, checked(payload))) {
    return corruption(fmt::format("peer {}: wrong checksum of frame {}", peer_, header.sequence));
  }
  if (header.kind == FrameKind::kMark) return {};
  if (header.tag.generation < context_.fence) {
    ++context_.stats.stale_frames;
    return {};
  }
  Status status;
  switch (header.kind) {
    case FrameKind::kEager:
      status = on_eager(header, payload);
      break;
    case FrameKind::kAnnounce:
      status = on_announce(header);
      break;
    case FrameKind::kReady:
      status = on_ready(header);
      break;
    case FrameKind::kData:
      status = on_data(header, payload);
      break;
    case FrameKind::kRefused:
      status = on_refused(header);
      break;
    default:
      status = corruption(fmt::format("peer {}: frame of unknown kind {}", peer_,
                                      static_cast<uint32_t>(header.kind)));
  }
  pump();
  return status;
}

Status MessageTable::on_eager(const FrameHeader& header, std::span<const std::byte> payload) {
  const auto posted = receives_.find(header.tag);
  if (posted == receives_.end()) {
    unexpected_bytes_ += payload.size();
    if (unexpected_bytes_ > context_.options.max_unexpected_bytes) {
      return make_status(Code::kOverloaded,
                         fmt::format("peer {}: too many messages that nobody asks for", peer_));
    }
    if (!unexpected_.try_emplace(header.tag, payload.begin(), payload.end()).second) {
      return corruption(fmt::format("peer {}: two messages of one tag", peer_));
    }
    return {};
  }
  const auto it = transfers_.find(posted->second);
  if (it->second.bytes != payload.size()) {
    finish(it, sizes_differ(payload.size(), it->second.bytes));
    return {};
  }
  deliver(it->second, payload);
  finish(it, {});
  return {};
}

Status MessageTable::on_announce(const FrameHeader& header) {
  const auto posted = receives_.find(header.tag);
  if (posted == receives_.end()) {
    announced_[header.tag] = header.value;
    return {};
  }
  const auto it = transfers_.find(posted->second);
  if (it->second.bytes != header.value) {
    queue_control(FrameKind::kRefused, header.tag, it->second.bytes, 0);
    finish(it, sizes_differ(header.value, it->second.bytes));
  }
  return {};
}

Status MessageTable::on_ready(const FrameHeader& header) {
  const Ready ready{header.receive_id, header.value};
  const auto posted = sends_.find(header.tag);
  if (posted == sends_.end()) {
    readies_[header.tag] = ready;
    return {};
  }
  const auto it = transfers_.find(posted->second);
  sends_.erase(posted);
  begin_streaming(it, ready);
  return {};
}

std::span<std::byte> MessageTable::place_for(const FrameHeader& header) {
  // A payload that is not the next one is looked at before it may land. One with a wrong checksum
  // ends the link, and with it the receive whose memory it has spoilt.
  if (header.kind != FrameKind::kData || header.sequence != next_received_ ||
      header.tag.generation < context_.fence) {
    return {};
  }
  const auto it = transfers_.find(header.receive_id);
  if (it == transfers_.end() || it->second.is_send || it->second.payload != nullptr) return {};
  const Transfer& recv = it->second;
  if (recv.tag != header.tag || header.value != recv.offset ||
      header.payload_bytes > recv.bytes - recv.offset) {
    return {};
  }
  filling_ = it->first;
  return {recv.data + recv.offset, header.payload_bytes};
}

Status MessageTable::on_data(const FrameHeader& header, std::span<const std::byte> payload) {
  filling_ = 0;
  const auto it = transfers_.find(header.receive_id);
  if (it == transfers_.end()) {
    ++context_.stats.stale_frames;  // of a cancelled receive
    return {};
  }
  Transfer& recv = it->second;
  if (recv.is_send || recv.tag != header.tag || header.value != recv.offset ||
      payload.size() > recv.bytes - recv.offset) {
    return corruption(fmt::format("peer {}: data that nobody asked for", peer_));
  }
  deliver(recv, payload);
  if (recv.offset == recv.bytes) finish(it, {});
  return {};
}

Status MessageTable::on_refused(const FrameHeader& header) {
  if (const auto posted = sends_.find(header.tag); posted != sends_.end()) {
    const auto it = transfers_.find(posted->second);
    finish(it, sizes_differ(it->second.bytes, header.value));
  }
  return {};
}

// Ends.

void MessageTable::fail(const Status& why) {
  if (failure_.ok()) failure_ = why;
  link_ = nullptr;  // closed already: it reads and writes nothing of ours any more
  std::vector<TransferId> ended;
  for (const auto& [id, transfer] : transfers_) ended.push_back(id);
  std::sort(ended.begin(), ended.end());
  for (const TransferId id : ended) finish(transfers_.find(id), failure_);
  readies_.clear();
  announced_.clear();
  unexpected_.clear();
  unexpected_bytes_ = 0;
  control_.clear();
  streaming_.clear();
}

void MessageTable::drop_stale() {
  const auto stale = [this](const Tag& tag) { return tag.generation < context_.fence; };
  std::vector<TransferId> ended;
  for (const auto& [id, transfer] : transfers_) {
    if (stale(transfer.tag)) ended.push_back(id);
  }
  std::sort(ended.begin(), ended.end());  // so that a simulation sees the order of posting
  for (const TransferId id : ended) cancel(id);
  std::erase_if(readies_, [&](const auto& entry) { return stale(entry.first); });
  std::erase_if(announced_, [&](const auto& entry) { return stale(entry.first); });
  std::erase_if(unexpected_, [&](const auto& entry) {
    if (stale(entry.first)) unexpected_bytes_ -= entry.second.size();
    return stale(entry.first);
  });
}

}  // namespace sgactor::transport
