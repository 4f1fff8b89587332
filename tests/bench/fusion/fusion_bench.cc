// bench_fusion [PRESET BATCH SEQ_LEN [LAYERS VOCAB THREADS]]: what fuse_ops does to a training
// step. Counts ops and bytes of the whole preset; times forward, backward and update on the cpu
// backend with and without fusion, of as many layers and as large a vocabulary as given (0: the
// preset's).
//
// "In matmuls" is the time of the products with weights, in both graphs. Attention, whose products
// are part of a fused op, counts as outside in both. The head's three products are inside the fused
// loss; their time is taken from the unfused graph and counts as matmuls. The vocabulary must be no
// other dim of the model, since the head's products are known by it.
#include "graph/base/units.h"
#include "graph/ir/op_table.h"
#include "graph/models/llama.h"
#include "graph/passes/build_update.h"
#include "graph/passes/differentiate.h"
#include "graph/passes/fuse_ops.h"
#include "graph/passes/rewrite.h"
#include "tests/bench/kernels/bench_rig.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>

namespace {

using namespace sgactor;         // NOLINT(google-build-using-namespace)
using namespace sgactor::graph;  // NOLINT(google-build-using-namespace)

template <class T>
T must(Result<T> result) {
  if (!result.ok()) {
    fmt::print(stderr, "{}\n", result.status().to_string());
    std::exit(1);
  }
  return std::move(result).value();
}

struct Graphs {
  Graph training, update;
};

Graphs build(const LlamaConfig& config, const ForwardOptions& forward) {
  Graphs g;
  g.training =
      must(accumulate_microbatches(must(differentiate(must(build_llama(config, forward))))));
  auto parameters = must(collect_update_parameters(g.training, llama_parameters(config)));
  g.update = clean_graph(must(build_update(parameters, {})));
  return g;
}

Graphs fuse(const Graphs& g) {
  return {clean_graph(must(fuse_ops(g.training))), clean_graph(must(fuse_ops(g.update)))};
}

struct Cost {
  size_t ops = 0;
  double bytes = 0;
};
Cost cost_of(const Graph& graph) {
  Cost cost{graph.ops().size(), 0};
  for (const Op& op : graph.ops()) cost.bytes += static_cast<double>(op_bytes(graph, op));
  return cost;
}

void print_cost(const char* what, const Graph& plain, const Graph& fused) {
  const Cost before = cost_of(plain);
  const Cost after = cost_of(fused);
  fmt::print("  {:8} ops {:6} -> {:5} ({:.2f}x), bytes moved {:>10} -> {:>10} ({:.2f}x)\n", what,
             before.ops, after.ops,
             static_cast<double>(before.ops) / static_cast<double>(after.ops),
             format_bytes(static_cast<int64_t>(before.bytes)),
             format_bytes(static_cast<int64_t>(after.bytes)), before.bytes / after.bytes);
}

struct Time {
  double total = 0;
  double matmuls = 0;  ///< with weights
  double head = 0;     ///< of them, those with the vocabulary
  double fused_head = 0;
};

Time time_of(Graph graph, int32_t threads, int64_t vocab, std::map<std::string, double>* by_op) {
  bench::Rig rig(std::move(graph), threads);
  rig.fill_inputs(vocab);
  const std::vector<double> seconds = rig.seconds_by_step(4);
  Time time;
  for (size_t s = 0; s < seconds.size(); ++s) {
    const Op& op = rig.graph().op(rig.executable().steps()[s].op_id);
    time.total += seconds[s];
    (*by_op)[rig.executable().steps()[s].op] += seconds[s];
    if (op.kind == OpKind::kLinearCrossEntropyGrad) time.fused_head += seconds[s];
    const bool product = op.kind == OpKind::kMatmul || op.kind == OpKind::kMatmulAccumulate;
    if (!product || rig.graph().type(op.results[0]).shape.rank() != 2) continue;
    time.matmuls += seconds[s];
    const auto has_vocab = [&](ValueId v) {
      const auto& dims = rig.graph().type(v).shape.dims();
      return std::find(dims.begin(), dims.end(), vocab) != dims.end();
    };
    if (std::any_of(op.operands.begin(), op.operands.end(), has_vocab)) time.head += seconds[s];
  }
  return time;
}

int64_t argument(int argc, char** argv, int i, int64_t otherwise) {
  return argc > i ? std::atoll(argv[i]) : otherwise;
}

void print_times(const LlamaConfig& config, const ForwardOptions& forward, int32_t threads) {
  const Graphs plain = build(config, forward);
  const Graphs fused = fuse(plain);
  std::map<std::string, double> before_by_op;
  std::map<std::string, double> after_by_op;
  Time before = time_of(plain.training, threads, config.vocab_size, &before_by_op);
  Time after = time_of(fused.training, threads, config.vocab_size, &after_by_op);
  after.matmuls += std::min(before.head, after.fused_head);
  before.total += time_of(plain.update, threads, config.vocab_size, &before_by_op).total;
  after.total += time_of(fused.update, threads, config.vocab_size, &after_by_op).total;
  const auto print = [](const char* what, double plain_s, double fused_s) {
    fmt::print("  {:16} {:9.1f} ms -> {:9.1f} ms, {:.2f}x\n", what, plain_s * 1e3, fused_s * 1e3,
               plain_s / fused_s);
  };
  fmt::print("{} layers, vocabulary {}, batch {} x {}, {} threads:\n", config.num_hidden_layers,
             config.vocab_size, forward.batch, forward.seq_len, threads);
  print("whole step", before.total, after.total);
  print("in matmuls", before.matmuls, after.matmuls);
  print("outside matmuls", before.total - before.matmuls, after.total - after.matmuls);
  for (const auto* by_op : {&before_by_op, &after_by_op}) {
    std::vector<std::pair<double, std::string>> sorted;
    for (const auto& [op, s] : *by_op) sorted.emplace_back(s, op);
    std::sort(sorted.rbegin(), sorted.rend());
    fmt::print("  {}:", by_op == &before_by_op ? "unfused" : "fused");
    for (size_t i = 0; i < std::min<size_t>(sorted.size(), 9); ++i) {
      fmt::print(" {} {:.1f}", sorted[i].second, sorted[i].first * 1e3);
    }
    fmt::print("\n");
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string preset = argc > 1 ? argv[1] : "llama-1b";
  std::optional<LlamaConfig> config = llama_preset(preset);
  if (!config) {
    fmt::print(stderr, "no preset {}\n", preset);
    return 2;
  }
  const ForwardOptions forward{argument(argc, argv, 2, 1), argument(argc, argv, 3, 512), true};
  const Graphs plain = build(*config, forward);
  const Graphs fused = fuse(plain);
  fmt::print("{}, batch {} x {}:\n", preset, forward.batch, forward.seq_len);
  print_cost("training", plain.training, fused.training);
  print_cost("update", plain.update, fused.update);
  const int64_t layers = argument(argc, argv, 4, 1);
  const int64_t vocab = argument(argc, argv, 5, 16384);
  if (layers > 0) config->num_hidden_layers = layers;
  if (vocab > 0) config->vocab_size = vocab;
  print_times(*config, forward, static_cast<int32_t>(argument(argc, argv, 6, 2)));
  return 0;
}
