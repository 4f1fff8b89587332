#pragma once
// The strategy SDK: all that a strategy needs, in the tree or in a shared library of its own. This
// header includes nothing of the runtime; docs/guides/strategies.md builds two strategies with it.
#include "actors/strategy/options.h"
#include "graph/base/shape.h"
#include "graph/base/status.h"
#include "graph/sharding/parameter_rule.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace sgactor::actors {

/// The logical ranks that differ from the caller along dp alone, in order of their coordinate. Each
/// call must be made by every member, in the same order and with equal sizes; it returns when this
/// member's part is complete. Called by the behaviour that was given it, during that call only.
/// Errors: kCancelled, kDisconnected (pass them on: the run is ending); kInvalidArgument for sizes.
class DpGroup {
 public:
  virtual ~DpGroup() = default;
  [[nodiscard]] virtual int32_t index() const = 0;
  [[nodiscard]] virtual int32_t size() const = 0;
  /// values[i] becomes the sum over the members of their values[i], added in f32 by a fixed tree
  /// over the members: the same bits at each member and in each run.
  virtual Status all_reduce(std::span<float> values) = 0;
  /// all = mine of member 0, of member 1, … Pre: all.size() == size() * mine.size().
  virtual Status all_gather(std::span<const std::byte> mine, std::span<std::byte> all) = 0;
  /// Everyone's values become those of member `root`.
  virtual Status broadcast(std::span<float> values, int32_t root) = 0;
  virtual Status barrier() = 0;
};

/// Degrees of the job's mesh and what else a strategy may depend on before there is a plan.
struct JobFacts {
  int32_t pp = 1, dp = 1, tp = 1;  ///< dp: logical ranks
  int32_t zero_stage = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;
  StrategyOptions options;  ///< strategy.options of the job
};

/// The logical rank that a behaviour belongs to.
struct RankFacts {
  int32_t rank = 0;
  int32_t pp = 0, dp = 0, tp = 0;  ///< its coordinates
};

/// One gradient of a reduction: the rank's sum over its micro-batches, each sample divided by the
/// number of valid tokens of the whole step, so that the sum over dp is the step's gradient.
struct ReducedTensor {
  std::string parameter;  ///< whose gradient it is
  std::span<const float> input;
  /// To be filled. Of an all-reduce: as long as the input. Of a reduce-scatter (ZeRO): the member's
  /// piece, elements [index * n, (index + 1) * n) for n = output.size(), zeros beyond the input's
  /// end.
  std::span<float> output;
};

/// One operation of a gradient channel: the gradients of one segment of the model.
struct Reduction {
  std::string name;  ///< "layer.3.reduce.all_reduce"
  int64_t step = 0;  ///< first is 1
  int32_t micro_batch = 0;
  bool scatters = false;
  std::vector<ReducedTensor> tensors;
};

/// Stands in place of the reductions of gradients over dp of one logical rank. Whatever is written
/// to the outputs is what the norm, clipping and the optimizer see. Calls come one at a time, in
/// the plan's order, which all members share, on a thread that serves this rank alone, while the
/// rank goes on computing. Must be deterministic: a function of the inputs so far, and nothing
/// else.
class ChannelTransform {
 public:
  virtual ~ChannelTransform() = default;
  /// Errors end the run; exceptions too.
  virtual Status reduce(const Reduction& reduction, DpGroup& group) = 0;
};

/// One parameter of a rank, f32. With ZeRO or tp it is the rank's part (`type` is that of the
/// part).
struct ParameterView {
  std::string name;
  TensorType type;
  std::span<float> values;  ///< writable; valid during the call only
};

/// Between two steps.
struct StepBoundary {
  int64_t step = 0;  ///< the one that is complete
  std::span<const ParameterView> parameters;
  DpGroup* group = nullptr;
};

/// Runs on each logical rank after the update of each step, before the next step begins. Calls come
/// one at a time on a thread that serves this rank alone. Must be deterministic. Optimizer moments
/// are not touched.
class StepBehaviour {
 public:
  virtual ~StepBehaviour() = default;
  /// Before the first step, with the initial parameters and no group's calls allowed.
  virtual Status start(const StepBoundary& /*boundary*/) { return {}; }
  /// Errors end the run; exceptions too. What was changed stays changed.
  virtual Status after_step(const StepBoundary& boundary) = 0;
};

/// A row of the table. What is left empty stays as sgactor does it.
struct Strategy {
  std::string name;     ///< as strategy.name of a job gives it
  std::string summary;  ///< one line, for people
  /// Behaviours keep what no checkpoint holds: such a run cannot be resumed.
  bool keeps_state = false;
  /// Whether the strategy can run the job. Errors: kInvalidArgument or kUnsupported; the message
  /// says what is wrong and what would be right. Called before anything is written.
  std::function<Status(const JobFacts&)> check = {};
  /// How parameters are cut along tp; these rules come before the Llama family's table.
  std::function<Result<std::vector<graph::ParameterRule>>(const JobFacts&)> parameter_rules = {};
  /// One for each communicating lane of each logical rank that reduces gradients over dp.
  std::function<Result<std::unique_ptr<ChannelTransform>>(const JobFacts&, const RankFacts&)>
      channel_transform = {};
  /// One for each logical rank.
  std::function<Result<std::unique_ptr<StepBehaviour>>(const JobFacts&, const RankFacts&)>
      step_behaviour = {};
};

/// Strategies by name. main() makes one and fills it; a plug-in adds its rows.
class StrategyTable {
 public:
  void add(Strategy strategy) { entries_.push_back(std::move(strategy)); }
  [[nodiscard]] const std::vector<Strategy>& entries() const { return entries_; }

 private:
  std::vector<Strategy> entries_;
};

}  // namespace sgactor::actors
