#pragma once
#include "actors/runtime/tls_identity.h"
#include "graph/base/status.h"

#include <cstdint>
#include <memory>
#include <string>

namespace sgactor::actors {

/// A connection to one process. Never 0, never used again.
using LinkId = uint64_t;

/// What strangers and peers can cost at most.
struct HubLimits {
  int32_t max_half_open = 64;       ///< accepted and not admitted; the oldest makes room
  int32_t max_links = 4096;         ///< admitted
  int64_t admit_timeout_ms = 5000;  ///< from accept to admit()
  size_t max_first_bytes = 65536;   ///< of a frame before admit()
  size_t max_frame_bytes = size_t{1} << 29;
  size_t max_queued_bytes = size_t{1} << 30;  ///< waiting to be written, a link
  int64_t heartbeat_ms = 500;                 ///< a frame of no bytes if nothing else was sent
  int64_t silence_ms = 15000;                 ///< nothing received: the link is lost
};

struct HubStats {
  int64_t links = 0;            ///< admitted, now
  int64_t half_open = 0;        ///< accepted and not admitted, now
  int64_t strangers = 0;        ///< accepted and never admitted, ever
  int64_t frames_sent = 0;      ///< heartbeats left out
  int64_t frames_received = 0;  ///< the same
};

/// Hears of links, on the hub's thread. Must return quickly; may call the hub.
class HubSink {
 public:
  virtual ~HubSink() = default;
  /// The other side is authenticated. `address` is "host:port" of it. Of an accepted link nothing
  /// but its first frame is read until admit().
  virtual void on_open(LinkId link, const std::string& address, bool accepted) = 0;
  virtual void on_frame(LinkId link, std::string bytes) = 0;
  /// Once for each link that on_open or connect() has named, unless close() was called first.
  virtual void on_closed(LinkId link, const Status& why) = 0;
};

/// Frames of bytes between the processes of a job, over TCP with mutually authenticated TLS 1.3 and
/// nothing else: no option turns it off. One thread for all links. Whoever connects and is not of
/// the job (no certificate of its CA, garbage, silence) costs one of a bounded number of places for
/// a bounded time, a counter, and a log line at counts 1, 10, 100 …
///
/// A frame is its length (4 bytes, little endian) and that many bytes. The memory of a frame grows
/// with the bytes that come, never with what its length claims.
class TlsHub {
 public:
  /// `sink` outlives the hub. Errors: kInvalidArgument if a part of the identity is missing or
  /// wrong.
  static Result<std::unique_ptr<TlsHub>> create(const TlsIdentity& identity,
                                                const HubLimits& limits, HubSink& sink);
  /// Ends the thread; links are closed without on_closed.
  virtual ~TlsHub() = default;

  /// Listens on a numeric address or a name; port 0 takes a free one. Returns the port. Call once,
  /// from outside the hub's thread. Errors: kInvalidArgument naming address, port and reason ("port
  /// in use").
  virtual Result<uint16_t> listen(const std::string& address, uint16_t port) = 0;
  /// Starts connecting; on_open or on_closed follows. The name is looked up on the caller's thread.
  /// Errors: kInvalidArgument if the host is unknown.
  virtual Result<LinkId> connect(const std::string& host, uint16_t port, int64_t timeout_ms) = 0;

  // Any thread; no effect on links that are gone.
  /// Queues a frame. A link whose queue is full is closed with kOverloaded.
  virtual void send(LinkId link, std::string bytes) = 0;
  /// Takes an accepted link as one of the job's.
  virtual void admit(LinkId link) = 0;
  /// Closes when what was queued has gone out, at most one second later. No on_closed follows.
  virtual void close(LinkId link) = 0;
  /// Waits until everything queued has gone out or its link is gone, at most this long.
  virtual void flush(int64_t timeout_ms) = 0;
  [[nodiscard]] virtual HubStats stats() const = 0;
};

}  // namespace sgactor::actors
