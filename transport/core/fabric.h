#pragma once
#include "graph/base/status.h"
#include "transport/core/endpoint.h"
#include "transport/core/keyed_hash.h"
#include "transport/core/progress.h"
#include "transport/core/tag.h"

#include <cstdint>
#include <functional>
#include <string>

namespace sgactor::transport {

/// Counters since the start. All but `open_peers` only grow.
struct FabricStats {
  int64_t open_peers = 0;
  int64_t messages_sent = 0;
  int64_t messages_received = 0;
  int64_t bytes_sent = 0;  ///< payload
  int64_t bytes_received = 0;
  int64_t stale_frames = 0;      ///< of a fenced generation or a cancelled receive: dropped
  int64_t duplicate_frames = 0;  ///< seen before: dropped
  int64_t refused_links = 0;     ///< strangers: no or wrong proof, garbage, too slow, too many
};

/// The bytes of one process: its links to every other process of the job. One a process.
///
/// Thread-safe but for endpoint(), which belongs to the progress thread. Nothing here blocks or
/// waits for a peer; results come back on the progress thread. Destroying it ends every transfer
/// with kCancelled, on the calling thread after the progress thread has stopped.
class Fabric {
 public:
  using ConnectDone = std::function<void(const Status&)>;
  /// A peer's link is gone: it died, was aborted, or broke the protocol.
  using PeerLost = std::function<void(PeerId, const Status&)>;

  virtual ~Fabric() = default;
  [[nodiscard]] virtual PeerId self() const = 0;
  /// Opaque bytes by which others find this process. They travel over the authenticated control
  /// plane only.
  [[nodiscard]] virtual std::string address() const = 0;
  [[nodiscard]] virtual Progress& progress() = 0;

  /// Connects to `peer` and proves both ways that the other knows the job's secret. Both sides call
  /// it, in any order; `done` follows once. A peer that is connected is done at once; one whose
  /// link was lost is connected anew, and what was posted before stays lost. Errors: kTimeout after
  /// FabricOptions::connect_timeout_ns; kDisconnected if the peer was aborted before, or its
  /// process is gone.
  virtual void connect(PeerId peer, std::string address, ConnectDone done) = 0;

  /// The messages with a peer; for self() too. Before connect and after abort_peer posts complete
  /// with kDisconnected.
  [[nodiscard]] virtual Endpoint& endpoint(PeerId peer) = 0;

  /// Destroys the link and ends every transfer with that peer with kCancelled (its message is
  /// `why`'s). For ever: the same id is refused afterwards. Bounded: waits for nobody.
  virtual void abort_peer(PeerId peer, const Status& why) = 0;

  /// From now on nothing of a generation below `generation` is received: posted transfers of older
  /// ones end with kCancelled, arriving frames of older ones are dropped, as are messages that
  /// came before anybody asked. Frames of later generations are kept for their receiver.
  virtual void fence(Generation generation) = 0;

  /// Observers are called on the progress thread, in the order of adding, once a peer that was
  /// connected; not for abort_peer. They stay for the fabric's life.
  virtual void add_peer_lost(PeerLost observer) = 0;

  /// Progress thread, or before any transfer was posted.
  [[nodiscard]] virtual FabricStats stats() const = 0;
};

}  // namespace sgactor::transport
