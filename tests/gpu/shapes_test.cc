// Shapes that take the fast paths of the cuda backend, which the small cases of the conformance
// suite do not reach: fused attention, wide rows, long sorts, products with 16-bit operands. Each
// is compared with the float64 reference, and run twice for equal bits. Letters: B batch, T time, H
// query heads, G key-value heads, K head dim, D model dim, V vocabulary, N rows.
#include "graph/base/philox.h"
#include "graph/ir/builder.h"
#include "graph/ir/verify.h"
#include "tests/conformance/backend_test.h"
#include "tests/conformance/native.h"
#include "tests/conformance/op_cases.h"
#include "tests/conformance/tolerance.h"
#include "tests/gpu/cuda_fixture.h"

#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace sgactor::testing {
namespace {

using graph::OpKind;
using graph::Role;
using graph::ValueId;

class Shapes : public CudaTest {
 protected:
  ValueId input(DType dtype, Shape shape, double size = 1) {
    const PhiloxStream random{7, inputs_.size()};
    std::vector<double> numbers(static_cast<size_t>(shape.num_elements()));
    for (size_t i = 0; i < numbers.size(); ++i)
      numbers[i] = nearest(dtype, size * (2 * random.uniform(i) - 1));
    inputs_.push_back(std::move(numbers));
    return b_.input({dtype, std::move(shape)}, Role::kActivation, numbered("x", inputs_.size()));
  }
  ValueId ids(Shape shape, uint64_t below) {
    const PhiloxStream random{8, inputs_.size()};
    std::vector<double> numbers(static_cast<size_t>(shape.num_elements()));
    for (size_t i = 0; i < numbers.size(); ++i)
      numbers[i] = static_cast<double>(random.below(i, below));
    inputs_.push_back(std::move(numbers));
    return b_.input({DType::kI32, std::move(shape)}, Role::kTokens, numbered("x", inputs_.size()));
  }
  std::vector<ValueId> outputs(const std::vector<ValueId>& values) {
    for (ValueId v : values)
      b_.output(v, Role::kActivation, numbered("y", graph_.outputs().size()));
    return values;
  }

  void expect_agreement(double tolerance) {
    ASSERT_TRUE(b_.status().ok()) << b_.status().to_string();
    const auto want = kernels::run_reference(graph_, inputs_);
    ASSERT_TRUE(want.ok()) << want.status().to_string();
    const RunResult got = run_on(*backend_, graph_, inputs_);
    ASSERT_TRUE(got.status.ok()) << got.status.to_string();
    for (size_t j = 0; j < got.outputs.size(); ++j) {
      const TensorType& type = graph_.type(graph_.outputs()[j].value);
      const auto problem = disagreement(from_native(type, got.outputs[j]), (*want)[j], tolerance);
      EXPECT_FALSE(problem) << "output " << j << " " << type.to_string() << ": " << *problem;
    }
    const RunResult again = run_on(*backend_, graph_, inputs_);
    EXPECT_EQ(got.outputs, again.outputs);
  }

