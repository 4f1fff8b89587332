#include "transport/ucx/shm_ring.h"

#include <cstring>

namespace sgactor::transport {
namespace {

constexpr uint64_t kCapacity = ShmRingMemory::kCapacity;
constexpr size_t kHeaderBytes = sizeof(FrameHeader);
constexpr FrameKind kPad = FrameKind{0};  // the rest of the ring up to its end is unused

constexpr size_t frame_bytes(size_t payload) { return kHeaderBytes + (payload + 63) / 64 * 64; }

// A frame never wraps: bytes that it takes at `position`, with what is skipped before it.
constexpr size_t room_taken(uint64_t position, size_t bytes) {
  const size_t to_end = kCapacity - position % kCapacity;
  return bytes <= to_end ? bytes : to_end + bytes;
}

}  // namespace

bool ShmRingWriter::has_room(size_t payload_bytes) const {
  const size_t taken = room_taken(written_, frame_bytes(payload_bytes));
  return written_ + taken - ring_->read.load(std::memory_order_acquire) <= kCapacity;
}

bool ShmRingWriter::try_write(const FrameHeader& header, std::span<const std::byte> payload) {
  if (!has_room(payload.size())) {
    wanted_bytes_ = payload.size();
    return false;
  }
  const size_t bytes = frame_bytes(payload.size());
  const size_t to_end = kCapacity - written_ % kCapacity;
  if (bytes > to_end) {
    // Positions are multiples of 64, so a header always fits before the end.
    FrameHeader pad;
    pad.kind = kPad;
    std::memcpy(ring_->data + written_ % kCapacity, &pad, kHeaderBytes);
    written_ += to_end;
  }
  std::byte* at = ring_->data + written_ % kCapacity;
  std::memcpy(at, &header, kHeaderBytes);
  if (!payload.empty()) std::memcpy(at + kHeaderBytes, payload.data(), payload.size());
  written_ += bytes;
  // Sequentially consistent together with take_reader_sleeps and the reader's sleep: either the
  // reader sees the frame before it sleeps, or we see that it sleeps.
  ring_->written.store(written_, std::memory_order_seq_cst);
  return true;
}

bool ShmRingWriter::take_reader_sleeps() {
  return ring_->reader_sleeps.load(std::memory_order_seq_cst) != 0 &&
         ring_->reader_sleeps.exchange(0, std::memory_order_seq_cst) != 0;
}

bool ShmRingWriter::sleep() {
  ring_->writer_sleeps.store(1, std::memory_order_seq_cst);
  // A fence between the store and the load of `read`, against the reader's mirror image.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  asleep_ = true;
  if (!has_wanted_room()) return true;
  wake();
  return false;
}

void ShmRingWriter::wake() {
  if (!asleep_) return;
  asleep_ = false;
  ring_->writer_sleeps.store(0, std::memory_order_seq_cst);
}

Result<std::optional<ShmRingReader::Frame>> ShmRingReader::next() {
  while (true) {
    const uint64_t available = ring_->written.load(std::memory_order_acquire) - read_;
    if (available == 0) return std::optional<Frame>();
    if (available > kCapacity || available < kHeaderBytes) {
      return corruption("a ring with more bytes than it holds");
    }
    const std::byte* at = ring_->data + read_ % kCapacity;
    const size_t to_end = kCapacity - read_ % kCapacity;
    Frame frame;
    std::memcpy(&frame.header, at, kHeaderBytes);
    if (frame.header.kind == kPad) {
      if (available <= to_end) return corruption("a ring that ends in padding");
      read_ += to_end;
      continue;
    }
    if (frame.header.payload_bytes > ShmRingMemory::kMaxPayload) {
      return corruption("a frame larger than any");
    }
    const size_t bytes = frame_bytes(frame.header.payload_bytes);
    if (bytes > available || bytes > to_end) return corruption("a frame that is cut");
    frame.payload = {at + kHeaderBytes, frame.header.payload_bytes};
    end_of_frame_ = read_ + bytes;
    return std::optional(frame);
  }
}

bool ShmRingReader::release() {
  read_ = end_of_frame_;
  ring_->read.store(read_, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return ring_->writer_sleeps.load(std::memory_order_seq_cst) != 0 &&
         ring_->writer_sleeps.exchange(0, std::memory_order_seq_cst) != 0;
}

bool ShmRingReader::empty() const {
  return ring_->written.load(std::memory_order_acquire) == read_;
}

bool ShmRingReader::sleep() {
  ring_->reader_sleeps.store(1, std::memory_order_seq_cst);
  asleep_ = true;
  if (ring_->written.load(std::memory_order_seq_cst) == read_) return true;
  wake();
  return false;
}

void ShmRingReader::wake() {
  if (!asleep_) return;
  asleep_ = false;
  ring_->reader_sleeps.store(0, std::memory_order_seq_cst);
}

}  // namespace sgactor::transport
