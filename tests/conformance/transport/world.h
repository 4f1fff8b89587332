#pragma once
#include "tests/conformance/transport/test_keyed_hash.h"
#include "transport/collectives/collectives.h"
#include "transport/core/message_fabric.h"
#include "transport/inproc/inproc_fabric.h"

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace sgactor::transport {

/// Waits for a known number of completions; a deadline instead of a hang.
class Waiter final : public kernels::CompletionSink, public TransferSink {
 public:
  static constexpr int kDeadlineS = 60;
  void on_complete(uint64_t token, const Status& status, kernels::LaunchTiming) noexcept override {
    on_transfer(token, status);
  }
  void on_transfer(uint64_t token, const Status& status) noexcept override;
  /// Blocks until `count` completions came, all in all. False after the deadline.
  bool wait(size_t count);
  /// The first status that is not ok, of all that came.
  Status first_error();
  std::vector<std::pair<uint64_t, Status>> completions();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::pair<uint64_t, Status>> completions_;
};

/// How the fabrics of a test are made: one row of the table that the suite runs over.
struct FabricKind {
  std::string name;
  /// Process `self`'s fabric in the world `network`.
  std::function<Result<std::unique_ptr<Fabric>>(const std::shared_ptr<InprocNetwork>& network,
                                                PeerId self, FabricOptions options)>
      create;
};
const std::vector<FabricKind>& fabric_kinds();

/// Fabrics with a thread each, connected with each other, and their collectives. Logical rank r is
/// hosted by process rank_to_peer[r].
class World {
 public:
  World(const FabricKind& kind, std::vector<PeerId> rank_to_peer, FabricOptions options = {},
        CollectivesOptions collectives = {});
  ~World();

  [[nodiscard]] size_t num_ranks() const { return rank_to_peer_.size(); }
  [[nodiscard]] Fabric& fabric(PeerId peer) { return *fabrics_[peer]; }
  [[nodiscard]] Collectives& collectives_of(int32_t rank) {
    return *collectives_[rank_to_peer_[static_cast<size_t>(rank)]];
  }
  /// Routes of `generation` at every process.
  void set_routes(Generation generation);
  /// Runs `task` on the progress thread of `peer` and waits for it.
  void inside(PeerId peer, std::function<void()> task);
  /// Destroys a process' collectives and fabric.
  void kill(PeerId peer);

 private:
  TestKeyedHash hash_;
  std::vector<PeerId> rank_to_peer_;
  std::shared_ptr<InprocNetwork> network_ = std::make_shared<InprocNetwork>();
  std::vector<std::unique_ptr<Fabric>> fabrics_;
  std::vector<std::unique_ptr<Collectives>> collectives_;
};

}  // namespace sgactor::transport
