#pragma once
#include "actors/strategy/strategy.h"
#include "graph/plan/plan.h"
#include "transport/collectives/collectives.h"

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <vector>

namespace sgactor::actors {

/// The dp group of one logical rank over the process's collectives, for threads that may wait. One
/// caller at a time. Borrows the collectives.
class BlockingGroup final : public DpGroup, private kernels::CompletionSink {
 public:
  BlockingGroup(transport::Collectives& collectives, std::vector<int32_t> members, int32_t index);

  /// Before each use: calls that follow are told apart from all others of the job by `key`, which
  /// is the same at all members, and belong to `generation`.
  void open(uint64_t key, transport::Generation generation);

  [[nodiscard]] int32_t index() const override { return index_; }
  [[nodiscard]] int32_t size() const override { return static_cast<int32_t>(members_.size()); }
  Status all_reduce(std::span<float> values) override;
  Status all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override;
  Status broadcast(std::span<float> values, int32_t root) override;
  Status barrier() override;

 private:
  [[nodiscard]] transport::CollectiveRequest request(transport::CollectiveKind kind,
                                                     transport::Element element);
  /// Waits for the completion.
  Status run(transport::CollectiveRequest request);
  void on_complete(uint64_t token, const Status& status,
                   kernels::LaunchTiming timing) noexcept override;

  transport::Collectives& collectives_;
  const std::vector<int32_t> members_;
  const int32_t index_;
  uint64_t key_ = 0;
  uint64_t num_calls_ = 0;  // since open()
  transport::Generation generation_ = 0;
  std::mutex mutex_;
  std::condition_variable done_;
  bool complete_ = false;
  Status outcome_;
};

/// The members of `rank`'s dp group in order of their coordinate.
std::vector<int32_t> dp_members(const graph::Plan& plan, int32_t rank);

}  // namespace sgactor::actors
