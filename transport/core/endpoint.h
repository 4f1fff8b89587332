#pragma once
#include "graph/base/status.h"
#include "transport/core/tag.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace sgactor::transport {

/// Receives the end of a transfer: exactly once for each post, on the fabric's progress thread,
/// never from inside the post itself. From then on the transport does not touch the memory. May
/// post and cancel. Must return quickly.
class TransferSink {
 public:
  virtual ~TransferSink() = default;
  virtual void on_transfer(uint64_t token, const Status& status) noexcept = 0;
};

/// Takes the bytes of a receive as they come, in place of memory. Progress thread.
class PayloadSink {
 public:
  virtual ~PayloadSink() = default;
  /// `bytes` are those at `offset` of the message: in order, without gaps, each once, in whole
  /// pieces of 64 bytes but for the last one. Valid during the call; aligned to 16 bytes. May not
  /// post or cancel.
  virtual void on_payload(uint64_t token, size_t offset,
                          std::span<const std::byte> bytes) noexcept = 0;
};

/// Names a posted transfer until it has completed. Never 0, never used again.
using TransferId = uint64_t;

/// Messages with one peer. Owned by its fabric, lives as long as it does. Progress thread only.
///
/// A message goes from the post_send to the post_recv of equal tag, whichever comes first, and only
/// if both name the same number of bytes. Arriving bytes are copied into the posted memory by the
/// receiving process itself: no peer and no device ever writes there, so that a receive is
/// cancelled at once and its memory may be used again from the completion on. Likewise a send has
/// been copied out (or will never be read again) when it completes; that the peer has received it
/// does not follow.
class Endpoint {
 public:
  virtual ~Endpoint() = default;
  [[nodiscard]] virtual PeerId peer() const = 0;

  /// The memory must stay valid, a send's unchanged, until the completion. Errors, in the
  /// completion: kDisconnected if the peer is gone or not connected; kCancelled after a cancel, an
  /// abort or a fence; kInvalidArgument if sizes differ or the tag is posted already.
  virtual TransferId post_send(const Tag& tag, std::span<const std::byte> bytes, uint64_t token,
                               TransferSink& sink) = 0;
  virtual TransferId post_recv(const Tag& tag, std::span<std::byte> bytes, uint64_t token,
                               TransferSink& sink) = 0;
  /// As post_recv of a message of `bytes`, whose content goes to `payload`, all of it before the
  /// completion. That may be any part of it where the transfer then fails.
  virtual TransferId post_recv_to(const Tag& tag, size_t bytes, uint64_t token, TransferSink& sink,
                                  PayloadSink& payload) = 0;
  /// Ends a transfer with kCancelled, without waiting for anybody. No effect once completed.
  virtual void cancel(TransferId id) = 0;
};

}  // namespace sgactor::transport