  graph::Graph graph_;
  graph::Builder b_{graph_};
  std::vector<std::vector<double>> inputs_;
};

struct AttentionCase {
  DType dtype;
  int64_t B, T, H, G, K;
  bool causal = true;
};

class Attention : public Shapes, public ::testing::WithParamInterface<AttentionCase> {};

TEST_P(Attention, ForwardAndGradient) {
  const AttentionCase& c = GetParam();
  const Shape q_shape{c.B, c.T, c.H, c.K};
  const Shape k_shape{c.B, c.T, c.G, c.K};
  const ValueId q = input(c.dtype, q_shape);
  const ValueId k = input(c.dtype, k_shape);
  const ValueId v = input(c.dtype, k_shape);
  const ValueId d_o = input(c.dtype, q_shape);
  const graph::Attrs a =
      attrs({{"scale", 1 / std::sqrt(static_cast<double>(c.K))}, {"causal", c.causal}});
  const std::vector<ValueId> saved = b_.op(OpKind::kFlashAttention, {q, k, v}, a);
  outputs(saved);
  outputs(b_.op(OpKind::kFlashAttentionGrad, {d_o, q, k, v, saved[0], saved[1]}, a));
  expect_agreement(tolerance_of(c.dtype));
}

INSTANTIATE_TEST_SUITE_P(Sizes, Attention,
                         ::testing::Values(AttentionCase{DType::kBF16, 2, 128, 4, 4, 64},
                                           AttentionCase{DType::kBF16, 1, 256, 4, 1, 64},
                                           AttentionCase{DType::kBF16, 1, 200, 4, 2, 64},
                                           AttentionCase{DType::kBF16, 1, 200, 4, 2, 64, false},
                                           AttentionCase{DType::kBF16, 3, 64, 3, 3, 64},
                                           AttentionCase{DType::kBF16, 2, 640, 4, 2, 64},
                                           AttentionCase{DType::kBF16, 1, 192, 2, 1, 128},
                                           AttentionCase{DType::kBF16, 2, 333, 4, 2, 128},
                                           AttentionCase{DType::kBF16, 1, 333, 2, 2, 128, false},
                                           AttentionCase{DType::kBF16, 1, 96, 2, 1, 32},
                                           AttentionCase{DType::kF32, 1, 160, 4, 2, 64},
                                           AttentionCase{DType::kF64, 1, 70, 2, 1, 128}));

struct ProductCase {
  DType operands, result;
  int64_t M, N, K;
  bool trans_a, trans_b;
};

class Products : public Shapes, public ::testing::WithParamInterface<ProductCase> {};

TEST_P(Products, AgreeAndAccumulate) {
  const ProductCase& c = GetParam();
  const ValueId a = input(c.operands, c.trans_a ? Shape{c.K, c.M} : Shape{c.M, c.K});
  const ValueId b = input(c.operands, c.trans_b ? Shape{c.N, c.K} : Shape{c.K, c.N});
  const graph::Attrs t = attrs({{"trans_a", c.trans_a}, {"trans_b", c.trans_b}});
  outputs(b_.op(OpKind::kMatmul, {a, b}, t));
  const ValueId acc = input(c.result, Shape{c.M, c.N});
  outputs(b_.op(OpKind::kMatmulAccumulate, {acc, a, b}, t));
  outputs(b_.op(OpKind::kMatmul, {a, b, input(c.operands, Shape{c.M, c.N}, 10)}, t));
  expect_agreement(tolerance_of(c.operands));
}

INSTANTIATE_TEST_SUITE_P(
    Sizes, Products,
    ::testing::Values(ProductCase{DType::kBF16, DType::kF32, 256, 192, 512, false, true},
                      ProductCase{DType::kBF16, DType::kF32, 200, 136, 264, true, false},
                      ProductCase{DType::kBF16, DType::kF32, 128, 256, 320, false, false},
                      ProductCase{DType::kBF16, DType::kF32, 65, 33, 17, true, true},
                      ProductCase{DType::kBF16, DType::kF32, 64, 48, 8192, true, false},
                      ProductCase{DType::kF32, DType::kF32, 256, 320, 384, false, true},
                      ProductCase{DType::kF32, DType::kF64, 40, 24, 56, true, false},
                      ProductCase{DType::kF64, DType::kF64, 96, 80, 112, true, false}));

/// A table of products of its own, so that the first compile measures.
class Unmeasured : public Shapes {
 protected:
  void SetUp() override {
    setenv("SGACTOR_CUDA_MATMULS", table_.c_str(), 1);
    Shapes::SetUp();
  }
  void TearDown() override {
    unsetenv("SGACTOR_CUDA_MATMULS");
    std::filesystem::remove(table_);
  }
  [[nodiscard]] int rows_with(const std::string& text) const {
    std::ifstream file(table_);
    int rows = 0;
    for (std::string line; std::getline(file, line);) rows += line.find(text) != line.npos ? 1 : 0;
    return rows;
  }

