#pragma once
#include "transport/core/link.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace sgactor::transport {

/// One direction of a link in shared memory: a ring of frames with one writer and one reader, who
/// may be in different processes. All zero bytes is a valid empty ring.
struct ShmRingMemory {
  static constexpr size_t kCapacity = size_t{1} << 20;
  static constexpr size_t kMaxPayload = size_t{64} << 10;

  alignas(64) std::atomic<uint64_t> written;  ///< bytes, ever
  alignas(64) std::atomic<uint64_t> read;     ///< bytes, ever
  alignas(64) std::atomic<uint32_t> reader_sleeps;
  alignas(64) std::atomic<uint32_t> writer_sleeps;
  alignas(64) std::byte data[kCapacity];
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

/// The writer's view. One thread.
class ShmRingWriter {
 public:
  explicit ShmRingWriter(ShmRingMemory* ring) : ring_(ring) {}
  /// Copies a frame into the ring; false if there is no room. Pre: payload <= kMaxPayload.
  bool try_write(const FrameHeader& header, std::span<const std::byte> payload);
  /// After a write: whether the reader sleeps and must be woken. Says so once a sleep.
  bool take_reader_sleeps();
  /// Whether the frame refused last would have room now.
  [[nodiscard]] bool has_wanted_room() const { return has_room(wanted_bytes_); }
  /// Announces that we sleep until there is that room; false (and we do not) if there is.
  bool sleep();
  void wake();

 private:
  [[nodiscard]] bool has_room(size_t payload_bytes) const;
  ShmRingMemory* ring_;
  uint64_t written_ = 0;
  size_t wanted_bytes_ = 0;
  bool asleep_ = false;
};

/// The reader's view. One thread. Trusts nothing that the ring says.
class ShmRingReader {
 public:
  struct Frame {
    FrameHeader header;
    std::span<const std::byte> payload;  ///< in the ring, until release()
  };
  explicit ShmRingReader(ShmRingMemory* ring) : ring_(ring) {}
  /// The next frame, if there is one. Errors: kCorruption: the writer broke the ring's rules.
  Result<std::optional<Frame>> next();
  /// Gives the room of the last frame back. Returns whether the writer must be woken.
  bool release();
  /// Announces that we sleep; false (and it does not) if there is something to read.
  bool sleep();
  void wake();
  [[nodiscard]] bool empty() const;

 private:
  ShmRingMemory* ring_;
  uint64_t read_ = 0;
  uint64_t end_of_frame_ = 0;
  bool asleep_ = false;
};

}  // namespace sgactor::transport
