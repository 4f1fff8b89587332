#include "graph/passes/stage_order.h"

#include <algorithm>
#include <limits>
#include <tuple>

namespace sgactor::graph {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

class PipelineSimulation {
 public:
  explicit PipelineSimulation(const StageOrderOptions& options)
      : options_(options),
        num_chunks_(static_cast<int32_t>(options.forward_cost.size())),
        free_at_(static_cast<size_t>(options.num_stages), 0),
        in_flight_(free_at_.size(), 0),
        next_(options.forward_cost.size()),
        order_(free_at_.size()) {
    const auto cells =
        static_cast<size_t>(num_chunks_) * static_cast<size_t>(options.num_micro_batches);
    forward_end_.assign(cells, kNever);
    backward_end_.assign(cells, kNever);
  }

  std::vector<std::vector<StageTask>> run() {
    const int64_t total = int64_t{2} * num_chunks_ * options_.num_micro_batches;
    for (int64_t done = 0; done < total; ++done) {
      Choice best;
      for (int32_t chunk = 0; chunk < num_chunks_; ++chunk) {
        consider({chunk, next_[static_cast<size_t>(chunk)].backward, true}, best);
        consider({chunk, next_[static_cast<size_t>(chunk)].forward, false}, best);
      }
      take(best);
    }
    return std::move(order_);
  }

 private:
  struct Next {
    int32_t forward = 0;  // micro-batches
    int32_t backward = 0;
  };
  struct Choice {
    double start = kNever;
    StageTask task{-1, 0, false};
  };

  [[nodiscard]] size_t stage_of(int32_t chunk) const {
    return static_cast<size_t>(chunk % options_.num_stages);
  }
  [[nodiscard]] size_t cell(int32_t chunk, int32_t m) const {
    return (static_cast<size_t>(chunk) * static_cast<size_t>(options_.num_micro_batches)) +
           static_cast<size_t>(m);
  }
  [[nodiscard]] int32_t limit(size_t stage) const {
    const int32_t ahead = options_.num_stages - static_cast<int32_t>(stage);
    if (options_.schedule == PipelineSchedule::kGPipe) return options_.num_micro_batches;
    if (options_.schedule == PipelineSchedule::k1F1B) return ahead;
    return ahead + std::max((num_chunks_ - 1) / options_.num_stages, 0);
  }
  [[nodiscard]] double ready_at(const StageTask& t) const {
    if (t.micro_batch >= options_.num_micro_batches) return kNever;
    if (!t.backward) {
      const size_t stage = stage_of(t.chunk);
      const bool admits = t.chunk < options_.num_stages;
      if (admits && in_flight_[stage] >= limit(stage)) return kNever;
      return t.chunk == 0 ? 0 : forward_end_[cell(t.chunk - 1, t.micro_batch)];
    }
    if (options_.schedule == PipelineSchedule::kGPipe &&
        next_[static_cast<size_t>(t.chunk)].forward < options_.num_micro_batches) {
      return kNever;
    }
    return t.chunk + 1 == num_chunks_ ? forward_end_[cell(t.chunk, t.micro_batch)]
                                      : backward_end_[cell(t.chunk + 1, t.micro_batch)];
  }
  void consider(const StageTask& task, Choice& best) const {
    const double ready = ready_at(task);
    if (ready == kNever) return;
    const Choice mine{std::max(ready, free_at_[stage_of(task.chunk)]), task};
    const auto rank = [](const Choice& c) {
      return std::tuple(c.start, !c.task.backward, -c.task.chunk);
    };
    if (best.task.chunk < 0 || rank(mine) < rank(best)) best = mine;
  }
  void take(const Choice& choice) {
    const StageTask& t = choice.task;
    const auto chunk = static_cast<size_t>(t.chunk);
    const size_t stage = stage_of(t.chunk);
    const double cost = t.backward ? options_.backward_cost[chunk] : options_.forward_cost[chunk];
    free_at_[stage] = choice.start + cost;
    (t.backward ? backward_end_ : forward_end_)[cell(t.chunk, t.micro_batch)] = free_at_[stage];
    ++(t.backward ? next_[chunk].backward : next_[chunk].forward);
    const bool first = t.chunk < options_.num_stages;
    if (first) in_flight_[stage] += t.backward ? -1 : 1;
    order_[stage].push_back(t);
  }

  const StageOrderOptions& options_;
  int32_t num_chunks_;
  std::vector<double> free_at_;     // by stage
  std::vector<int32_t> in_flight_;  // by stage: micro-batches admitted and not through
  std::vector<Next> next_;          // by chunk
  std::vector<double> forward_end_, backward_end_;
  std::vector<std::vector<StageTask>> order_;
};

}  // namespace

std::vector<std::vector<StageTask>> order_stages(const StageOrderOptions& options) {
  return PipelineSimulation(options).run();
}

std::vector<int32_t> balance_parts(std::span<const double> costs, int32_t num_parts) {
  const size_t n = costs.size();
  const auto parts = static_cast<size_t>(num_parts);
  std::vector<double> sums(n + 1, 0);
  for (size_t i = 0; i < n; ++i) sums[i + 1] = sums[i] + costs[i];
  // best[p][i]: least largest sum of the first i in p parts; from: where the last part begins.
  std::vector<std::vector<double>> best(parts + 1, std::vector<double>(n + 1, kNever));
  std::vector<std::vector<size_t>> from(parts + 1, std::vector<size_t>(n + 1, 0));
  best[0][0] = 0;
  for (size_t p = 1; p <= parts; ++p) {
    for (size_t i = p; i <= n; ++i) {
      for (size_t k = p - 1; k < i; ++k) {
        const double largest = std::max(best[p - 1][k], sums[i] - sums[k]);
        if (largest >= best[p][i]) continue;
        best[p][i] = largest;
        from[p][i] = k;
      }
    }
  }
  std::vector<int32_t> part(n, 0);
  size_t end = n;
  for (size_t p = parts; p > 0; --p) {
    for (size_t i = from[p][end]; i < end; ++i) part[i] = static_cast<int32_t>(p) - 1;
    end = from[p][end];
  }
  return part;
}

}  // namespace sgactor::graph
