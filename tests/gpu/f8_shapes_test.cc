// 8-bit floats on cuda: shapes that take the library's products, sums that are cut, the head both
// ways, and makers that round what they make. Letters: N rows, D model dim, V vocabulary, F width
// of the gates.
#include "graph/base/philox.h"
#include "graph/ir/builder.h"
#include "graph/ir/verify.h"
#include "tests/conformance/backend_test.h"
#include "tests/conformance/native.h"
#include "tests/conformance/op_cases.h"
#include "tests/conformance/tolerance.h"
#include "tests/gpu/cuda_fixture.h"

namespace sgactor::testing {
namespace {

using graph::OpKind;
using graph::Role;
using graph::ValueId;

struct Case {
  graph::Graph graph;
  graph::Builder b{graph};
  std::vector<std::vector<double>> inputs;

  ValueId input(DType dtype, Shape shape, double size = 1) {
    const PhiloxStream random{17, inputs.size()};
    std::vector<double> numbers(static_cast<size_t>(shape.num_elements()));
    for (size_t i = 0; i < numbers.size(); ++i)
      numbers[i] = nearest(dtype, size * (2 * random.uniform(i) - 1));
    inputs.push_back(std::move(numbers));
    return b.input({dtype, std::move(shape)}, Role::kActivation, numbered("x", inputs.size()));
  }
  ValueId number(double value) {
    inputs.push_back({value});
    return b.input({DType::kF32, {}}, Role::kActivation, numbered("x", inputs.size()));
  }
  ValueId ids(int64_t count, uint64_t below) {
    const PhiloxStream random{18, inputs.size()};
    std::vector<double> numbers(static_cast<size_t>(count));
    for (size_t i = 0; i < numbers.size(); ++i)
      numbers[i] = static_cast<double>(random.below(i, below));
    inputs.push_back(std::move(numbers));
    return b.input({DType::kI32, {count}}, Role::kTokens, numbered("x", inputs.size()));
  }
  void outputs(const std::vector<ValueId>& values) {
    for (ValueId v : values) b.output(v, Role::kActivation, numbered("y", graph.outputs().size()));
  }
  /// x in both layouts.
  std::vector<ValueId> round_both(ValueId x, DType dtype) {
    const ValueId amax = number(1.5);
    return b.op(OpKind::kQuantizeF8Both, {x, amax, number(0.25)}, attrs({{"dtype", dtype}}));
  }
};

class F8 : public CudaTest {
 protected:
  RunResult run(const Case& c) {
    EXPECT_TRUE(c.b.status().ok()) << c.b.status().to_string();
    RunResult got = run_on(*backend_, c.graph, c.inputs);
    EXPECT_TRUE(got.status.ok()) << got.status.to_string();
    EXPECT_EQ(run_on(*backend_, c.graph, c.inputs).outputs, got.outputs) << "other bits";
    return got;
  }