  const std::string table_ =
      (std::filesystem::temp_directory_path() / ("sgactor-matmuls-" + std::to_string(getpid())))
          .string();
};

TEST_F(Unmeasured, WithoutMemoryTakesASmallWorkspace) {
  constexpr int64_t kSize = 1024;  // large enough to be measured
  const ValueId a = input(DType::kBF16, Shape{kSize, kSize});
  const ValueId b = input(DType::kBF16, Shape{kSize, kSize});
  outputs(b_.op(OpKind::kMatmul, {a, b}, attrs({{"trans_a", false}, {"trans_b", true}})));
  expect_agreement(tolerance_of(DType::kBF16));  // loads the libraries
  ASSERT_EQ(rows_with("1024x1024x1024"), 1);
  std::filesystem::remove(table_);
  Shapes::SetUp();

  const Layout layout = make_layout(*backend_, graph_, {});
  {
    const auto all = hoard(int64_t{16} << 20);
    ASSERT_FALSE(all.empty());
    const auto made =
        backend_->compile({&graph_, layout.places, layout.workspace_bytes, "without memory"});
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    EXPECT_LE((*made)->scratch_bytes(), int64_t{4} << 20);
  }
  EXPECT_EQ(rows_with("1024x1024x1024"), 1) << "the choice has to stand";
  expect_agreement(tolerance_of(DType::kBF16));
}

TEST_F(Shapes, SumsAndGatesOfLongTensors) {
  const Shape shape{130, 1024};
  std::vector<ValueId> x;
  for (int i = 0; i < 4; ++i) x.push_back(input(DType::kBF16, shape));
  const auto program = [&](const char* text, const std::vector<ValueId>& operands) {
    outputs(b_.op(OpKind::kFusedPointwise, operands, attrs({{"program", std::string(text)}})));
  };
  program("add 0 1; add 3 2", {x[0], x[1], x[2]});
  program("add 0 1; add 4 2; add 3 5", x);
  program("mul 0 1; add 3 2; silu 4; scale 5 0.5", {x[0], x[1], x[2]});
  outputs(b_.op(OpKind::kSwiglu, {x[0], x[1]}, {}));
  outputs(b_.op(OpKind::kSwigluGrad, {x[0], x[1], x[2]}, {}));
  expect_agreement(tolerance_of(DType::kBF16));
}

/// In front of its gradient one kernel makes the product of the gates too, behind it two do: to the
/// same bits.
TEST_F(Shapes, GatesAndTheirGradientAtOnce) {
  for (const int64_t columns : {1024, 1021}) {
    std::vector<std::vector<std::byte>> first;
    for (const bool at_once : {true, false}) {
      graph_ = {};
      inputs_.clear();
      std::vector<ValueId> x;
      for (int i = 0; i < 3; ++i) x.push_back(input(DType::kBF16, Shape{130, columns}, 3));
      ValueId product = graph::kNoValue;
      if (at_once) product = b_.op1(OpKind::kSwiglu, {x[0], x[1]});
      const std::vector<ValueId> grads = b_.op(OpKind::kSwigluGrad, x);
      if (!at_once) product = b_.op1(OpKind::kSwiglu, {x[0], x[1]});
      outputs({product, grads[0], grads[1]});
      const RunResult got = run_on(*backend_, graph_, inputs_);
      ASSERT_TRUE(got.status.ok()) << got.status.to_string();
      if (at_once) first = got.outputs;
      EXPECT_EQ(got.outputs, first);
    }
  }
}

/// One kernel makes the product with the first of two gradients; the second has its own.
TEST_F(Shapes, TwoGradientsOfTheSameGates) {
  std::vector<ValueId> x;
  for (int i = 0; i < 4; ++i) x.push_back(input(DType::kBF16, Shape{130, 1024}, 3));
  outputs(b_.op(OpKind::kSwiglu, {x[0], x[1]}, {}));
  outputs(b_.op(OpKind::kSwigluGrad, {x[0], x[1], x[2]}, {}));
  outputs(b_.op(OpKind::kSwigluGrad, {x[0], x[1], x[3]}, {}));
  expect_agreement(tolerance_of(DType::kBF16));
}

/// Where the plan leaves room, the block of logits takes no scratch; the sums are the same.
TEST_F(Shapes, HeadInTheRoomOfThePlan) {
  constexpr int64_t N = 256, D = 128, V = 2048;
  for (const DType dtype : {DType::kBF16, DType::kF8E4M3}) {
    graph_ = {};
    inputs_.clear();
    const bool f8 = dtype == DType::kF8E4M3;
    // A value of the workspace, beside which room can be.
    ValueId x =
        b_.op1(OpKind::kScale, {input(DType::kBF16, Shape{N, D})}, attrs({{"factor", 2.0}}));
    if (f8) x = b_.op1(OpKind::kCast, {x}, attrs({{"dtype", dtype}}));
    const ValueId w = input(dtype, Shape{V, D}, 2);
    std::vector<ValueId> operands = {input(DType::kF32, Shape{V, D}), x, w, ids(Shape{N}, V),
                                     input(DType::kF32, Shape{})};
    if (f8) {
      operands.push_back(input(DType::kF32, Shape{}));
      operands.push_back(input(DType::kF32, Shape{}));
      operands.push_back(b_.transpose(x, {1, 0}));
      operands.push_back(b_.transpose(w, {1, 0}));
    }
    outputs(b_.op(OpKind::kLinearCrossEntropyGrad, operands));
    ASSERT_TRUE(b_.status().ok()) << b_.status().to_string();
    Layout layout = make_layout(*backend_, graph_, {});
    const auto scratch = [&] {
      auto made = backend_->compile({&graph_, layout.places, layout.workspace_bytes, "case"});
      EXPECT_TRUE(made.ok()) << made.status().to_string();
      return made.ok() ? (*made)->scratch_bytes() : 0;
    };
    const int64_t logits = N * V * (f8 ? 4 : 2);
    const RunResult apart = run_on(*backend_, graph_, inputs_, layout);
    const int64_t scratch_apart = scratch();
    layout.workspace_bytes += logits + 4096;
    const RunResult inside = run_on(*backend_, graph_, inputs_, layout);
    ASSERT_TRUE(apart.status.ok()) << apart.status.to_string();
    ASSERT_TRUE(inside.status.ok()) << inside.status.to_string();
    EXPECT_EQ(apart.outputs, inside.outputs);
    EXPECT_LE(scratch(), scratch_apart - logits);
  }
}

TEST_F(Shapes, WideNormsInBf16) {
  const Shape shape{600, 2048};
  const ValueId x = input(DType::kBF16, shape);
  const ValueId r = input(DType::kBF16, shape);
  const ValueId w = input(DType::kBF16, Shape{2048});
  const ValueId dy = input(DType::kBF16, shape);
  const auto n = b_.op(OpKind::kAddRmsNorm, {x, r, w}, attrs({{"eps", 1e-5}}));
  outputs(n);
  outputs(b_.op(OpKind::kAddRmsNormGrad, {dy, r, n[0], w, n[2]}));
  for (const int64_t D : {512, 1024, 2048, 4096}) {
    const ValueId rows = input(DType::kBF16, Shape{1077, D});
    const ValueId factors = input(DType::kBF16, Shape{D});
    const auto norm = b_.op(OpKind::kRmsNorm, {rows, factors}, attrs({{"eps", 1e-5}}));
    outputs(norm);
    const ValueId gradient = input(DType::kBF16, Shape{1077, D});
    outputs(b_.op(OpKind::kRmsNormGrad, {gradient, rows, factors, norm[1]}));
  }
  expect_agreement(3e-2);
}

/// Fewer rows than a block has warps, and more than all blocks have.
TEST_F(Shapes, GradientsOfNormsOfFewAndManyRows) {
  for (const int64_t D : {1024, 2048}) {
    for (const int64_t rows : {5, 1200}) {
      const ValueId x = input(DType::kBF16, Shape{rows, D});
      const ValueId w = input(DType::kBF16, Shape{D});
      const auto norm = b_.op(OpKind::kRmsNorm, {x, w}, attrs({{"eps", 1e-5}}));
      const ValueId dy = input(DType::kBF16, Shape{rows, D});
      const ValueId ds = input(DType::kBF16, Shape{rows, D});
      outputs(b_.op(OpKind::kAddRmsNormGrad, {dy, ds, x, w, norm[1]}));
    }
  }
  expect_agreement(3e-2);
}

/// Parts that one launch joins, more than one launch takes, at any alignment.
TEST_F(Shapes, ManySmallPartsJoined) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF8E4M3}) {
    std::vector<ValueId> parts;
    for (int64_t i = 0; i < 200; ++i) parts.push_back(input(dtype, Shape{1 + i % 7}));
    outputs({b_.concat(parts, 0)});
  }
  expect_agreement(0);
}

