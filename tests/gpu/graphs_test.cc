// Launches that are recorded and replayed have the bits of plain ones, whatever lies at their
// addresses; and numbers that the device draws have the host's. Letters: B batch, T time, H query
// heads, G key-value heads, K head dim, D model dim, F hidden dim, V vocabulary, N rows.
#include "graph/base/standard_normal.h"
#include "graph/base/units.h"
#include "graph/ir/builder.h"
#include "tests/conformance/backend_test.h"
#include "tests/conformance/native.h"
#include "tests/conformance/op_cases.h"
#include "tests/conformance/tolerance.h"
#include "tests/gpu/cuda_fixture.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

namespace sgactor::testing {
namespace {

using graph::OpKind;
using graph::Role;
using graph::ValueId;
using Numbers = std::vector<std::vector<double>>;
using Bytes = std::vector<std::vector<std::byte>>;

/// One body with memory that stays where it is from launch to launch.
class Rig {
 public:
  Rig(kernels::Backend& backend, const graph::Graph& graph) : backend_(backend), graph_(graph) {}

  Status build() {
    layout_ = make_layout(backend_, graph_, LayoutOptions{});
    SGA_ASSIGN(executable_,
               backend_.compile({&graph_, layout_.places, layout_.workspace_bytes, "case"}));
    SGA_ASSIGN(stream_, backend_.create_stream());
    return move_memory();
  }
  /// Other addresses from now on.
  Status move_memory() {
    int64_t end = 0;
    const auto take = [&](int64_t bytes) {
      const int64_t at = end;
      end = round_up(end + bytes, 256);
      return at;
    };
    std::vector<int64_t> in;
    std::vector<int64_t> out;
    for (const graph::GraphInput& i : graph_.inputs()) in.push_back(take(type(i.value).bytes()));
    for (size_t j = 0; j < graph_.outputs().size(); ++j) {
      const int32_t shared = layout_.output_shares_input[j];
      out.push_back(shared >= 0 ? in[static_cast<size_t>(shared)]
                                : take(type(graph_.outputs()[j].value).bytes()));
    }
    const int64_t workspace = take(layout_.workspace_bytes);
    const int64_t scratch = take(executable_->scratch_bytes());
    SGA_ASSIGN(auto memory, backend_.allocate(end + 256, "case"));
    std::byte* base = memory->data();
    memory_.push_back(std::move(memory));
    in_.clear();
    out_.clear();
    for (int64_t at : in) in_.push_back(base + at);
    for (int64_t at : out) out_.push_back(base + at);
    workspace_ = base + workspace;
    scratch_ = base + scratch;
    return {};
  }
  Result<Bytes> launch(const Numbers& inputs) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      const TensorType& t = type(graph_.inputs()[i].value);
      SGA_TRY(backend_.write_tensor(in_[i], t, to_native(t, inputs[i])));
    }
    RecordingSink sink;
    stream_->launch(*executable_, {in_, out_, workspace_, scratch_}, 1, sink);
    stream_->synchronize();
    SGA_TRY(sink.wait_for(1).at(0).status);
    Bytes out;
    for (size_t j = 0; j < out_.size(); ++j) {
      const TensorType& t = type(graph_.outputs()[j].value);
      out.emplace_back(static_cast<size_t>(t.bytes()));
      SGA_TRY(backend_.read_tensor(out.back(), t, out_[j]));
    }
    return out;
  }

 private:
  [[nodiscard]] const TensorType& type(ValueId v) const { return graph_.type(v); }

  kernels::Backend& backend_;
  const graph::Graph& graph_;
  Layout layout_;
  std::vector<std::unique_ptr<kernels::DeviceMemory>> memory_;  // before the stream: freed after it
  std::unique_ptr<kernels::Executable> executable_;
  std::unique_ptr<kernels::Stream> stream_;
  std::vector<std::byte*> in_, out_;
  std::byte* workspace_ = nullptr;
  std::byte* scratch_ = nullptr;
};

