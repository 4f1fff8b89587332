#pragma once
#include "transport/core/event_loop.h"
#include "transport/core/message_fabric.h"

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace sgactor::transport {

class InprocFabric;

/// Where the fabrics of one process (threads, a simulation, tests) find each other by peer id.
/// Thread-safe.
class InprocNetwork {
 public:
  InprocNetwork() = default;
  InprocNetwork(const InprocNetwork&) = delete;
  InprocNetwork& operator=(const InprocNetwork&) = delete;

 private:
  friend class InprocFabric;
  struct Entry {
    std::shared_ptr<Progress> progress;
    InprocFabric* fabric = nullptr;
    std::weak_ptr<bool> alive;  // read on `progress` only
  };
  std::mutex mutex_;
  std::map<PeerId, Entry> fabrics_;  // guarded by mutex_
};

/// A fabric whose peers live in this process; frames are copied from memory to memory. Destroying
/// one is, to the others, the death of its process.
class InprocFabric final : public MessageFabric {
 public:
  /// With `progress` null the fabric has a thread of its own. A progress that is given may be
  /// shared by several fabrics (a simulation has one ManualProgress); then the fabric must be
  /// destroyed inside it or while it does not run. `options.keyed_hash` may be null: no handshake.
  /// Errors: kInvalidArgument if `self` is in the network already.
  static Result<std::unique_ptr<InprocFabric>> create(std::shared_ptr<InprocNetwork> network,
                                                      PeerId self, FabricOptions options = {},
                                                      std::shared_ptr<Progress> progress = nullptr);
  ~InprocFabric() override;
  /// Empty: peers are found by id.
  [[nodiscard]] std::string address() const override { return {}; }

 private:
  InprocFabric(std::shared_ptr<InprocNetwork> network, PeerId self, FabricOptions options,
               std::shared_ptr<Progress> progress, std::shared_ptr<EventLoop> own_loop);
  void open_link(PeerId peer, const std::string& address) override;
  void accept(PeerId from, std::unique_ptr<Link> link);

  std::shared_ptr<InprocNetwork> network_;
  std::shared_ptr<Progress> shared_progress_;
  std::shared_ptr<EventLoop> own_loop_;  // null if the progress was given
  const bool proves_;
  std::shared_ptr<bool> reachable_ = std::make_shared<bool>(true);
};

}  // namespace sgactor::transport
