#pragma once
#include "actors/runtime/batch_source.h"
#include "actors/runtime/channel.h"
#include "actors/runtime/program_context.h"
#include "actors/runtime/record_exchange.h"
#include "actors/runtime/services.h"
#include "graph/base/status.h"
#include "graph/plan/plan.h"

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

namespace sgactor::transport {
class Sampler;
}

namespace sgactor::actors {

struct FeedStaging;

/// What a rank contributes to a step, executed again elsewhere and compared by its hash: how wrong
/// bits of a device are found.

/// Gathers of state, or of what is made of state and the step's numbers alone (parameters that ZeRO
/// cuts): each brings the same to all members of its group, whatever their samples are. Index:
/// launch.
std::vector<bool> shared_gathers(const graph::RankProgram& program);
/// Whatever the rank sends or adds to, and computes from its samples, its state, the step's
/// numbers, what shared gathers bring and what it has heard from stages and tensor-parallel ranks
/// of its own replica: nothing that other replicas have sent in this step is in it. Index: launch.
std::vector<bool> own_posts(const graph::Plan& plan, const graph::RankProgram& program);
/// One operation of a hash that names a rank's posts: their sum, whatever the order.
uint64_t post_hash(int32_t key, int32_t micro_batch, uint64_t hash_of_inputs);
/// Whose posts `rank` executes again: those of the data-parallel rank half way around, which holds
/// the same parameters and on several workers is another one's; its own where it has no replica.
int32_t buddy_of(const graph::Plan& plan, int32_t rank);
/// Who executes the posts of `rank` again.
int32_t checker_of(const graph::Plan& plan, int32_t rank);
/// Who executes the posts of `rank` once more, where the two differ: a third replica if there is
/// one, else `rank` itself.
int32_t umpire_of(const graph::Plan& plan, int32_t rank);
/// Which of the first two executions was wrong, by the third: that of the rank itself, or that of
/// its checker. The rank's where all three differ.
enum class Liar : uint8_t { kRank = 0, kChecker };
Liar find_liar(uint64_t own, uint64_t checker, uint64_t umpire);
/// Whether the ranks of `plan` can do this. Errors: kUnsupported, saying why not.
Status check_verifiable(const graph::Plan& plan);

/// Executes posts again, with memory, streams and executables of its own; parameters are those of
/// the rank that does it. One caller at a time.
class GradientCheck {
 public:
  /// `training` is what the rank trains with. Its parameters are read between the last launch
  /// before a step's commit and that commit. Its channels keep a log, and from here on what they
  /// bring in each `interval`-th step as far as another execution needs it; only such steps can be
  /// executed. `collectives` may be null if exchanges() is false. Errors: as check_verifiable and
  /// create_context.
  static Result<std::unique_ptr<GradientCheck>> create(
      const std::shared_ptr<const ProgramContext>& training, const transport::Sampler& sampler,
      transport::Collectives* collectives, int64_t interval);

  /// Whether a rank's posts depend on what it has heard from its own replica, so that whoever
  /// executes them needs its record of that: offer() of the one meets submit() of the other.
  [[nodiscard]] bool exchanges() const { return !heard_.empty(); }
  /// Sends the record of this rank to `to`, on the thread of this object; `failed` hears there why
  /// it is not sent.
  void offer(int32_t to, int64_t step, int64_t generation,
             std::function<void(const Status&)> failed);
  /// Tells `done` the hash of what `rank` posts in `step`, on a thread of this object. Costs the
  /// forward and backward passes of a step. Errors: what the device or the sampler says;
  /// kDisconnected or kCancelled where the record does not come in this generation.
  void submit(int32_t rank, int64_t step, int64_t generation,
              std::function<void(const Result<uint64_t>&)> done);
  /// Waits for what was submitted; nothing may be submitted afterwards.
  void close() { service_.reset(); }
  /// Of the memory that it takes.
  [[nodiscard]] int64_t bytes() const { return context_->program->arena_bytes; }
  ~GradientCheck();
  GradientCheck(const GradientCheck&) = delete;
  GradientCheck& operator=(const GradientCheck&) = delete;

 private:
  /// Work of lane 0, and what is posted behind it.
  using LaunchFiring = std::pair<graph::LaunchId, int32_t>;
  struct Item {
    bool feeds = false;
    graph::LaunchId launch = graph::kNoLaunch;
    int32_t micro_batch = 0;
    std::vector<LaunchFiring> fills;  ///< communication whose results it is the first to read
    std::vector<LaunchFiring> posts;
  };
  /// Where the record of one firing begins.
  using Record = std::map<LaunchFiring, size_t>;
  GradientCheck();
  void list_items();
  void list_fills();
  void list_posts();
  void keep_results(int64_t interval);
  [[nodiscard]] size_t bytes_of(graph::BufferId buffer) const;
  [[nodiscard]] Result<std::shared_ptr<const Channel::Results>> kept(const LaunchFiring& firing,
                                                                     int64_t step) const;
  Result<std::vector<std::byte>> own_record(int64_t step) const;
  Result<uint64_t> execute(int32_t rank, int64_t step, int64_t generation);
  Status fill(const LaunchFiring& firing, int64_t step, const std::vector<std::byte>& record);
  Status begin(BatchSource& source, int64_t step);
  Status feed(BatchSource& source, int64_t step, int32_t micro_batch);
  Result<uint64_t> hash_inputs(graph::LaunchId launch, int32_t micro_batch) const;

  std::shared_ptr<const ProgramContext> training_;  // whose parameters are read
  std::shared_ptr<ProgramContext> context_;
  const transport::Sampler* sampler_ = nullptr;
  std::unique_ptr<FeedStaging> staging_;
  std::vector<Item> items_;
  Record heard_;  // not by shared gathers
  size_t record_bytes_ = 0;
  std::unique_ptr<RecordExchange> exchange_;  // null: no need
  std::unique_ptr<BlockingService> service_;  // last: its work uses all else
};

}  // namespace sgactor::actors