/// The same shapes and kinds of numbers in another order.
Numbers reversed(Numbers numbers) {
  for (auto& n : numbers) std::reverse(n.begin(), n.end());
  return numbers;
}

class Graphs : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(setenv("SGACTOR_CUDA_GRAPHS", "0", 1), 0);
    open_cuda(plain_);
    unsetenv("SGACTOR_CUDA_GRAPHS");
    if (plain_ != nullptr) open_cuda(replaying_);  // else skipped, or failed
  }

  /// Four launches at the same addresses, of two sets of inputs in turns: plain, recorded,
  /// replayed.
  void expect_same_bits(const graph::Graph& graph, const Numbers& inputs, const char* what) {
    Rig plain(*plain_, graph);
    Rig replaying(*replaying_, graph);
    const Status built = plain.build();
    if (built.code() == Code::kUnsupported) return;
    ASSERT_TRUE(built.ok()) << what << ": " << built.to_string();
    ASSERT_TRUE(replaying.build().ok()) << what;
    const Numbers other = reversed(inputs);
    for (int i = 0; i < 4; ++i) {
      const Numbers& now = i % 2 == 0 ? inputs : other;
      const auto want = plain.launch(now);
      const auto got = replaying.launch(now);
      ASSERT_TRUE(want.ok()) << what << ": " << want.status().to_string();
      ASSERT_TRUE(got.ok()) << what << ": " << got.status().to_string();
      ASSERT_EQ(*got, *want) << what << ", launch " << i;
    }
  }

  std::unique_ptr<kernels::Backend> plain_;
  std::unique_ptr<kernels::Backend> replaying_;
};

TEST_F(Graphs, EveryOp) {
  for (const CaseRow& row : case_table()) {
    if (row.make == nullptr) continue;  // ops that communicate are no backend's
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      PhiloxDraw draw(static_cast<uint64_t>(row.kind));
      const OpCase c = make_case(row.kind, {.dtype = dtype, .max_dim = 9}, draw);
      if (!c.status.ok()) continue;
      const std::string what =
          std::string(graph::op_info(row.kind).name) + " " + std::string(dtype_name(dtype));
      expect_same_bits(c.graph, c.inputs, what.c_str());
    }
  }
  EXPECT_GT(replaying_->launch_stats().replayed, 0);
  EXPECT_EQ(plain_->launch_stats().replayed, 0);
}

/// Embedding, norm, attention with its gradient, a product and a loss.
class Block : public Graphs {
 protected:
  static constexpr int64_t B = 2, T = 128, H = 4, G = 2, K = 64, D = H * K, V = 1000, N = B * T;

  ValueId input(DType dtype, Shape shape) {
    const PhiloxStream random{11, inputs_.size()};
    std::vector<double> numbers(static_cast<size_t>(shape.num_elements()));
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = nearest(dtype, 0.5 * random.normal(i));
    inputs_.push_back(std::move(numbers));
    return b_.input({dtype, std::move(shape)}, Role::kActivation, numbered("x", inputs_.size()));
  }
  ValueId ids() {
    const PhiloxStream random{12, inputs_.size()};
    std::vector<double> numbers(N);
    for (size_t i = 0; i < numbers.size(); ++i)
      numbers[i] = static_cast<double>(random.below(i, static_cast<uint64_t>(V)));
    inputs_.push_back(std::move(numbers));
    return b_.input({DType::kI32, Shape{N}}, Role::kTokens, numbered("x", inputs_.size()));
  }
  void output(ValueId v) {
    b_.output(v, Role::kActivation, numbered("y", graph_.outputs().size()));
  }
  void build() {
    const ValueId tokens = ids();
    const ValueId x = b_.gather(input(DType::kBF16, Shape{V, D}), tokens);
    const auto [n, rstd] = b_.rms_norm(x, input(DType::kBF16, Shape{D}), 1e-5);
    const ValueId q = b_.reshape(b_.matmul(n, input(DType::kBF16, Shape{D, D})), {B, T, H, K});
    const ValueId k = b_.reshape(b_.matmul(n, input(DType::kBF16, Shape{D, G * K})), {B, T, G, K});
    const ValueId v = input(DType::kBF16, Shape{B, T, G, K});
    const graph::Attrs a =
        attrs({{"scale", 1 / std::sqrt(static_cast<double>(K))}, {"causal", true}});
    const auto o = b_.op(OpKind::kFlashAttention, {q, k, v}, a);
    const ValueId d_o = input(DType::kBF16, Shape{B, T, H, K});
    for (ValueId g : b_.op(OpKind::kFlashAttentionGrad, {d_o, q, k, v, o[0], o[1]}, a)) output(g);
    const ValueId logits = b_.matmul(b_.reshape(o[0], {N, D}), input(DType::kBF16, Shape{D, V}));
    const auto [loss, lse] = b_.cross_entropy(logits, ids());
    output(loss);
    output(logits);
    output(logits);  // the second one is a copy
    ASSERT_TRUE(b_.status().ok()) << b_.status().to_string();
  }

