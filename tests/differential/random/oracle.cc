#include "tests/differential/random/oracle.h"

#include "graph/base/philox.h"
#include "graph/passes/differentiate.h"
#include "tests/unit/graph/passes/run_plan.h"

#include <utility>

namespace sgactor::differential {
namespace {

using graph::Graph;
using graph::Role;

/// Neighbours first, level by level, an odd one carried up.
template <class T>
std::vector<T> tree_sum(std::vector<std::vector<T>> level) {
  while (level.size() > 1) {
    std::vector<std::vector<T>> next;
    for (size_t i = 0; i + 1 < level.size(); i += 2) {
      std::vector<T> sum = std::move(level[i]);
      for (size_t k = 0; k < sum.size(); ++k) sum[k] += level[i + 1][k];
      next.push_back(std::move(sum));
    }
    if (level.size() % 2 == 1) next.push_back(std::move(level.back()));
    level = std::move(next);
  }
  return level[0];
}

std::string use_name(const std::string& parameter, int use) {
  return "grad/" + parameter + (use == 0 ? "" : "#" + std::to_string(use));
}

/// Accumulators of one rank after its micro-batches, and its loss.
Result<Numbers> run_rank(const Graph& training, const Numbers& state, const RandomModel& model,
                         uint64_t seed, int64_t step, int32_t rank, int32_t ranks,
                         int32_t micro_batches) {
  graph::Values values = state;
  values["inv_valid_tokens"] = {inv_valid_tokens(ranks, micro_batches)};
  for (int32_t m = 0; m < micro_batches; ++m) {
    const Batch batch = draw_batch(model, seed, step, rank, m);
    values["tokens"] = {batch.tokens.begin(), batch.tokens.end()};
    values["targets"] = {batch.targets.begin(), batch.targets.end()};
    SGA_TRY(graph::run_graph(training, values));
  }
  return values;
}

}  // namespace

Batch draw_batch(const RandomModel& model, uint64_t seed, int64_t step, int32_t rank,
                 int32_t micro_batch) {
  const PhiloxStream draw{seed, 1000 * static_cast<uint64_t>(step) +
                                    100 * static_cast<uint64_t>(rank) +
                                    static_cast<uint64_t>(micro_batch)};
  Batch batch;
  const auto vocab = static_cast<uint64_t>(model.vocab_size);
  for (uint64_t i = 0; i < kBatch * kSeqLen; ++i) {
    batch.tokens.push_back(static_cast<int32_t>(draw.below(2 * i, vocab)));
    batch.targets.push_back(static_cast<int32_t>(draw.below(2 * i + 1, vocab)));
  }
  return batch;
}

Numbers draw_parameters(const RandomModel& model, uint64_t seed) {
  Numbers out;
  uint64_t stream = 1 << 20;
  for (const graph::ParameterSpec& p : model.parameters) {
    const PhiloxStream draw{seed, ++stream};
    for (int64_t i = 0; i < p.type.num_elements(); ++i) {
      const double x = (p.init_one ? 1 : 0) + 0.5 * draw.normal(static_cast<uint64_t>(i));
      out[p.name].push_back(static_cast<float>(x));
    }
  }
  return out;
}

double inv_valid_tokens(int32_t ranks, int32_t micro_batches) {
  return static_cast<float>(1.0 / static_cast<double>(kBatch * kSeqLen * ranks * micro_batches));
}

Result<Outcome> train_by_definition(const RandomModel& model, uint64_t seed, int32_t ranks,
                                    int32_t micro_batches, int64_t steps,
                                    const graph::OptimizerOptions& optimizer) {
  SGA_ASSIGN(Graph training, graph::differentiate(model.forward));
  SGA_ASSIGN(training, graph::accumulate_microbatches(training));
  SGA_ASSIGN(const auto parameters, graph::collect_update_parameters(training, model.parameters));
  SGA_ASSIGN(const Graph update, graph::build_update(parameters, optimizer));
  Outcome out;
  out.state = draw_parameters(model, seed);
  for (int64_t step = 1; step <= steps; ++step) {
    std::vector<std::vector<float>> losses;
    std::map<std::string, std::vector<std::vector<double>>> gradients;
    for (int32_t rank = 0; rank < ranks; ++rank) {
      SGA_ASSIGN(const Numbers sums,
                 run_rank(training, out.state, model, seed, step, rank, ranks, micro_batches));
      losses.push_back({static_cast<float>(sums.at("loss")[0])});
      for (const graph::UpdateParameter& p : parameters) {
        std::vector<double> sum = sums.at(use_name(p.spec.name, 0));
        for (int use = 1; use < p.num_uses; ++use) {
          const std::vector<double>& more = sums.at(use_name(p.spec.name, use));
          for (size_t i = 0; i < sum.size(); ++i) sum[i] += more[i];
        }
        gradients[p.spec.name].push_back(std::move(sum));
      }
    }
    out.losses.push_back(tree_sum(std::move(losses))[0]);
    graph::Values values = out.state;
    values["step"] = {static_cast<double>(step)};
    // The other uses are zeros, which change no sum.
    for (auto& [name, of_ranks] : gradients) values[use_name(name, 0)] = tree_sum(of_ranks);
    SGA_TRY(graph::run_graph(update, values));
    for (const graph::UpdateParameter& p : parameters) {
      for (const char* prefix : {"", "m/", "v/"}) {
        out.state[prefix + p.spec.name] = values.at(prefix + p.spec.name);
      }
    }
  }
  return out;
}

}  // namespace sgactor::differential
