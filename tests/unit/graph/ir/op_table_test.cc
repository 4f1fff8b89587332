#include "graph/ir/op_table.h"

#include "graph/ir/builder.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>

namespace sgactor::graph {
namespace {

TEST(OpTableTest, RowsAreComplete) {
  EXPECT_EQ(op_table().size(), static_cast<size_t>(kNumOpKinds));
  std::set<std::string_view> names;
  for (const OpInfo& info : op_table()) {
    EXPECT_TRUE(names.insert(info.name).second) << info.name;
    EXPECT_EQ(parse_op_kind(info.name), info.kind);
    EXPECT_NE(info.shape_rule, nullptr) << info.name;
    EXPECT_TRUE(info.num_results >= 1 || info.communicates) << info.name;
    EXPECT_FALSE(info.doc.empty()) << info.name;
    for (const AliasSpec& alias : info.aliases) {
      EXPECT_LT(alias.result, info.num_results) << info.name;
      EXPECT_LT(alias.operand, info.min_operands) << info.name;
    }
    EXPECT_TRUE(!info.fused || info.gradient == nullptr) << info.name;
  }
  EXPECT_EQ(parse_op_kind("no_such_op"), std::nullopt);
}

TEST(OpTableTest, CheckTypeBoundsRankAndBytes) {
  EXPECT_TRUE(check_type({DType::kF32, {}}).ok());
  EXPECT_TRUE(check_type({DType::kF32, {0, 7}}).ok());
  EXPECT_TRUE(check_type({DType::kU8, {int64_t{1} << 62}}).ok());
  EXPECT_FALSE(check_type({DType::kF32, {int64_t{1} << 62}}).ok());
  EXPECT_FALSE(check_type({DType::kU8, {int64_t{1} << 40, int64_t{1} << 40}}).ok());
  EXPECT_FALSE(check_type({DType::kU8, {0, int64_t{1} << 40, int64_t{1} << 40}}).ok());
  EXPECT_FALSE(check_type({DType::kF32, {-1}}).ok());
  EXPECT_FALSE(check_type({static_cast<DType>(77), {1}}).ok());
  EXPECT_TRUE(check_type({DType::kF32, Shape(std::vector<int64_t>(kMaxRank, 1))}).ok());
  EXPECT_FALSE(check_type({DType::kF32, Shape(std::vector<int64_t>(kMaxRank + 1, 1))}).ok());
}

TEST(OpTableTest, UnknownKindIsRefused) {
  EXPECT_FALSE(infer_types(OpKind::kCount, {}, {}).ok());
  EXPECT_FALSE(infer_types(static_cast<OpKind>(60000), {}, {}).ok());
}

class CostTest : public testing::Test {
 protected:
  ValueId value(DType dtype, Shape shape) {
    return b_.input({dtype, std::move(shape)}, Role::kActivation,
                    fmt::format("x{}", graph_.inputs().size()));
  }
  double flops() {
    EXPECT_TRUE(b_.status().ok()) << b_.status().to_string();
    return op_flops(graph_, graph_.ops().back());
  }
  int64_t bytes() { return op_bytes(graph_, graph_.ops().back()); }

  Graph graph_;
  Builder b_{graph_};
};

TEST_F(CostTest, Matmul) {
  b_.matmul(value(DType::kBF16, {7, 2, 3}), value(DType::kBF16, {7, 3, 5}));
  EXPECT_EQ(flops(), 2.0 * 7 * 2 * 3 * 5);
  EXPECT_EQ(bytes(), 2 * 7 * (2 * 3 + 3 * 5 + 2 * 5));
  b_.matmul(value(DType::kF32, {3, 2}), value(DType::kF32, {5, 3}), true, true);
  EXPECT_EQ(flops(), 2.0 * 2 * 3 * 5);
  Attrs attrs;
  attrs.set("trans_a", false);
  attrs.set("trans_b", false);
  b_.op(OpKind::kMatmulAccumulate,
        {value(DType::kF32, {2, 5}), value(DType::kF32, {2, 3}), value(DType::kF32, {3, 5})},
        std::move(attrs));
  EXPECT_EQ(flops(), 2.0 * 2 * 3 * 5 + 2 * 5);
}

TEST_F(CostTest, FlashAttentionCountsWhatIsNotMasked) {
  const ValueId q = value(DType::kF32, {2, 5, 6, 8});
  const ValueId k = value(DType::kF32, {2, 5, 3, 8});
  const ValueId v = value(DType::kF32, {2, 5, 3, 8});
  Attrs attrs;
  attrs.set("scale", 1.0);
  attrs.set("causal", true);
  b_.op(OpKind::kFlashAttention, {q, k, v}, attrs);
  EXPECT_EQ(flops(), 4.0 * 2 * 6 * 8 * (5 * 6 / 2));
  attrs.set("causal", false);
  b_.op(OpKind::kFlashAttention, {q, k, v}, attrs);
  EXPECT_EQ(flops(), 4.0 * 2 * 6 * 8 * (5 * 5));
}

TEST_F(CostTest, MovementIsFreeOfFlopsAndViewsOfBytes) {
  const ValueId x = value(DType::kF32, {4, 6});
  b_.reshape(x, {24});
  EXPECT_EQ(flops(), 0);
  EXPECT_EQ(bytes(), 0);
  b_.transpose(x, {1, 0});
  EXPECT_EQ(flops(), 0);
  EXPECT_EQ(bytes(), 2 * 4 * 24);
  b_.add(x, value(DType::kF32, {6}));
  EXPECT_EQ(flops(), 24);
  EXPECT_EQ(bytes(), 4 * (24 + 6 + 24));
  b_.reduce_sum(x, {0});
  EXPECT_EQ(flops(), 24);
}

}  // namespace
}  // namespace sgactor::graph
