// What the suite that all backends share does not know: blocks of attention, fused scatters, and
// that launches do not allocate.
#include "graph/base/philox.h"
#include "graph/base/units.h"
#include "graph/ir/builder.h"
#include "graph/ir/op_table.h"
#include "graph/ir/verify.h"
#include "kernels/cpu/cpu_backend.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <vector>

namespace {
std::atomic<int64_t> num_news{0};
}

// Counts every allocation of this program, also those of the stream's thread. Not inlined, else GCC
// takes the free() inside for a mismatch with new.
[[gnu::noinline]] void* operator new(std::size_t size) {
  num_news.fetch_add(1);
  if (void* p = std::malloc(size)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { std::free(p); }

namespace sgactor::kernels {
namespace {

using graph::Builder;
using graph::Graph;
using graph::OpKind;
using graph::Role;
using graph::ValueId;

class LastStatus final : public CompletionSink {
 public:
  void on_complete(uint64_t, const Status& status, LaunchTiming) noexcept override {
    status_ = status;
  }
  [[nodiscard]] const Status& status() const { return status_; }

 private:
  Status status_;
};

/// Every value at its own place; inputs that are updated in place share their output.
class Runner {
 public:
  Runner(const Graph& graph, int32_t num_threads) : graph_(graph) {
    backend_ = std::move(create_cpu_backend({.num_threads = num_threads})).value();
    stream_ = std::move(backend_->create_stream()).value();
    place();
    const CompileRequest request{
        .body = &graph_, .places = places_, .workspace_bytes = workspace_bytes_, .name = "test"};
    auto compiled = backend_->compile(request);
    EXPECT_TRUE(compiled.ok()) << compiled.status().to_string();
    executable_ = std::move(compiled).value();
    workspace_ = std::move(backend_->allocate(workspace_bytes_, "workspace")).value();
    scratch_ = std::move(backend_->allocate(executable_->scratch_bytes(), "scratch")).value();
  }

  template <class T>
  std::span<T> input(size_t i) {
    return {reinterpret_cast<T*>(inputs_[i]->data()),
            static_cast<size_t>(inputs_[i]->bytes()) / sizeof(T)};
  }
  std::span<const float> output(size_t i) const {
    return {reinterpret_cast<const float*>(output_pointers_[i]),
            static_cast<size_t>(graph_.type(graph_.outputs()[i].value).num_elements())};
  }
  void spoil_output(size_t i) {
    std::fill_n(reinterpret_cast<float*>(output_pointers_[i]), output(i).size(),
                std::numeric_limits<float>::quiet_NaN());
  }
  void launch() {
    stream_->launch(*executable_,
                    {.inputs = input_pointers_,
                     .outputs = output_pointers_,
                     .workspace = workspace_->data(),
                     .scratch = scratch_->data()},
                    1, sink_);
    stream_->synchronize();
  }
  [[nodiscard]] const Status& status() const { return sink_.status(); }
  [[nodiscard]] Backend& backend() { return *backend_; }

 private:
  std::unique_ptr<DeviceMemory> memory_of(ValueId v) {
    return std::move(backend_->allocate(graph_.type(v).bytes(), "tensor")).value();
  }
  void place() {
    places_.resize(graph_.values().size());
    for (ValueId v = 0; v < graph_.values().size(); ++v) {
      places_[v] = {.space = Place::Space::kWorkspace, .index = 0, .offset = workspace_bytes_};
      workspace_bytes_ += round_up(graph_.type(v).bytes(), 64);
    }
    std::map<ValueId, std::byte*> in_place;
    for (size_t i = 0; i < graph_.inputs().size(); ++i) {
      places_[graph_.inputs()[i].value] = {.space = Place::Space::kInput,
                                           .index = static_cast<int32_t>(i)};
      inputs_.push_back(memory_of(graph_.inputs()[i].value));
      input_pointers_.push_back(inputs_.back()->data());
      in_place[graph_.inputs()[i].value] = inputs_.back()->data();
    }
    for (size_t i = 0; i < graph_.outputs().size(); ++i) {
      const ValueId v = graph_.outputs()[i].value;
      places_[v] = {.space = Place::Space::kOutput, .index = static_cast<int32_t>(i)};
      const graph::OpId producer = graph_.value(v).producer;
      const bool updates =
          producer != graph::kNoOp && graph_.op(producer).kind == OpKind::kAccumulate;
      if (updates && in_place.count(graph_.op(producer).operands[0]) != 0) {
        output_pointers_.push_back(in_place[graph_.op(producer).operands[0]]);
        continue;
      }
      outputs_.push_back(memory_of(v));
      output_pointers_.push_back(outputs_.back()->data());
    }
  }

  Graph graph_;
  std::unique_ptr<Backend> backend_;
  std::vector<Place> places_;
  int64_t workspace_bytes_ = 0;
  std::vector<std::unique_ptr<DeviceMemory>> inputs_, outputs_;
  std::vector<std::byte*> input_pointers_, output_pointers_;
  std::unique_ptr<DeviceMemory> workspace_, scratch_;
  std::unique_ptr<Executable> executable_;
  LastStatus sink_;
  std::unique_ptr<Stream> stream_;
};

void fill(std::span<float> to, uint64_t stream) {
  const PhiloxStream rng{.seed = 3, .stream = stream};
  for (size_t i = 0; i < to.size(); ++i) to[i] = static_cast<float>(rng.normal(i));
}

struct AttentionShape {
  int64_t B, T, H, G, K;
  bool causal;
};

Graph attention_graph(const AttentionShape& s) {
  Graph graph;
  Builder b(graph);
  b.set_segment("attention");
  const TensorType q_type{DType::kF32, {s.B, s.T, s.H, s.K}};
  const TensorType k_type{DType::kF32, {s.B, s.T, s.G, s.K}};
  const ValueId q = b.input(q_type, Role::kActivation, "q");
  const ValueId k = b.input(k_type, Role::kActivation, "k");
  const ValueId v = b.input(k_type, Role::kActivation, "v");
  const ValueId d_o = b.input(q_type, Role::kActivation, "do");
  graph::Attrs attrs;
  attrs.set("scale", 1.0 / std::sqrt(static_cast<double>(s.K)));
  attrs.set("causal", s.causal);
  const auto fwd = b.op(OpKind::kFlashAttention, {q, k, v}, attrs);
  const auto bwd = b.op(OpKind::kFlashAttentionGrad, {d_o, q, k, v, fwd[0], fwd[1]}, attrs);
  b.output(fwd[0], Role::kActivation, "o");
  b.output(fwd[1], Role::kActivation, "lse");
  b.output(bwd[0], Role::kActivation, "dq");
  b.output(bwd[1], Role::kActivation, "dk");
  b.output(bwd[2], Role::kActivation, "dv");
  EXPECT_TRUE(b.status().ok()) << b.status().to_string();
  EXPECT_TRUE(graph::verify(graph).ok());
  return graph;
}

/// Attention and its gradient by the formulas, in double.
struct PlainAttention {
  std::vector<double> o, lse, dq, dk, dv;

  PlainAttention(const AttentionShape& s, std::span<const float> q, std::span<const float> k,
                 std::span<const float> v, std::span<const float> d_o)
      : o(q.size()),
        lse(static_cast<size_t>(s.B * s.H * s.T)),
        dq(q.size()),
        dk(k.size()),
        dv(k.size()) {
    for (int64_t b = 0; b < s.B; ++b) {
      for (int64_t h = 0; h < s.H; ++h) {
        for (int64_t t = 0; t < s.T; ++t) row(s, q, k, v, d_o, b, h, t);
      }
    }
  }

 private:
  void row(const AttentionShape& s, std::span<const float> q, std::span<const float> k,
           std::span<const float> v, std::span<const float> d_o, int64_t b, int64_t h, int64_t t) {
    const double scale = 1.0 / std::sqrt(static_cast<double>(s.K));
    const int64_t g = h / (s.H / s.G);
    const int64_t seen = s.causal ? t + 1 : s.T;
    const auto at = [&](int64_t time, int64_t head, int64_t heads, int64_t i) {
      return static_cast<size_t>(((b * s.T + time) * heads + head) * s.K + i);
    };
    std::vector<double> p(static_cast<size_t>(seen));
    double total = 0;
    for (int64_t j = 0; j < seen; ++j) {
      double score = 0;
      for (int64_t i = 0; i < s.K; ++i) score += double{q[at(t, h, s.H, i)]} * k[at(j, g, s.G, i)];
      total += p[static_cast<size_t>(j)] = std::exp(score * scale);
    }
    lse[static_cast<size_t>((b * s.H + h) * s.T + t)] = std::log(total);
    double delta = 0;
    for (int64_t j = 0; j < seen; ++j) {
      p[static_cast<size_t>(j)] /= total;
      for (int64_t i = 0; i < s.K; ++i) {
        o[at(t, h, s.H, i)] += p[static_cast<size_t>(j)] * v[at(j, g, s.G, i)];
      }
    }
    for (int64_t i = 0; i < s.K; ++i) delta += d_o[at(t, h, s.H, i)] * o[at(t, h, s.H, i)];
    for (int64_t j = 0; j < seen; ++j) {
      double dp = 0;
      for (int64_t i = 0; i < s.K; ++i) dp += double{d_o[at(t, h, s.H, i)]} * v[at(j, g, s.G, i)];
      const double ds = p[static_cast<size_t>(j)] * (dp - delta) * scale;
      for (int64_t i = 0; i < s.K; ++i) {
        dq[at(t, h, s.H, i)] += ds * k[at(j, g, s.G, i)];
        dk[at(j, g, s.G, i)] += ds * q[at(t, h, s.H, i)];
        dv[at(j, g, s.G, i)] += p[static_cast<size_t>(j)] * d_o[at(t, h, s.H, i)];
      }
    }
  }
};

void expect_near(std::span<const float> got, const std::vector<double>& want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_NEAR(got[i], want[i], tolerance * (1 + std::fabs(want[i]))) << i;
  }
}

TEST(FlashAttention, BlocksAgreeWithTheFormulas) {
  // Several blocks of rows and columns; gradients by groups (B * G large) and by finer tasks.
  const AttentionShape shapes[] = {{1, 300, 4, 2, 20, true},
                                   {4, 110, 4, 2, 16, true},
                                   {1, 270, 2, 1, 8, false},
                                   {8, 97, 2, 2, 12, false}};
  for (const AttentionShape& s : shapes) {
    Runner runner(attention_graph(s), 2);
    for (size_t i = 0; i < 4; ++i) fill(runner.input<float>(i), i);
    runner.launch();
    ASSERT_TRUE(runner.status().ok()) << runner.status().to_string();
    const PlainAttention want(s, runner.input<float>(0), runner.input<float>(1),
                              runner.input<float>(2), runner.input<float>(3));
    expect_near(runner.output(0), want.o, 2e-5);
    expect_near(runner.output(1), want.lse, 2e-5);
    expect_near(runner.output(2), want.dq, 5e-5);
    expect_near(runner.output(3), want.dk, 5e-5);
    expect_near(runner.output(4), want.dv, 5e-5);
  }
}

TEST(FlashAttention, SameBitsOnOneTwoAndThreeThreads) {
  for (int64_t batch : {1, 6}) {
    const Graph graph = attention_graph({batch, 280, 4, 2, 16, true});
    std::vector<std::vector<float>> first;
    for (int32_t threads : {1, 2, 3}) {
      Runner runner(graph, threads);
      for (size_t i = 0; i < 4; ++i) fill(runner.input<float>(i), i);
      runner.launch();
      for (size_t i = 0; i < 5; ++i) {
        const auto out = runner.output(i);
        if (threads == 1) {
          first.emplace_back(out.begin(), out.end());
        } else {
          ASSERT_EQ(std::memcmp(first[i].data(), out.data(), out.size_bytes()), 0) << i;
        }
      }
    }
  }
}

/// With `keep_table` the scattered table is an output too, which forbids the fused form.
Graph scatter_graph(int64_t rows, int64_t width, int64_t n, bool keep_table) {
  Graph graph;
  Builder b(graph);
  b.set_segment("embed");
  const ValueId acc = b.input({DType::kF32, {rows, width}}, Role::kAccumulator, "grad/w");
  const ValueId ids = b.input({DType::kI32, {n}}, Role::kTokens, "tokens");
  const ValueId dy = b.input({DType::kF32, {n, width}}, Role::kActivation, "dy");
  graph::Attrs attrs;
  attrs.set("rows", rows);
  const ValueId table = b.op1(OpKind::kScatterAdd, {ids, dy}, attrs);
  b.output(b.accumulate(acc, table), Role::kAccumulator, "grad/w");
  if (keep_table) b.output(table, Role::kActivation, "table");
  EXPECT_TRUE(b.status().ok()) << b.status().to_string();
  return graph;
}

TEST(ScatterAdd, FusedWithItsAccumulationHasTheSameBits) {
  constexpr int64_t kRows = 100, kWidth = 37, kN = 500;
  std::vector<float> want;
  for (bool keep_table : {true, false}) {
    for (int32_t threads : {1, 3}) {
      Runner runner(scatter_graph(kRows, kWidth, kN, keep_table), threads);
      fill(runner.input<float>(0), 1);
      fill(runner.input<float>(2), 2);
      const PhiloxStream rng{.seed = 1, .stream = 7};
      auto ids = runner.input<int32_t>(1);
      for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(rng.below(i, 60));
      runner.launch();
      ASSERT_TRUE(runner.status().ok());
      const auto got = runner.output(0);
      if (want.empty()) want.assign(got.begin(), got.end());
      ASSERT_EQ(std::memcmp(want.data(), got.data(), got.size_bytes()), 0)
          << keep_table << " " << threads;
    }
  }
}

TEST(ScatterAdd, NamesABadId) {
  Runner runner(scatter_graph(10, 4, 3, false), 1);
  runner.input<int32_t>(1)[2] = 10;
  runner.launch();
  EXPECT_EQ(runner.status().code(), Code::kInvalidArgument);
  EXPECT_NE(runner.status().message().find("token 10 at position 2"), std::string::npos)
      << runner.status().to_string();
}

/// An op that adds to a sum which starts from a constant zero, or from an input.
Graph sum_graph(OpKind kind, DType added, bool from_zero) {
  constexpr int64_t kRows = 150, kWidth = 70, kDepth = 500;
  Graph graph;
  Builder b(graph);
  b.set_segment("head");
  const TensorType sum{DType::kF32, {kRows, kWidth}};
  const TensorType wide{added, {kDepth, kWidth}};
  const ValueId start = from_zero ? b.constant(0, sum) : b.input(sum, Role::kAccumulator, "grad/w");
  graph::Attrs attrs;
  ValueId result = graph::kNoValue;
  if (kind == OpKind::kMatmulAccumulate) {
    const ValueId x = b.input({added, {kDepth, kRows}}, Role::kActivation, "x");
    const ValueId y = b.input(wide, Role::kActivation, "y");
    attrs.set("trans_a", true);
    attrs.set("trans_b", false);
    result = b.op1(kind, {start, x, y}, attrs);
  } else if (kind == OpKind::kScatterAdd) {
    const ValueId ids = b.input({DType::kI32, {kDepth}}, Role::kTokens, "tokens");
    const ValueId dy = b.input(wide, Role::kActivation, "dy");
    attrs.set("rows", kRows);
    result = b.accumulate(start, b.op1(kind, {ids, dy}, attrs));
  } else if (kind == OpKind::kLinearCrossEntropyGrad) {
    const ValueId x = b.input(wide, Role::kActivation, "x");
    const ValueId w = b.input({added, {kRows, kWidth}}, Role::kParameter, "w");
    const ValueId targets = b.input({DType::kI32, {kDepth}}, Role::kTargets, "targets");
    const ValueId scale = b.input({DType::kF32, {}}, Role::kScalar, "inv_valid_tokens");
    result = b.op(kind, {start, x, w, targets, scale})[0];
  } else {
    result = b.accumulate(start, b.input({added, sum.shape}, Role::kActivation, "x"));
  }
  b.output(result, Role::kAccumulator, "grad/w");
  EXPECT_TRUE(b.status().ok()) << b.status().to_string();
  return graph;
}

void draw_input(Runner& runner, size_t i, DType dtype, uint64_t seed) {
  if (dtype == DType::kF32) return fill(runner.input<float>(i), seed);
  if (dtype == DType::kI32) {
    auto ids = runner.input<int32_t>(i);
    for (size_t k = 0; k < ids.size(); ++k) ids[k] = static_cast<int32_t>(k % 7 * 20);
    return;
  }
  auto bits = runner.input<uint16_t>(i);
  for (size_t k = 0; k < bits.size(); ++k) {
    bits[k] = float_to_bf16(static_cast<float>((k + seed) % 19) / 8 - 1);
  }
}

/// The sum's bytes are NaN before: it shows if one of them is read.
std::vector<float> sum_from_zero(OpKind kind, DType added, bool constant) {
  const Graph graph = sum_graph(kind, added, constant);
  Runner runner(graph, 2);
  const size_t first = constant ? 0 : 1;
  for (size_t i = first; i < graph.inputs().size(); ++i) {
    draw_input(runner, i, graph.type(graph.inputs()[i].value).dtype, i - first);
  }
  if (constant) runner.spoil_output(0);
  runner.launch();
  EXPECT_TRUE(runner.status().ok()) << runner.status().to_string();
  const auto got = runner.output(0);
  return {got.begin(), got.end()};
}

TEST(SumFromZero, HasTheBitsOfASumThatIsZeroedFirst) {
  for (const DType added : {DType::kF32, DType::kBF16}) {
    for (const OpKind kind : {OpKind::kMatmulAccumulate, OpKind::kScatterAdd, OpKind::kAccumulate,
                              OpKind::kLinearCrossEntropyGrad}) {
      const std::vector<float> want = sum_from_zero(kind, added, false);
      const std::vector<float> got = sum_from_zero(kind, added, true);
      EXPECT_EQ(std::memcmp(want.data(), got.data(), want.size() * sizeof(float)), 0)
          << graph::op_info(kind).name << " of " << dtype_name(added);
    }
  }
}

/// Zeros of the size of a gradient would be bytes that only the start of a sum needs.
TEST(SumFromZero, TakesNoMemoryForTheZeros) {
  const Graph graph = sum_graph(OpKind::kMatmulAccumulate, DType::kF32, true);
  const auto backend = std::move(create_cpu_backend({.num_threads = 1})).value();
  const int64_t before = backend->allocation_stats().num_allocations;
  std::vector<Place> places(graph.values().size());
  auto compiled = backend->compile({.body = &graph, .places = places, .name = "test"});
  ASSERT_TRUE(compiled.ok()) << compiled.status().to_string();
  EXPECT_EQ(backend->allocation_stats().num_allocations, before);
}

/// A bit of everything that a layer does.
Graph layer_graph() {
  Graph graph;
  Builder b(graph);
  b.set_segment("layer.0");
  const ValueId x = b.input({DType::kF32, {2, 64, 96}}, Role::kActivation, "x");
  const ValueId w = b.input({DType::kF32, {96}}, Role::kParameter, "norm");
  const ValueId m = b.input({DType::kF32, {96, 96}}, Role::kParameter, "w");
  const auto [y, rstd] = b.rms_norm(x, w, 1e-5);
  const ValueId flat = b.reshape(y, {128, 96});
  const ValueId q = b.reshape(b.matmul(flat, m, false, true), {2, 64, 4, 24});
  graph::Attrs rope;
  for (const char* name : {"theta", "factor", "low_freq_factor", "high_freq_factor"}) {
    rope.set(name, 10000.0);
  }
  rope.set("head_dim", int64_t{24});
  rope.set("seq_len", int64_t{64});
  rope.set("original_max_position", int64_t{64});
  rope.set("scaling", std::string("none"));
  rope.set("dtype", DType::kF32);
  const auto table = b.op(OpKind::kRopeTable, {}, rope);
  const ValueId rotated = b.rotate(q, table[0], table[1], false);
  const ValueId probs = b.softmax(b.causal_mask(b.reshape(rotated, {2, 4, 64, 24}), -1e30));
  const ValueId moved = b.transpose(probs, {0, 2, 1, 3});
  b.output(b.reduce_sum(b.silu(moved), {0, 1}), Role::kActivation, "out");
  b.output(rstd, Role::kActivation, "rstd");
  EXPECT_TRUE(b.status().ok()) << b.status().to_string();
  return graph;
}

TEST(Launch, AllocatesNothing) {
  Runner runner(layer_graph(), 2);
  for (size_t i = 0; i < 3; ++i) fill(runner.input<float>(i), i);
  runner.launch();
  ASSERT_TRUE(runner.status().ok()) << runner.status().to_string();
  const int64_t blocks = runner.backend().allocation_stats().num_allocations;
  const int64_t news = num_news.load();
  for (int i = 0; i < 100; ++i) runner.launch();
  EXPECT_EQ(num_news.load(), news);
  EXPECT_EQ(runner.backend().allocation_stats().num_allocations, blocks);
}

TEST(Launch, ConstantsAreMadeOnceAndCounted) {
  Runner runner(layer_graph(), 1);
  // Two halves of the rotary table, then three inputs, two outputs, workspace and scratch.
  EXPECT_EQ(runner.backend().allocation_stats().num_allocations, 2 + 3 + 2 + 2);
}

}  // namespace
}  // namespace sgactor::kernels
