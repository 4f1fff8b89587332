#pragma once
#include "actors/protocol/wire.h"
#include "graph/base/status.h"
#include "transport/collectives/collectives.h"
#include "transport/core/fabric.h"

#include <cstdint>
#include <memory>
#include <string>

namespace sgactor::apps {

/// The bytes between the workers of a run: fabric and collectives of one process.
class DataPlane {
 public:
  /// `self` as the control plane names this process; `secret` is the job's, 32 bytes. `bind`: this
  /// host's numeric address towards others; empty: all are on this host, and no port is opened.
  /// `alone`: no other process takes part. Errors: kInvalidArgument: no device has that address;
  /// kUnsupported: this build has no transport to other hosts.
  static Result<std::unique_ptr<DataPlane>> create(actors::wire::PeerId self,
                                                   const std::string& secret,
                                                   const std::string& bind, bool alone);
  virtual ~DataPlane() = default;
  /// How others find this process: opaque bytes for the control plane.
  [[nodiscard]] virtual std::string address() const = 0;
  [[nodiscard]] virtual transport::Collectives& collectives() = 0;
  /// Connects to all others of `routes` and sets the routes; links that are there are kept, those
  /// to peers that are in no route any more are destroyed. Blocks. Errors: kTimeout, kDisconnected
  /// naming the peer.
  virtual Status connect(const actors::wire::Routes& routes) = 0;
  /// Ends every transfer; waits for nobody.
  virtual void abort(const Status& why) = 0;
};

/// This host's numeric address on the way to "host:port"; empty if that is loopback, or unknown.
std::string local_address_towards(const std::string& host_port);

}  // namespace sgactor::apps
