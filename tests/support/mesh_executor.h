#pragma once
#include "tests/support/plan_executor.h"

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

namespace sgactor::testing_support {

/// Runs a plan for many logical ranks on one backend, all ranks in lock step on the calling thread,
/// each in its program order, with collectives done here: what cluster and channels do, without
/// them. Host-visible backends with native or float64 storage.
class MeshExecutor {
 public:
  static Result<std::unique_ptr<MeshExecutor>> create(const graph::Plan& plan,
                                                      kernels::Backend& backend);

  /// Gives every rank its part of the parameters and moments.
  Status load_state(const transport::StateSource& source);
  /// `batches[dp]`: the micro-batches of that data-parallel rank.
  Status run_step(int64_t step, double inv_valid_tokens,
                  const std::vector<std::vector<PlanExecutor::MicroBatch>>& batches);

  /// Losses of the data-parallel ranks added by the fixed tree.
  Result<float> loss() const;
  /// A number that the first rank of the last stage reports ("grad_norm", "lr").
  Result<float> metric(const std::string& name) const;
  /// The whole tensor from its parts, in native bytes of f32.
  Result<std::vector<float>> state(const std::string& name) const;
  /// Bytes of parameters, moments and accumulators of a rank.
  [[nodiscard]] int64_t state_bytes(int32_t rank) const;

 private:
  struct Rank {
    int32_t index = 0;
    std::unique_ptr<PlanExecutor> executor;
    std::vector<graph::Firing> order;
    size_t next = 0;
    bool posted = false;
    std::vector<graph::Firing> waiting;  // receives that are posted
    std::vector<bool> filled;
  };
  using Message = std::tuple<int32_t, int32_t, int32_t, int32_t>;  // from, to, key, micro-batch

  MeshExecutor(const graph::Plan& plan, kernels::Backend& backend)
      : plan_(plan), backend_(backend) {}
  Result<bool> advance(Rank& rank,
                       const std::vector<std::vector<PlanExecutor::MicroBatch>>& batches);
  Result<bool> receive(Rank& rank, const graph::Firing& firing);
  /// Completes what has arrived. Does `firing` read a tensor that has not?
  Result<bool> must_wait(Rank& rank, const graph::Firing& firing);
  Result<bool> communicate(Rank& rank, const graph::Firing& firing);
  Status exchange(const std::vector<int32_t>& members, const graph::Firing& firing);
  [[nodiscard]] std::byte* address(int32_t rank, graph::BufferId buffer, int32_t m) const;
  [[nodiscard]] const graph::Buffer& buffer(int32_t rank, graph::BufferId id) const;

  const graph::Plan& plan_;
  kernels::Backend& backend_;
  std::vector<Rank> ranks_;
  std::map<Message, std::vector<std::vector<std::byte>>> sent_;
};

}  // namespace sgactor::testing_support