  graph::Graph graph_;
  graph::Builder b_{graph_};
  Numbers inputs_;
};

TEST_F(Block, ReplaysWithTheSameBits) {
  build();
  expect_same_bits(graph_, inputs_, "block");
  const kernels::LaunchStats stats = replaying_->launch_stats();
  EXPECT_EQ(stats.plain, 2);
  EXPECT_EQ(stats.replayed, 2);
  EXPECT_GE(stats.graphs, 2);  // ids are checked in between
}

TEST_F(Block, OtherAddressesAreRecordedAnew) {
  build();
  Rig rig(*replaying_, graph_);
  ASSERT_TRUE(rig.build().ok());
  const auto want = rig.launch(inputs_);
  ASSERT_TRUE(want.ok()) << want.status().to_string();
  for (int i = 0; i < 2; ++i) ASSERT_EQ(*rig.launch(inputs_), *want);
  ASSERT_TRUE(rig.move_memory().ok());
  for (int i = 0; i < 3; ++i) ASSERT_EQ(*rig.launch(inputs_), *want);
  const kernels::LaunchStats stats = replaying_->launch_stats();
  EXPECT_EQ(stats.plain, 4);
  EXPECT_EQ(stats.replayed, 2);
}

TEST_F(Block, ABadIdIsFoundInAReplay) {
  build();
  Rig rig(*replaying_, graph_);
  ASSERT_TRUE(rig.build().ok());
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(rig.launch(inputs_).ok());
  inputs_[0][5] = static_cast<double>(V);
  const Status status = rig.launch(inputs_).status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument) << status.to_string();
  EXPECT_NE(status.message().find("id 1000 at position 5"), std::string::npos) << status.message();
}