  void expect_agreement(const Case& c, double tolerance) {
    const RunResult got = run(c);
    const auto want = kernels::run_reference(c.graph, c.inputs);
    ASSERT_TRUE(want.ok()) << want.status().to_string();
    for (size_t j = 0; j < got.outputs.size(); ++j) {
      const TensorType& type = c.graph.type(c.graph.outputs()[j].value);
      const auto problem = disagreement(from_native(type, got.outputs[j]), (*want)[j], tolerance);
      EXPECT_FALSE(problem) << "output " << j << " " << type.to_string() << ": " << *problem;
    }
  }
};

TEST_F(F8, CutSumsAgree) {
  Case c;
  const graph::Attrs t = attrs({{"trans_a", false}, {"trans_b", true}});
  const ValueId a = c.input(DType::kF8E5M2, Shape{64, 16384});
  const ValueId b = c.input(DType::kF8E4M3, Shape{96, 16384});
  const ValueId acc = c.input(DType::kF32, Shape{64, 96});
  const ValueId zero = c.b.constant(0, {DType::kF32, Shape{64, 96}});
  c.outputs(c.b.op(OpKind::kScaledMatmulAccumulate, {acc, a, b, c.number(0.5), c.number(2)}, t));
  c.outputs(c.b.op(OpKind::kScaledMatmulAccumulate, {zero, a, b, c.number(0.5), c.number(2)}, t));
  expect_agreement(c, tolerance_of(OpKind::kScaledMatmul, DType::kF32));
}

/// Sums that stay in the matrix unit have fewer bits, which a result in bf16 does not show.
TEST_F(F8, LongSumsOfTheForwardPassAgreeInBf16) {
  Case c;
  graph::Attrs t = attrs({{"trans_a", false}, {"trans_b", true}, {"dtype", DType::kBF16}});
  const ValueId a = c.input(DType::kF8E4M3, Shape{64, 8192});
  const ValueId b = c.input(DType::kF8E4M3, Shape{96, 8192});
  c.outputs(c.b.op(OpKind::kScaledMatmul, {a, b, c.number(0.5), c.number(2)}, t));
  expect_agreement(c, 4e-3);
}

/// The library adds c in f32 and rounds once, in all the dtypes that the products of a step have.
TEST_F(F8, ProductsAddWhatTheyAreGiven) {
  for (const DType a_type : {DType::kF8E4M3, DType::kF8E5M2}) {
    Case c;
    graph::Attrs t = attrs({{"trans_a", false}, {"trans_b", true}, {"dtype", DType::kBF16}});
    const ValueId a = c.input(a_type, Shape{256, 1024});
    const ValueId b = c.input(DType::kF8E4M3, Shape{192, 1024});
    const ValueId to = c.input(DType::kBF16, Shape{256, 192}, 20);
    c.outputs(c.b.op(OpKind::kScaledMatmul, {a, b, c.number(0.5), c.number(2), to}, t));
    expect_agreement(c, 4e-3);
  }
}

TEST_F(F8, HeadOfALargeVocabularyBothWays) {
  constexpr int64_t N = 256, D = 128, V = 2048;
  for (const bool from_zero : {false, true}) {
    Case c;
    const ValueId x = c.input(DType::kF8E4M3, Shape{N, D}, 2);
    const ValueId w = c.input(DType::kF8E4M3, Shape{V, D}, 2);
    const TensorType sums{DType::kF32, Shape{V, D}};
    const ValueId acc = from_zero ? c.b.constant(0, sums) : c.input(sums.dtype, sums.shape);
    const ValueId targets = c.ids(N, V);
    std::vector<ValueId> operands = {acc,          x, w, targets, c.number(0.75), c.number(0.25),
                                     c.number(0.5)};
    operands.push_back(c.b.transpose(x, {1, 0}));
    operands.push_back(c.b.transpose(w, {1, 0}));
    c.outputs(c.b.op(OpKind::kLinearCrossEntropyGrad, operands));
    // A gradient that falls to the next 8-bit number is a sixteenth to an eighth off.
    expect_agreement(c, 6e-2);
  }
}

/// What rounds, and the 16-bit values that it rounds.
struct Made {
  std::vector<ValueId> rounded, values;
};

/// The maker's kernel rounds where nothing else reads its value. As a graph output the value has
/// another reader, so the ops run one by one: to the same bits.
class RoundedMakers : public F8 {
 protected:
  template <class Make>
  void expect_same_bits(Make make) {
    Case together;
    together.outputs(make(together).rounded);
    Case apart;
    const Made made = make(apart);
    apart.outputs(made.rounded);
    apart.outputs(made.values);
    const RunResult a = run(together);
    const RunResult b = run(apart);
    ASSERT_EQ(a.outputs.size() + made.values.size(), b.outputs.size());
    for (size_t j = 0; j < a.outputs.size(); ++j) EXPECT_EQ(a.outputs[j], b.outputs[j]) << j;
  }
};

constexpr int64_t N = 208, F = 320;

TEST_F(RoundedMakers, Swiglu) {
  expect_same_bits([](Case& c) {
    const ValueId gate = c.input(DType::kBF16, Shape{N, F}, 3);
    const ValueId up = c.input(DType::kBF16, Shape{N, F});
    const ValueId y = c.b.op1(OpKind::kSwiglu, {gate, up});
    return Made{c.round_both(y, DType::kF8E4M3), {y}};
  });
}

TEST_F(RoundedMakers, SwigluGradient) {
  expect_same_bits([](Case& c) {
    const ValueId gate = c.input(DType::kBF16, Shape{N, F}, 3);
    const ValueId up = c.input(DType::kBF16, Shape{N, F});
    const ValueId dy = c.input(DType::kBF16, Shape{N, F});
    const std::vector<ValueId> grads = c.b.op(OpKind::kSwigluGrad, {gate, up, dy});
    Made made{c.round_both(grads[0], DType::kF8E5M2), grads};
    for (ValueId v : c.round_both(grads[1], DType::kF8E5M2)) made.rounded.push_back(v);
    return made;
  });
}

TEST_F(RoundedMakers, Rotation) {
  for (const bool inverse : {false, true}) {
    expect_same_bits([inverse](Case& c) {
      constexpr int64_t B = 2, T = 48, H = 3, K = 64;
      const ValueId x = c.input(DType::kBF16, Shape{B, T, H, K});
      const ValueId cosines = c.input(DType::kBF16, Shape{T, K / 2});
      const ValueId sines = c.input(DType::kBF16, Shape{T, K / 2});
      const ValueId y = c.b.rotate(x, cosines, sines, inverse);
      return Made{c.round_both(c.b.reshape(y, {B * T, H * K}), DType::kF8E5M2), {y}};
    });
  }
}

TEST_F(RoundedMakers, Norms) {
  for (const bool adds : {false, true}) {
    expect_same_bits([adds](Case& c) {
      const ValueId x = c.input(DType::kBF16, Shape{2, N / 2, F});
      const ValueId w = c.input(DType::kBF16, Shape{F});
      std::vector<ValueId> operands = {x, w};
      if (adds) operands.insert(operands.begin() + 1, c.input(DType::kBF16, Shape{2, N / 2, F}));
      const OpKind kind = adds ? OpKind::kAddRmsNorm : OpKind::kRmsNorm;
      const auto norm = c.b.op(kind, operands, attrs({{"eps", 1e-5}}));
      const ValueId y = norm[adds ? 1 : 0];
      return Made{c.round_both(c.b.reshape(y, {N, F}), DType::kF8E4M3), {y}};
    });
  }
}

}  // namespace
}  // namespace sgactor::testing
