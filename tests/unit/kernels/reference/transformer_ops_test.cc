// Norms, softmax, positions, tables and the loss. Numbers were computed apart from this code, from
// the definitions.
#include "graph/base/philox.h"
#include "tests/unit/kernels/reference/run_op.h"

#include <limits>

namespace sgactor::kernels {
namespace {

using graph::OpKind;
constexpr double kInf = std::numeric_limits<double>::infinity();

TEST(ReferenceTransformerOps, Softmax) {
  const Row want = {0.09003057317038046, 0.24472847105479767, 0.6652409557748219};
  expect_op(OpKind::kSoftmax, {{{3}, {1, 2, 3}}}, {}, {want});
  expect_op(OpKind::kSoftmax, {{{3}, {1001, 1002, 1003}}}, {}, {want});
  expect_op(OpKind::kSoftmax, {{{2, 2}, {0, -kInf, 5, 5}}}, {}, {{1, 0, 0.5, 0.5}});
  // sum(y * dy) = 2.5
  expect_op(OpKind::kSoftmaxGrad, {{{2}, {0.25, 0.75}}, {{2}, {1, 3}}}, {}, {{-0.375, 0.375}});
}

TEST(ReferenceTransformerOps, CausalMaskSeesUpToTheDiagonal) {
  const auto fill = [](double x) { return make_attrs({{"fill", x}}); };
  expect_op(OpKind::kCausalMask, {{{2, 2}, {1, 2, 3, 4}}}, fill(0), {{1, 0, 3, 4}});
  // More keys than queries: the last query sees all keys.
  expect_op(OpKind::kCausalMask, {{{2, 3}, {1, 2, 3, 4, 5, 6}}}, fill(9), {{1, 2, 9, 4, 5, 6}});
  // Fewer keys than queries: the first query sees none.
  expect_op(OpKind::kCausalMask, {{{3, 2}, {1, 2, 3, 4, 5, 6}}}, fill(9), {{9, 9, 3, 9, 5, 6}});
}

TEST(ReferenceTransformerOps, RmsNormAndItsGradient) {
  const double rstd = 0.282842712474619;
  expect_op(OpKind::kRmsNorm, {{{1, 2}, {3, 4}}, {{2}, {1, 2}}}, make_attrs({{"eps", 0.0}}),
            {{0.848528137423857, 2.262741699796952}, {rstd}});
  expect_op(OpKind::kRmsNorm, {{{1}, {0}}, {{1}, {1}}}, make_attrs({{"eps", 0.25}}), {{0}, {2}});
  expect_op(OpKind::kRmsNormGrad,
            {{{1, 2}, {1, -1}}, {{1, 2}, {3, 4}}, {{2}, {1, 2}}, {{1}, {rstd}}}, {},
            {{0.45254833995939037, -0.3394112549695428}, {0.848528137423857, -1.131370849898476}});
}

graph::Attrs rope(const std::string& scaling, int64_t head_dim, int64_t seq_len, double theta) {
  return make_attrs({{"theta", theta},
                     {"head_dim", head_dim},
                     {"seq_len", seq_len},
                     {"scaling", scaling},
                     {"factor", 8.0},
                     {"low_freq_factor", 1.0},
                     {"high_freq_factor", 4.0},
                     {"original_max_position", int64_t{64}},
                     {"dtype", DType::kF64}});
}

TEST(ReferenceTransformerOps, RopeTable) {
  const Result<std::vector<Row>> plain = run_op(OpKind::kRopeTable, {}, rope("none", 4, 3, 10000));
  ASSERT_TRUE(plain.ok());
  expect_near({(*plain)[0].begin() + 4, (*plain)[0].end()},
              {-0.4161468365471424, 0.9998000066665778});
  expect_near({(*plain)[1].begin() + 4, (*plain)[1].end()},
              {0.9092974268256817, 0.01999866669333308});
  expect_near({(*plain)[0].begin(), (*plain)[0].begin() + 2}, {1, 1});
  const Result<std::vector<Row>> linear =
      run_op(OpKind::kRopeTable, {}, rope("linear", 4, 17, 10000));
  ASSERT_TRUE(linear.ok());
  expect_near({(*linear)[0].begin() + 32, (*linear)[0].end()},
              {-0.4161468365471424, 0.9998000066665778});  // position 16 / 8
}

TEST(ReferenceTransformerOps, RopeTableScaledForLlama3) {
  // Wavelengths from 6.3 to 19869 positions around a context of 64: all three bands.
  const Result<std::vector<Row>> got = run_op(OpKind::kRopeTable, {}, rope("llama3", 16, 4, 10000));
  ASSERT_TRUE(got.ok());
  expect_near({(*got)[0].begin() + 24, (*got)[0].end()},
              {-0.9899924966004454, 0.7430675275914863, 0.9992346456556024, 0.9999296883239708,
               0.9999929687582397, 0.9999992968750824, 0.9999999296875008, 0.99999999296875});
  expect_near({(*got)[1].begin() + 24, (*got)[1].end()},
              {0.1411200080598672, 0.6692164443878197, 0.039116785674729565, 0.011858263293025667,
               0.0037499912109436795, 0.0011858538446286016, 0.0003749999912109376,
               0.00011858541197837966});
}

TEST(ReferenceTransformerOps, RotateTurnsHalvesAndBack) {
  const Operand x{{1, 1, 1, 4}, {1, 2, 3, 4}};
  const Operand cos{{1, 2}, {0, 0.6}};
  const Operand sin{{1, 2}, {1, 0.8}};
  // Pairs (1, 3) by a right angle, (2, 4) by (0.6, 0.8).
  const Row turned = {-3, 2 * 0.6 - 4 * 0.8, 1, 4 * 0.6 + 2 * 0.8};
  expect_op(OpKind::kRotate, {x, cos, sin}, make_attrs({{"inverse", false}}), {turned});
  expect_op(OpKind::kRotate, {{{1, 1, 1, 4}, turned}, cos, sin}, make_attrs({{"inverse", true}}),
            {x.numbers});
}

TEST(ReferenceTransformerOps, RotateUsesTheRowOfItsPosition) {
  // Two batches of two positions of one head: position 0 keeps, position 1 turns.
  expect_op(OpKind::kRotate,
            {{{2, 2, 1, 2}, {1, 2, 3, 4, 5, 6, 7, 8}}, {{2, 1}, {1, 0}}, {{2, 1}, {0, 1}}},
            make_attrs({{"inverse", false}}), {{1, 2, -4, 3, 5, 6, -8, 7}});
}

TEST(ReferenceTransformerOps, GatherAndScatterAdd) {
  const Operand ids{{3}, {2, 0, 2}, DType::kI32};
  expect_op(OpKind::kGather, {{{3, 2}, {1, 2, 3, 4, 5, 6}}, ids}, {}, {{5, 6, 1, 2, 5, 6}});
  expect_op(OpKind::kScatterAdd, {ids, {{3, 2}, {1, 2, 3, 4, 5, 6}}},
            make_attrs({{"rows", int64_t{4}}}), {{3, 4, 0, 0, 6, 8, 0, 0}});
}

TEST(ReferenceTransformerOps, IdsOutOfRangeAreNamed) {
  const Status gather =
      run_op(OpKind::kGather, {{{3, 1}, {1, 2, 3}}, {{2}, {1, 3}, DType::kI32}}).status();
  EXPECT_EQ(gather.code(), Code::kInvalidArgument);
  EXPECT_EQ(gather.message(), "gather: id 3 at position 1 is outside [0, 3)");
  const Status loss =
      run_op(OpKind::kCrossEntropy, {{{1, 2}, {0, 0}}, {{1}, {2}, DType::kI32}}).status();
  EXPECT_EQ(loss.code(), Code::kInvalidArgument);
  EXPECT_EQ(loss.message(), "cross_entropy: target 2 at position 0 is outside [0, 2)");
}

TEST(ReferenceTransformerOps, CrossEntropySkipsNegativeTargets) {
  const Operand logits{{2, 2}, {0, 0, 1, 3}};
  const double ln2 = 0.6931471805599453;
  const double lse = 3.1269280110429727;
  expect_op(OpKind::kCrossEntropy, {logits, {{2}, {1, -1}, DType::kI32}}, {}, {{ln2}, {ln2, lse}});
  expect_op(OpKind::kCrossEntropy, {logits, {{2}, {1, 0}, DType::kI32}}, {},
            {{ln2 + lse - 1}, {ln2, lse}});
  expect_op(OpKind::kCrossEntropyGrad,
            {logits, {{2}, {-100, 1}, DType::kI32}, {{2}, {ln2, lse}}, {{}, {2}}}, {},
            {{0, 0, 2 * 0.11920292202211753, -2 * 0.11920292202211753}});
}

TEST(ReferenceTransformerOps, PhiloxUniformIsTheStream) {
  const PhiloxStream stream{7, 9};
  expect_op(OpKind::kPhiloxUniform, {{{2}, {7, 9}, DType::kI64}},
            make_attrs({{"shape", std::vector<int64_t>{3}}, {"dtype", DType::kF64}}),
            {{stream.uniform(0), stream.uniform(1), stream.uniform(2)}}, 0);
}

}  // namespace
}  // namespace sgactor::kernels