TEST_F(Shapes, RowsTooLongForSharedMemory) {
  const Shape shape{9, 16384};
  const ValueId x = input(DType::kF32, shape);
  const ValueId w = input(DType::kF32, Shape{16384});
  const ValueId dy = input(DType::kF32, shape);
  const auto n = b_.op(OpKind::kRmsNorm, {x, w}, attrs({{"eps", 1e-5}}));
  outputs(b_.op(OpKind::kRmsNormGrad, {dy, x, w, n[1]}));
  expect_agreement(1e-5);
}

TEST_F(Shapes, LossOverALargeVocabulary) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const ValueId logits = input(dtype, Shape{70, 32000}, 4);
    const ValueId targets = ids(Shape{70}, 32000);
    const ValueId dloss = input(DType::kF32, Shape{});
    const auto loss = b_.op(OpKind::kCrossEntropy, {logits, targets});
    outputs(loss);
    outputs(b_.op(OpKind::kCrossEntropyGrad, {logits, targets, loss[1], dloss}));
  }
  expect_agreement(3e-2);
}

TEST_F(Shapes, RowsOfOneIdAreAddedInOrder) {
  const ValueId tokens = ids(Shape{4, 500}, 37);
  const ValueId dy = input(DType::kF32, Shape{4, 500, 264});
  outputs(b_.op(OpKind::kScatterAdd, {tokens, dy}, attrs({{"rows", int64_t{64}}})));
  expect_agreement(1e-5);
}

