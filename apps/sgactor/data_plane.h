#pragma once
#include "actors/protocol/wire.h"
#include "graph/base/status.h"
#include "transport/collectives/collectives.h"
#include "transport/core/faulty_link.h"
#include "transport/core/message_table.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace sgactor::apps {

/// What a process's data plane is made of.
struct DataPlaneOptions {
  /// This host's numeric address towards others; empty: all are on this host, and no port is
  /// opened.
  std::string bind;
  bool alone = false;  ///< no other process takes part
  transport::FrameCheck check_frames = transport::FrameCheck::kWires;
  /// Faults to come, for `sgactor chaos`; null: none.
  std::shared_ptr<transport::LinkFaults> faults;
};
/// Of resilience.check_frames. Pre: the job was checked.
transport::FrameCheck frame_check_of(const std::string& name);

/// The bytes between the workers of a run: fabric and collectives of one process.
class DataPlane {
 public:
  /// `self` as the control plane names this process; `secret` is the job's, 32 bytes. Errors:
  /// kInvalidArgument: no device has the address to bind to; kUnsupported: this build has no
  /// transport to other hosts.
  static Result<std::unique_ptr<DataPlane>> create(actors::wire::PeerId self,
                                                   const std::string& secret,
                                                   const DataPlaneOptions& options);
  virtual ~DataPlane() = default;
  /// How others find this process: opaque bytes for the control plane.
  [[nodiscard]] virtual std::string address() const = 0;
  [[nodiscard]] virtual transport::Collectives& collectives() = 0;
  /// Connects to all others of `routes` and sets the routes; links that are there are kept, lost
  /// ones are made again, those to peers that are in no route any more are destroyed. Blocks;
  /// `give_up` is asked every few milliseconds. Errors: kTimeout, kDisconnected naming the peer;
  /// kCancelled where it was given up.
  virtual Status connect(const actors::wire::Routes& routes,
                         const std::function<bool()>& give_up = {}) = 0;
  /// Ends every transfer; waits for nobody.
  virtual void abort(const Status& why) = 0;
};

/// This host's numeric address on the way to "host:port"; empty if that is loopback, or unknown.
std::string local_address_towards(const std::string& host_port);

}  // namespace sgactor::apps
