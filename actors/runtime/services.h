#pragma once
#include "graph/base/status.h"

#include <functional>
#include <memory>
#include <string>

namespace sgactor::actors {

/// Where work that blocks (files, preparing batches, reading back from a device) is done, since no
/// actor's handler may. Jobs of one service run one after the other in the order submitted. A
/// simulation puts an inline one in its place.
class BlockingService {
 public:
  /// The work itself. An exception that leaves it becomes kInternal.
  using Work = std::function<Status()>;
  /// Told the outcome where the work ran; sends a message, must not block or throw.
  using Done = std::function<void(const Status&)>;
  virtual ~BlockingService() = default;
  /// Returns at once (inline: after both calls). Thread-safe.
  virtual void submit(Work work, Done done) = 0;
};

/// One thread of its own. The destructor finishes what was submitted, then joins.
std::unique_ptr<BlockingService> create_thread_service(const std::string& name);
/// Runs work in submit(), on the caller.
std::unique_ptr<BlockingService> create_inline_service();

/// The services of one worker; several names may share one. Borrowed: they outlive all actors.
struct Services {
  BlockingService* data = nullptr;     ///< preparing batches
  BlockingService* device = nullptr;   ///< small reads from the device
  BlockingService* storage = nullptr;  ///< checkpoints
  BlockingService* journal = nullptr;  ///< the coordinator's
};

}  // namespace sgactor::actors
