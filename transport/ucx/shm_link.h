#pragma once
#include "transport/core/event_loop.h"
#include "transport/core/link.h"
#include "transport/ucx/owned_fd.h"
#include "transport/ucx/shm_ring.h"

#include <cstddef>
#include <memory>

namespace sgactor::transport {

/// Two rings in memory that two processes of one host share, and a connected Unix socket between
/// them. The socket wakes a side that sleeps, and says at once when the other process is gone,
/// however it died.
class ShmLink final : public Link, private Poller {
 public:
  enum class Side : int { kInitiator = 0, kAcceptor };

  /// A sealed anonymous file of the right size, to be handed to the acceptor.
  static Result<OwnedFd> create_memory();
  /// `socket`: connected, non-blocking. Errors: kCorruption if `memory` is not what create_memory
  /// makes (size, seals: a shared file that can shrink would kill its readers).
  static Result<std::unique_ptr<ShmLink>> create(Side side, OwnedFd socket, OwnedFd memory,
                                                 EventLoop& loop);
  ~ShmLink() override;

  [[nodiscard]] bool in_memory() const override { return true; }
  [[nodiscard]] size_t max_payload() const override { return ShmRingMemory::kMaxPayload; }
  bool try_send(const FrameHeader& header, std::span<const std::byte> payload) override;
  void close() override;

 private:
  ShmLink(Side side, OwnedFd socket, ShmRingMemory* rings, EventLoop& loop);
  bool poll() override;
  bool arm() override;
  void on_socket();
  bool read_frames(int limit);
  void ring_bell();
  void end(const Status& why);

  OwnedFd socket_;
  ShmRingMemory* rings_;  // two, mapped
  ShmRingWriter writer_;
  ShmRingReader reader_;
  EventLoop& loop_;
  bool refused_ = false;
  bool closed_ = false;
};

}  // namespace sgactor::transport
