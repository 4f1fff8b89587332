#pragma once
#include "graph/base/status.h"
#include "transport/core/tag.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace sgactor::transport {

/// Kinds of frames. kHello and kProof come before any other, see handshake.h; the rest are the
/// protocol of message_table.h.
enum class FrameKind : uint32_t {
  kHello = 1,
  kProof,
  kEager,     ///< a whole small message
  kAnnounce,  ///< a large send is posted; value = its bytes
  kReady,     ///< a large receive is posted; value = its bytes, receive_id names it
  kData,      ///< value = offset into the receive named by receive_id
  kRefused,   ///< the receive of this tag has another size
  kMark,      ///< nothing but its place in the sequence: shows that what came before is all
};

/// Leads every frame. Native byte order: the hello refuses a peer of another order.
struct FrameHeader {
  FrameKind kind = FrameKind::kHello;
  uint32_t payload_bytes = 0;
  uint64_t sequence = 0;  ///< counts the frames of a link and direction from 0: a lost or repeated
                          ///< frame is seen
  Tag tag;
  uint64_t value = 0;
  uint64_t receive_id = 0;
  uint64_t checksum = 0;  ///< of the other fields and the payload; 0: none is kept
};
static_assert(sizeof(FrameHeader) == 64);

class Link;

/// What a link reports, on the progress thread. May call into the link, may not destroy it.
class LinkHandler {
 public:
  virtual ~LinkHandler() = default;
  /// `payload` is valid during the call.
  virtual void on_frame(Link& link, const FrameHeader& header,
                        std::span<const std::byte> payload) = 0;
  /// A header has come whose payload has not. Where a link that copies from the system may put it:
  /// header.payload_bytes, or nothing if on_frame is to see the link's own memory. on_frame follows
  /// with that memory as payload. The memory is the handler's until forget_place().
  virtual std::span<std::byte> place_for(Link& /*link*/, const FrameHeader& /*header*/) {
    return {};
  }
  /// try_send, having said no, may be tried again.
  virtual void on_writable(Link& link) = 0;
  /// Nothing follows. Not called after close().
  virtual void on_closed(Link& link, const Status& why) = 0;
};

/// An ordered, reliable lane of frames to one process, over rings in shared memory, a socket, or a
/// library. Progress thread only. Calls back only from the progress loop, never from inside
/// try_send.
class Link {
 public:
  virtual ~Link() = default;
  /// Frames lie in this host's memory from end to end: no wire is on the way.
  [[nodiscard]] virtual bool in_memory() const { return false; }
  /// Largest payload of a frame.
  [[nodiscard]] virtual size_t max_payload() const = 0;
  /// Copies the frame and returns true, or takes nothing and returns false: on_writable follows.
  virtual bool try_send(const FrameHeader& header, std::span<const std::byte> payload) = 0;
  /// As try_send, but the link may go on reading `payload` after it has returned true, while
  /// is_lent(). Until then it takes nothing else; on_writable follows.
  virtual bool try_lend(const FrameHeader& header, std::span<const std::byte> payload) {
    return try_send(header, payload);
  }
  [[nodiscard]] virtual bool is_lent() const { return false; }
  /// Copies what is still unread of the lent payload, so that its owner has it back.
  virtual void keep_lent() {}
  /// The memory that place_for named is not written to any more; the rest of that frame goes to
  /// the link's own memory.
  virtual void forget_place() {}
  /// The peer has proved itself: from now on it may send frames of up to max_payload(). Before, a
  /// link that strangers can reach takes no payload above Handshake::kMaxPayload.
  virtual void set_proved() {}
  /// Lets frames taken so far go out at once rather than gathering them.
  virtual void flush() {}
  /// Drops what has not gone out. No callback afterwards. Idempotent.
  virtual void close() = 0;
  /// Where callbacks go; set before the progress loop sees the link.
  void set_handler(LinkHandler* handler) { handler_ = handler; }

 protected:
  LinkHandler* handler_ = nullptr;
};

}  // namespace sgactor::transport
