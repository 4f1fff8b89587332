#pragma once
#include "actors/runtime/batch_source.h"
#include "actors/runtime/program_context.h"
#include "actors/runtime/services.h"
#include "graph/base/status.h"
#include "graph/plan/plan.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace sgactor::transport {
class Sampler;
}

namespace sgactor::actors {

struct FeedStaging;

/// What a rank contributes to a step, executed again elsewhere and compared by its hash: how wrong
/// bits of a device are found.

/// Reductions of `program` whose inputs the rank computes alone, from its samples, its state and
/// the step's numbers: nothing that another rank has sent in this step is in them. Index: launch.
std::vector<bool> own_posts(const graph::RankProgram& program);
/// One operation of a hash that names a rank's posts: their sum, whatever the order.
uint64_t post_hash(int32_t key, int32_t micro_batch, uint64_t hash_of_inputs);
/// Whose posts `rank` executes again: those of the data-parallel rank half way around, which holds
/// the same parameters and on several workers is another one's; its own where it has no replica.
int32_t buddy_of(const graph::Plan& plan, int32_t rank);
/// Who executes the posts of `rank` once more, where the two differ: a third replica if there is
/// one, else `rank` itself.
int32_t umpire_of(const graph::Plan& plan, int32_t rank);
/// Which of the first two executions was wrong, by the third: that of the rank itself, or that of
/// its checker. The rank's where all three differ.
enum class Liar : uint8_t { kRank = 0, kChecker };
Liar find_liar(uint64_t own, uint64_t checker, uint64_t umpire);
/// Whether the ranks of `plan` can do this. Errors: kUnsupported, saying why not: stages wait for
/// each other's activations, shards for each other's parameters.
Status check_verifiable(const graph::Plan& plan);

/// Executes posts again, with memory, streams and executables of its own; parameters are those of
/// the rank that does it. One caller at a time.
class GradientCheck {
 public:
  /// `training` is what the rank trains with. Its parameters are read between the last launch
  /// before a step's commit and that commit. Errors: as check_verifiable and create_context.
  static Result<std::unique_ptr<GradientCheck>> create(
      const std::shared_ptr<const ProgramContext>& training, const transport::Sampler& sampler);

  /// Hash of what `rank` posts in `step`. Blocks; costs the forward and backward passes of a step.
  /// Errors: what the device or the sampler says.
  Result<uint64_t> execute(int32_t rank, int64_t step);
  /// As execute, on a thread of this object; `done` is told there.
  void submit(int32_t rank, int64_t step, std::function<void(const Result<uint64_t>&)> done);
  /// Waits for what was submitted; nothing may be submitted afterwards.
  void close() { service_.reset(); }
  /// Of the memory that it takes.
  [[nodiscard]] int64_t bytes() const { return context_->program->arena_bytes; }
  ~GradientCheck();
  GradientCheck(const GradientCheck&) = delete;
  GradientCheck& operator=(const GradientCheck&) = delete;

 private:
  /// Work of lane 0, and what is posted behind it.
  struct Item {
    bool feeds = false;
    graph::LaunchId launch = graph::kNoLaunch;
    int32_t micro_batch = 0;
    std::vector<std::pair<graph::LaunchId, int32_t>> posts;
  };
  GradientCheck();
  void list_items();
  Status begin(BatchSource& source, int64_t step);
  Status feed(BatchSource& source, int64_t step, int32_t micro_batch);
  Result<uint64_t> hash_inputs(graph::LaunchId launch, int32_t micro_batch) const;

  std::shared_ptr<const ProgramContext> training_;  // whose parameters are read
  std::shared_ptr<ProgramContext> context_;
  const transport::Sampler* sampler_ = nullptr;
  std::unique_ptr<FeedStaging> staging_;
  std::vector<Item> items_;
  std::unique_ptr<BlockingService> service_;  // last: its work uses all else
};

}  // namespace sgactor::actors
