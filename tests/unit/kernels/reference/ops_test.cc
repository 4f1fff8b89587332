// Pointwise ops, structure, reductions and matmul on numbers worked out by hand.
#include "tests/unit/kernels/reference/run_op.h"

#include <cmath>
#include <limits>

namespace sgactor::kernels {
namespace {

using graph::OpKind;
using List = std::vector<int64_t>;
constexpr double kInf = std::numeric_limits<double>::infinity();

TEST(ReferenceOps, BinaryOnEqualShapes) {
  const Operand a{{3}, {6, -2, 9}};
  const Operand b{{3}, {3, 4, -3}};
  expect_op(OpKind::kAdd, {a, b}, {}, {{9, 2, 6}});
  expect_op(OpKind::kSub, {a, b}, {}, {{3, -6, 12}});
  expect_op(OpKind::kMul, {a, b}, {}, {{18, -8, -27}});
  expect_op(OpKind::kDiv, {a, b}, {}, {{2, -0.5, -3}});
  expect_op(OpKind::kMinimum, {a, b}, {}, {{3, -2, -3}});
  expect_op(OpKind::kMaximum, {a, b}, {}, {{6, 4, 9}});
  expect_op(OpKind::kPow, {{{3}, {2, 9, 0}}, {{3}, {3, 0.5, 0}}}, {}, {{8, 3, 1}});
}

TEST(ReferenceOps, TheSecondOperandMayBeASuffixOrAScalar) {
  const Operand a{{2, 3}, {1, 2, 3, 4, 5, 6}};
  expect_op(OpKind::kSub, {a, {{3}, {1, 2, 3}}}, {}, {{0, 0, 0, 3, 3, 3}});
  expect_op(OpKind::kMul, {a, {{}, {10}}}, {}, {{10, 20, 30, 40, 50, 60}});
}

TEST(ReferenceOps, Unary) {
  const Operand x{{3}, {-1, 0, 1}};
  expect_op(OpKind::kNeg, {x}, {}, {{1, 0, -1}});
  expect_op(OpKind::kExp, {x}, {}, {{0.36787944117144233, 1, 2.718281828459045}});
  expect_op(OpKind::kLog, {{{2}, {1, 2.718281828459045}}}, {}, {{0, 1}});
  expect_op(OpKind::kSqrt, {{{2}, {9, 2}}}, {}, {{3, 1.4142135623730951}});
  expect_op(OpKind::kRsqrt, {{{2}, {4, 0.25}}}, {}, {{0.5, 2}});
  expect_op(OpKind::kSquare, {{{2}, {-3, 0.5}}}, {}, {{9, 0.25}});
  expect_op(OpKind::kCos, {{{2}, {0, 3.141592653589793}}}, {}, {{1, -1}});
  expect_op(OpKind::kSin, {{{2}, {0, 1.5707963267948966}}}, {}, {{0, 1}});
  expect_op(OpKind::kSigmoid, {x}, {}, {{0.2689414213699951, 0.5, 0.7310585786300049}});
  expect_op(OpKind::kSilu, {x}, {}, {{-0.2689414213699951, 0, 0.7310585786300049}});
  expect_op(OpKind::kSiluGrad, {x, {{3}, {2, 2, 2}}}, {},
            {{0.1446589762570265, 1, 1.8553410237429735}});
  expect_op(OpKind::kScale, {x}, make_attrs({{"factor", -2.5}}), {{2.5, 0, -2.5}});
  expect_op(OpKind::kAddScalar, {x}, make_attrs({{"value", 0.25}}), {{-0.75, 0.25, 1.25}});
}

TEST(ReferenceOps, CastRoundsToNarrowFloatsOnly) {
  const double x = 1.00390625 + 1e-9;  // just above the middle between two bf16
  const auto to = [](DType dtype) { return make_attrs({{"dtype", dtype}}); };
  expect_op(OpKind::kCast, {{{1}, {x}}}, to(DType::kF32), {{x}}, 0);
  expect_op(OpKind::kCast, {{{1}, {x}}}, to(DType::kF64), {{x}}, 0);
  expect_op(OpKind::kCast, {{{2}, {x, 1.00390625}}}, to(DType::kBF16), {{1.0078125, 1}}, 0);
  expect_op(OpKind::kCast, {{{2}, {1.0 / 3, 70000}}}, to(DType::kF16), {{0.333251953125, kInf}}, 0);
}

TEST(ReferenceOps, CastToIntegersGoesTowardZeroAndStaysInRange) {
  const double nan = std::nan("");
  expect_op(OpKind::kCast, {{{6}, {2.9, -2.9, nan, 1e30, -kInf, 0}}},
            make_attrs({{"dtype", DType::kI32}}), {{2, -2, 0, 2147483647, -2147483648.0, 0}}, 0);
  expect_op(OpKind::kCast, {{{3}, {-3, 300, 7.5}}}, make_attrs({{"dtype", DType::kU8}}),
            {{0, 255, 7}}, 0);
  expect_op(OpKind::kCast, {{{3}, {-3, 300, 7}, DType::kI32}}, make_attrs({{"dtype", DType::kF64}}),
            {{-3, 300, 7}}, 0);
  expect_op(OpKind::kCast, {{{2}, {-1, 257}, DType::kI64}}, make_attrs({{"dtype", DType::kU8}}),
            {{255, 1}}, 0);
}

TEST(ReferenceOps, StructureMovesElements) {
  const Operand x{{2, 3}, {1, 2, 3, 4, 5, 6}};
  expect_op(OpKind::kReshape, {x}, make_attrs({{"shape", List{3, 2}}}), {x.numbers});
  expect_op(OpKind::kTranspose, {x}, make_attrs({{"perm", List{1, 0}}}), {{1, 4, 2, 5, 3, 6}});
  expect_op(OpKind::kSlice, {x},
            make_attrs({{"axis", int64_t{1}}, {"start", int64_t{1}}, {"size", int64_t{2}}}),
            {{2, 3, 5, 6}});
  expect_op(OpKind::kPad, {x},
            make_attrs({{"axis", int64_t{0}}, {"before", int64_t{1}}, {"after", int64_t{1}}}),
            {{0, 0, 0, 1, 2, 3, 4, 5, 6, 0, 0, 0}});
  expect_op(OpKind::kConcat, {x, {{2, 1}, {7, 8}}}, make_attrs({{"axis", int64_t{1}}}),
            {{1, 2, 3, 7, 4, 5, 6, 8}});
  expect_op(OpKind::kBroadcast, {{{2}, {1, 2}}},
            make_attrs({{"shape", List{2, 2, 3}}, {"axes", List{0, 2}}}),
            {{1, 1, 1, 2, 2, 2, 1, 1, 1, 2, 2, 2}});
  expect_op(OpKind::kConstant, {},
            make_attrs({{"value", 2.5}, {"shape", List{2}}, {"dtype", DType::kF32}}), {{2.5, 2.5}});
}

TEST(ReferenceOps, TransposeOfThreeDims) {
  Operand x{{2, 3, 4}, {}};
  for (int i = 0; i < 24; ++i) x.numbers.push_back(i);
  Row want;  // element (k, i, j) of the result is (i, j, k) of the operand
  for (int k = 0; k < 4; ++k) {
    for (int i = 0; i < 2; ++i) {
      for (int j = 0; j < 3; ++j) want.push_back((12 * i) + (4 * j) + k);
    }
  }
  expect_op(OpKind::kTranspose, {x}, make_attrs({{"perm", List{2, 0, 1}}}), {want});
}

TEST(ReferenceOps, Reductions) {
  const Operand x{{2, 3}, {1, 5, 3, -4, 2, 6}};
  expect_op(OpKind::kReduceSum, {x}, make_attrs({{"axes", List{0}}}), {{-3, 7, 9}});
  expect_op(OpKind::kReduceSum, {x}, make_attrs({{"axes", List{1}}}), {{9, 4}});
  expect_op(OpKind::kReduceSum, {x}, make_attrs({{"axes", List{0, 1}}}), {{13}});
  expect_op(OpKind::kReduceSum, {x}, make_attrs({{"axes", List{}}}), {x.numbers});
  expect_op(OpKind::kReduceMax, {x}, make_attrs({{"axes", List{1}}}), {{5, 6}});
  expect_op(OpKind::kReduceMax, {{{2}, {-3, -1}}}, make_attrs({{"axes", List{0}}}), {{-1}});
  expect_op(OpKind::kSumSquares, {x}, make_attrs({{"chunk", int64_t{4}}}), {{51, 40}});
  expect_op(OpKind::kTreeSum, {{{5}, {1, 2, 3, 4, 5}}}, {}, {{15}});
}

TEST(ReferenceOps, TreeSumAddsNeighboursLevelByLevel) {
  // (big + -big) + (1 + 1) + 1 keeps the ones; a running sum would too, but (big + 1) would not:
  // with neighbours paired as {1, big}, {-big, 1} both ones are lost.
  const double big = 1e17;
  expect_op(OpKind::kTreeSum, {{{5}, {big, -big, 1, 1, 1}}}, {}, {{3}}, 0);
  expect_op(OpKind::kTreeSum, {{{4}, {1, big, -big, 1}}}, {}, {{0}}, 0);
}

TEST(ReferenceOps, MatmulInAllOrientations) {
  // [[1, 2, 3], [4, 5, 6]] @ [[7, 8], [9, 10], [11, 12]]
  const Row want = {58, 64, 139, 154};
  const Operand a{{2, 3}, {1, 2, 3, 4, 5, 6}};
  const Operand a_t{{3, 2}, {1, 4, 2, 5, 3, 6}};
  const Operand b{{3, 2}, {7, 8, 9, 10, 11, 12}};
  const Operand b_t{{2, 3}, {7, 9, 11, 8, 10, 12}};
  const auto trans = [](bool of_a, bool of_b) {
    return make_attrs({{"trans_a", of_a}, {"trans_b", of_b}});
  };
  expect_op(OpKind::kMatmul, {a, b}, trans(false, false), {want});
  expect_op(OpKind::kMatmul, {a_t, b}, trans(true, false), {want});
  expect_op(OpKind::kMatmul, {a, b_t}, trans(false, true), {want});
  expect_op(OpKind::kMatmul, {a_t, b_t}, trans(true, true), {want});
}

TEST(ReferenceOps, MatmulOfBatchesIsOneMatmulEach) {
  expect_op(OpKind::kMatmul, {{{2, 1, 2}, {1, 2, 3, 4}}, {{2, 2, 1}, {5, 6, 7, 8}}},
            make_attrs({{"trans_a", false}, {"trans_b", false}}), {{17, 53}});
}

}  // namespace
}  // namespace sgactor::kernels