TEST_F(Shapes, LongSumsInTreeOrder) {
  const ValueId x = input(DType::kF32, Shape{70001});
  outputs(b_.op(OpKind::kTreeSum, {x}));
  outputs(b_.op(OpKind::kSumSquares, {x}, attrs({{"chunk", int64_t{4096}}})));
  outputs(b_.op(OpKind::kReduceSum, {x}, attrs({{"axes", std::vector<int64_t>{0}}})));
  // One launch sums what stands in a row, up to 32 tensors.
  for (int64_t i = 0; i < 35; ++i) {
    const ValueId part = input(DType::kF32, Shape{1 + 977 * i});
    outputs(b_.op(OpKind::kSumSquares, {part}, attrs({{"chunk", int64_t{1024}}})));
  }
  // They wait for the last of them, but for those that are asked for before.
  for (int64_t i = 0; i < 4; ++i) {
    const ValueId part = input(DType::kF32, Shape{3000 + i});
    const ValueId sums = b_.op1(OpKind::kSumSquares, {part}, attrs({{"chunk", int64_t{512}}}));
    outputs({sums, b_.op1(OpKind::kScale, {part}, attrs({{"factor", 3.0}}))});
    if (i == 1) outputs(b_.op(OpKind::kTreeSum, {sums}));
  }
  expect_agreement(1e-5);
}

}  // namespace
}  // namespace sgactor::testing
