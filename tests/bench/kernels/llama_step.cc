// bench_llama_step [PRESET BATCH SEQ_LEN THREADS]: one forward and backward of a model and its
// update as two launches, and where the time goes by op.
#include "graph/models/llama.h"
#include "graph/passes/build_update.h"
#include "graph/passes/differentiate.h"
#include "graph/passes/fuse_ops.h"
#include "graph/passes/rewrite.h"
#include "tests/bench/kernels/bench_rig.h"

#include <fmt/format.h>

#include <cstdlib>
#include <map>
#include <string>
#include <utility>

namespace {

using namespace sgactor;         // NOLINT(google-build-using-namespace)
using namespace sgactor::graph;  // NOLINT(google-build-using-namespace)

Graph must(Result<Graph> result) {
  if (!result.ok()) {
    fmt::print(stderr, "{}\n", result.status().to_string());
    std::exit(1);
  }
  return std::move(result).value();
}

Graph update_graph(const LlamaConfig& config, const Graph& training) {
  std::map<std::string, int32_t> uses;
  for (const GraphOutput& out : training.outputs()) {
    if (out.role != Role::kAccumulator || out.name.rfind("grad/", 0) != 0) continue;
    ++uses[out.name.substr(5, out.name.find('#') - 5)];
  }
  std::vector<UpdateParameter> parameters;
  for (const ParameterSpec& spec : llama_parameters(config)) {
    parameters.push_back({.spec = spec, .num_uses = uses[spec.name], .segment = "update"});
  }
  return clean_graph(must(fuse_ops(clean_graph(must(build_update(parameters, {}))))));
}

double report(const char* title, Graph graph, int32_t threads, int64_t vocab) {
  bench::Rig rig(std::move(graph), threads);
  rig.fill_inputs(vocab);
  rig.best_seconds(1);
  const double seconds = rig.best_seconds(5);
  fmt::print("\n{}: {:.1f} ms, {} steps, {} threads\n", title, seconds * 1e3,
             rig.executable().steps().size(), threads);
  double total = 0;
  const auto by_op = rig.seconds_by_op(5);
  for (const auto& [op, s] : by_op) total += s;
  for (const auto& [op, s] : by_op) {
    fmt::print("  {:24} {:9.2f} ms {:5.1f} %\n", op, s * 1e3, 100 * s / total);
  }
  return seconds;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string preset = argc > 1 ? argv[1] : "llama-15m";
  const int64_t batch = argc > 2 ? std::atoll(argv[2]) : 4;
  const int64_t seq_len = argc > 3 ? std::atoll(argv[3]) : 256;
  const int32_t threads = argc > 4 ? std::atoi(argv[4]) : 2;
  const std::optional<LlamaConfig> config = llama_preset(preset);
  if (!config) {
    fmt::print(stderr, "no preset {}\n", preset);
    return 2;
  }
  const Graph forward = must(build_llama(*config, {.batch = batch, .seq_len = seq_len}));
  const Graph training =
      must(accumulate_microbatches(must(differentiate(forward)), {true, true, 0}));
  const Graph fused = clean_graph(must(fuse_ops(clean_graph(training))));
  const double step = report("forward and backward", fused, threads, config->vocab_size);
  const double update =
      report("update", update_graph(*config, training), threads, config->vocab_size);
  const auto tokens = static_cast<double>(batch * seq_len);
  const double flops = flops_per_token(*config, seq_len) * tokens;
  fmt::print("\n{}: {:.0f} tokens/s, {:.1f} GFLOP/s of model FLOPs\n", preset,
             tokens / (step + update), flops / (step + update) * 1e-9);
  return 0;
}
