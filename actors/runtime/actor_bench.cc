#include "actors/runtime/actor_bench.h"

#include "actors/runtime/training.h"
#include "graph/base/units.h"
#include "graph/ir/builder.h"

#include <fmt/format.h>

#include <algorithm>

namespace sgactor::actors {
namespace {

using graph::BufferKind;
using graph::EdgeKind;

constexpr int32_t kMostWindow = 60000;
constexpr int64_t kAlign = 256;

class Zeros final : public transport::TokenStream {
 public:
  explicit Zeros(int64_t n) : n_(n) {}
  [[nodiscard]] int64_t num_tokens() const override { return n_; }
  [[nodiscard]] int64_t max_token() const override { return 0; }
  void read(int64_t /*begin*/, std::span<int32_t> out) const override {
    std::fill(out.begin(), out.end(), 0);
  }

 private:
  int64_t n_;
};

class NoState final : public transport::StateSource {
 public:
  Status load(const std::string& name, const TensorType& /*type*/,
              std::span<std::byte> /*out*/) const override {
    return invalid_argument("there is no tensor " + name);
  }
};

/// The chain as a plan: cast(tokens), then add_scalar again and again, then accumulate into "loss".
/// Every buffer has an address of its own, so that nothing waits for memory.
class ChainPlan {
 public:
  ChainPlan(const kernels::Backend& backend, int32_t length, int32_t window)
      : backend_(backend), length_(length), window_(window) {}

  Result<graph::Plan> build() {
    plan_.name = "chain";
    plan_.storage = graph::StorageModel::kHash;
    plan_.segments = {"chain"};
    plan_.programs.resize(1);
    plan_.ranks.resize(1);
    program().num_micro_batches = window_;
    SGA_TRY(add_bodies());
    const TensorType ids{DType::kI32, {1, 1}};
    const TensorType number{DType::kF32, {1, 1}};
    const graph::BufferId loss = add_buffer("loss", number, BufferKind::kAccumulator);
    graph::BufferId last = add_buffer("tokens", ids, BufferKind::kBatch);
    for (int32_t l = 0; l < length_; ++l) {
      const bool first = l == 0;
      const bool end = l + 1 == length_;
      graph::Launch launch;
      launch.name = fmt::format("link.{}", l);
      launch.subgraph = first ? 0 : end ? 2 : 1;
      launch.phase = graph::Phase::kForward;
      if (end) launch.inputs.push_back({loss, graph::kNoLaunch, EdgeKind::kState});
      launch.inputs.push_back({last, first ? graph::kNoLaunch : l - 1,
                               first ? EdgeKind::kBatch : EdgeKind::kSameMicroBatch});
      last = end ? loss : add_buffer(launch.name + ":0", number, BufferKind::kActivation);
      launch.outputs = {last};
      program().launches.push_back(std::move(launch));
    }
    lay_order();
    return std::move(plan_);
  }

 private:
  graph::RankProgram& program() { return plan_.programs[0]; }

  Status add_body(const std::string& name, graph::Graph body) {
    graph::Subgraph& s = plan_.subgraphs.emplace_back();
    s.name = name;
    using Space = graph::ValuePlace::Space;
    s.places.resize(body.values().size());
    for (size_t i = 0; i < body.inputs().size(); ++i) {
      s.places[body.inputs()[i].value] = {Space::kInput, static_cast<int32_t>(i), 0};
    }
    s.places[body.outputs()[0].value] = {Space::kOutput, 0, 0};
    s.alias_input = {name == "last" ? 0 : -1};
    s.body = std::move(body);
    return {};
  }

  Status add_bodies() {
    const TensorType number{DType::kF32, {1, 1}};
    for (const char* name : {"first", "middle", "last"}) {
      graph::Graph body;
      body.name = name;
      graph::Builder b(body);
      b.set_segment("chain");
      const std::string kind = name;
      if (kind == "first") {
        const auto x = b.input({DType::kI32, {1, 1}}, graph::Role::kTokens, "tokens");
        b.output(b.cast(x, DType::kF32), graph::Role::kActivation, "");
      } else if (kind == "middle") {
        const auto x = b.input(number, graph::Role::kActivation, "x");
        b.output(b.add_scalar(x, 1), graph::Role::kActivation, "");
      } else {
        const auto acc = b.input(number, graph::Role::kAccumulator, "loss");
        const auto x = b.input(number, graph::Role::kActivation, "x");
        b.output(b.accumulate(acc, x), graph::Role::kAccumulator, "loss");
      }
      SGA_TRY(b.status());
      SGA_TRY(add_body(name, std::move(body)));
    }
    return {};
  }

  graph::BufferId add_buffer(std::string name, const TensorType& type, BufferKind kind) {
    graph::Buffer b;
    b.name = std::move(name);
    b.type = type;
    b.kind = kind;
    b.bytes = backend_.storage_bytes(type);
    b.num_slots = graph::is_persistent(kind) ? 1 : window_;
    for (int32_t s = 0; s < b.num_slots; ++s) {
      b.offsets.push_back(program().arena_bytes);
      program().arena_bytes += round_up(b.bytes, kAlign);
    }
    program().buffers.push_back(std::move(b));
    return static_cast<graph::BufferId>(program().buffers.size()) - 1;
  }

  /// Diagonals: micro-batch m is m links behind the first, so that all of the window is under way.
  void lay_order() {
    graph::Lane& lane = program().lanes.emplace_back();
    for (int32_t d = 0; d < length_ + window_ - 1; ++d) {
      for (int32_t m = std::max(0, d - length_ + 1); m <= std::min(d, window_ - 1); ++m) {
        lane.order.push_back({d - m, m});
      }
    }
    for (graph::Buffer& b : program().buffers) {
      b.last_use = static_cast<int32_t>(lane.order.size()) - 1;
    }
  }

  const kernels::Backend& backend_;
  int32_t length_;
  int32_t window_;
  graph::Plan plan_;
};

}  // namespace

Result<ActorBenchResult> bench_actor_chain(kernels::Backend& symbolic, int32_t num_actors,
                                           int64_t num_messages, int32_t window,
                                           int32_t scheduler_threads) {
  if (num_actors < 2 || num_messages < 1 || window < 1 || window > kMostWindow) {
    return invalid_argument(fmt::format("a chain of {} actors, {} messages, {} under way",
                                        num_actors, num_messages, window));
  }
  SGA_ASSIGN(const graph::Plan plan, ChainPlan(symbolic, num_actors, window).build());
  const transport::Sampler sampler(std::make_shared<Zeros>(int64_t{window} + 1), 0, 1, window,
                                   false);
  const NoState state;
  TrainingSpec spec;
  spec.last_step = ceil_div(num_messages, window);
  spec.final_checkpoint = false;
  spec.scheduler_threads = scheduler_threads;
  TrainingInputs inputs;
  inputs.plan = &plan;
  inputs.backend = &symbolic;
  inputs.sampler = &sampler;
  inputs.initial_state = &state;
  SGA_ASSIGN(const TrainingSummary summary, run_training(spec, inputs));
  ActorBenchResult out;
  out.num_actors = num_actors;
  out.num_handles = spec.last_step * window * num_actors;
  out.num_messages = summary.num_messages;
  out.seconds = summary.seconds;
  out.handles_per_second = static_cast<double>(out.num_handles) / out.seconds;
  out.messages_per_second = static_cast<double>(out.num_messages) / out.seconds;
  return out;
}

}  // namespace sgactor::actors