/// A sum that starts from a constant zero does not read what is there, also not at the same
/// addresses again; rows that are scattered into a sum are added to it alone.
TEST_F(Graphs, SumsThatStartFromZeroDoSoAtEachLaunch) {
  constexpr int64_t N = 256, D = 128, V = 2048, R = 16;
  graph::Graph graph;
  graph::Builder b(graph);
  Numbers inputs;
  const auto input = [&](DType dtype, Shape shape, Role role = Role::kActivation) {
    const PhiloxStream random{13, inputs.size()};
    std::vector<double> numbers(static_cast<size_t>(shape.num_elements()));
    for (size_t i = 0; i < numbers.size(); ++i) {
      numbers[i] = dtype == DType::kI32 ? static_cast<double>(random.below(i, R))
                                        : nearest(dtype, 0.5 * random.normal(i));
    }
    inputs.push_back(std::move(numbers));
    return b.input({dtype, std::move(shape)}, role, numbered("x", inputs.size()));
  };
  const auto zero = [&](Shape shape) { return b.constant(0, {DType::kF32, std::move(shape)}); };
  const auto output = [&](ValueId v) {
    b.output(v, Role::kAccumulator, numbered("y", graph.outputs().size()));
  };
  const graph::Attrs turned = attrs({{"trans_a", true}, {"trans_b", false}});
  const ValueId x = input(DType::kBF16, Shape{N, D});
  const ValueId dy = input(DType::kBF16, Shape{N, 96});
  output(b.op1(OpKind::kMatmulAccumulate, {zero({D, 96}), x, dy}, turned));
  output(b.accumulate(zero({33}), input(DType::kBF16, Shape{33})));
  const ValueId ids = input(DType::kI32, Shape{64}, Role::kTokens);
  const ValueId rows = input(DType::kF32, Shape{64, 24});
  const auto scatter = [&] {
    return b.op1(OpKind::kScatterAdd, {ids, rows}, attrs({{"rows", int64_t{R}}}));
  };
  output(b.accumulate(zero({R, 24}), scatter()));
  output(b.accumulate(input(DType::kF32, Shape{R, 24}, Role::kAccumulator), scatter()));
  const ValueId w = input(DType::kBF16, Shape{V, D});
  const ValueId targets = input(DType::kI32, Shape{N}, Role::kTargets);
  for (ValueId v : b.op(OpKind::kLinearCrossEntropyGrad,
                        {zero({V, D}), x, w, targets, input(DType::kF32, Shape{})})) {
    output(v);
  }
  ASSERT_TRUE(b.status().ok()) << b.status().to_string();
  expect_same_bits(graph, inputs, "sums");
  Rig rig(*replaying_, graph);
  ASSERT_TRUE(rig.build().ok());
  const auto want = kernels::run_reference(graph, inputs);
  ASSERT_TRUE(want.ok()) << want.status().to_string();
  for (int i = 0; i < 4; ++i) {
    const auto got = rig.launch(inputs);
    ASSERT_TRUE(got.ok()) << got.status().to_string();
    for (size_t j = 0; j < got->size(); ++j) {
      const TensorType& type = graph.type(graph.outputs()[j].value);
      const auto problem = disagreement(from_native(type, (*got)[j]), (*want)[j], 6e-2);
      EXPECT_FALSE(problem) << "launch " << i << ", output " << j << ": " << *problem;
    }
  }
}

TEST_F(Graphs, NumbersThatTheDeviceDrawsAreTheHosts) {
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    for (const int64_t n : {1, 1000003}) {
      const TensorType type{dtype, Shape{n}};
      auto memory = plain_->allocate(type.bytes(), "numbers");
      ASSERT_TRUE(memory.ok()) << memory.status().to_string();
      for (const NormalNumbers& rule :
           {NormalNumbers{{1, 0x9e3779b97f4a7c15ULL}, 0, 0.02}, NormalNumbers{{7, 3}, 1, 0},
            NormalNumbers{{2, 5}, 0.5, 3}}) {
        const Status drawn = plain_->fill_normal((*memory)->data(), type, rule);
        ASSERT_TRUE(drawn.ok()) << drawn.to_string();
        std::vector<std::byte> got(static_cast<size_t>(type.bytes()));
        ASSERT_TRUE(plain_->read_tensor(got, type, (*memory)->data()).ok());
        std::vector<std::byte> want(got.size());
        for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
          const double x = normal_number(rule, i);
          const auto y = static_cast<float>(x);
          if (dtype == DType::kF32) {
            std::memcpy(want.data() + i * sizeof y, &y, sizeof y);
          } else {
            std::memcpy(want.data() + i * sizeof x, &x, sizeof x);
          }
        }
        ASSERT_EQ(std::memcmp(got.data(), want.data(), got.size()), 0)
            << type.to_string() << " mean " << rule.mean << " std " << rule.std;
      }
    }
  }
  std::byte nothing{};
  EXPECT_EQ(plain_->fill_normal(&nothing, {DType::kBF16, Shape{1}}, {}).code(), Code::kUnsupported);
}

}  // namespace
}  // namespace sgactor::testing
