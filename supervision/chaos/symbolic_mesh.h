#pragma once
#include "graph/base/status.h"
#include "supervision/membership/guards.h"
#include "supervision/recovery/rank_core.h"

#include <cstdint>
#include <functional>
#include <vector>

namespace sgactor::supervision {

/// A training job whose tensors are 64-bit hashes of what made them: `pp` stages by `dp` replicas,
/// rank = stage * dp + replica. A step gathers the stage's shards, runs its micro-batches forward
/// and backward through the stages, reduces gradients piece by piece in a fixed tree over the
/// replicas, and sums a norm over all ranks at rank 0.
struct SymbolicMesh {
  int32_t pp = 2;
  int32_t dp = 2;
  int32_t micro_batches = 3;
  int32_t chunks = 2;  ///< a rank's state travels in so many
  uint64_t seed = 1;

  [[nodiscard]] int32_t num_ranks() const { return pp * dp; }
  [[nodiscard]] int32_t stage(RankId r) const { return r / dp; }
  [[nodiscard]] int32_t replica(RankId r) const { return r % dp; }
  [[nodiscard]] RankId rank(int32_t stage, int32_t replica) const { return stage * dp + replica; }
};

State initial_state(const SymbolicMesh& mesh, RankId rank);
/// What peers gather of a state.
Payload shard_of(const State& state);
void apply_update(State& state, const Payload& inputs);
uint64_t hash_state(const State& state);
/// Bytes that a rank's replay log holds at most: the sum over one step's kept messages.
int64_t planned_log_bytes(const SymbolicMesh& mesh, RankId rank);
/// hash_state of all ranks (second index) after steps 0 ... `steps` (first index), computed
/// straight: no messages, no actors. The oracle.
std::vector<std::vector<uint64_t>> expected_hashes(const SymbolicMesh& mesh, int64_t steps);

/// Kinds of LogicalKey.
enum class Edge : uint8_t { kShard = 0, kForward, kBackward, kGradient, kNormPart, kNorm };
/// Pieces of work that may not be executed twice by one life of a rank.
enum class Work : uint8_t { kGather = 0, kForward, kBackward, kReduce, kUpdate };

/// The program of one rank: does what can be done, as soon as it can.
class SymbolicRank {
 public:
  SymbolicRank(const SymbolicMesh& mesh, RankId rank, ProtocolGuards guards)
      : mesh_(mesh), rank_(rank), guards_(guards) {}

  /// Called before each piece of work: its kind, step and micro-batch.
  using OnWork = std::function<void(Work, int64_t step, int32_t micro_batch)>;
  /// Runs until it lacks something.
  Status pump(RankCore& core, int64_t now_us, Outbox& out, const OnWork& on_work);

 private:
  struct MicroBatch {
    bool forward = false;
    bool backward = false;
    uint64_t in = 0;
    uint64_t out = 0;
    uint64_t grad = 0;
  };
  [[nodiscard]] LogicalKey key(Edge edge, int64_t step, int32_t micro_batch, RankId from,
                               RankId to) const;
  void begin(int64_t step);
  Status execute(RankCore& core, int64_t now_us, Outbox& out, const OnWork& on_work);
  Status gather(RankCore& core, int64_t now_us, Outbox& out, const OnWork& on_work);
  Status run_micro_batch(RankCore& core, int32_t m, int64_t now_us, Outbox& out,
                         const OnWork& on_work);
  Status send_pieces(RankCore& core, int64_t now_us, Outbox& out);
  Status reduce(RankCore& core, int64_t now_us, Outbox& out, const OnWork& on_work);
  Status sum_norm(RankCore& core, int64_t now_us, Outbox& out);

  SymbolicMesh mesh_;
  RankId rank_;
  ProtocolGuards guards_;
  int64_t step_ = -1;
  bool shards_sent_ = false;
  bool gathered_ = false;
  uint64_t weights_ = 0;
  std::vector<MicroBatch> micro_batches_;
  std::vector<uint64_t> grads_in_order_;  ///< as they were completed
  bool pieces_sent_ = false;
  uint64_t gradient_ = 0;
  bool reduced_ = false;
  uint64_t reduced_value_ = 0;
};

}  // namespace sgactor::supervision
