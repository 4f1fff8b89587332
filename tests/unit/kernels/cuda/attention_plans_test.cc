// Letters as in attention.h.
#include "graph/base/log.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_ranges.h"

#include <gtest/gtest.h>

namespace sgactor::kernels::cuda {

/// In place of the library: refuses a head dim of 8, fails for want of memory at one of 16.
Result<std::shared_ptr<const FusedAttention>> create_fused_attention(const AttentionShape& shape,
                                                                     bool gradient) {
  class Kernel final : public FusedAttention {
   public:
    [[nodiscard]] int64_t workspace_bytes() const override { return 0; }
    Status run(CUstream_st* /*stream*/, const AttentionPointers& /*pointers*/,
               void* /*workspace*/) const override {
      return {};
    }
  };
  if (shape.K == 8) return unsupported(gradient ? "no gradient" : "no kernel");
  if (shape.K == 16) return make_status(Code::kOutOfMemory, "no memory", Scope::kDevice);
  return std::shared_ptr<const FusedAttention>(std::make_shared<Kernel>());
}

namespace {

AttentionShape shape(int64_t B, int64_t T, int64_t K, bool causal = true) {
  return {.B = B, .T = T, .H = 4, .G = 2, .K = K, .scale = 1, .causal = causal};
}

TEST(AttentionPlans, KeepsKernelsAndNoFailures) {
  AttentionPlans plans;
  const auto made = plans.get(shape(1, 64, 64), false);
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(plans.get(shape(1, 64, 64), false).value(), *made);
  EXPECT_NE(plans.get(shape(1, 64, 64), true).value(), *made);
  AttentionShape some_heads = shape(1, 64, 64);
  some_heads.H_row = 8;
  EXPECT_NE(plans.get(some_heads, false).value(), *made);
  EXPECT_EQ(plans.get(shape(1, 64, 8), false).status().code(), Code::kUnsupported);
  EXPECT_EQ(plans.get(shape(1, 64, 16), false).status().code(), Code::kOutOfMemory);
}

TEST(AttentionPlans, WarnsOnceAKindOfShape) {
  AttentionPlans plans;
  log::reset_warnings();
  const Status why = unsupported("no kernel");
  plans.warn_plain(shape(1, 64, 8), false, why);
  plans.warn_plain(shape(4, 512, 8), false, why);
  EXPECT_EQ(log::num_warnings(), 1);
  plans.warn_plain(shape(1, 64, 8), true, why);
  plans.warn_plain(shape(1, 64, 8, false), false, why);
  plans.warn_plain(shape(1, 64, 24), false, why);
  EXPECT_EQ(log::num_warnings(), 4);
  plans.warn_plain(shape(2, 64, 24), false, why);
  EXPECT_EQ(log::num_warnings(), 4);
  log::reset_warnings();
}

TEST(GradientRange, WholeSequencesWhereTheyAreSmall) {
  EXPECT_EQ(gradient_range(8, 32, 8, 1024, 96), (GradientRange{8, 8}));
  // 32 MiB of dP a head and a little beside it: 60 heads at a time, so of 4 sequences of 32 heads
  // one.
  EXPECT_EQ(gradient_range(4, 32, 8, 4096, 96), (GradientRange{1, 8}));
}

TEST(GradientRange, GroupsOfHeadsWhereASequenceIsTooLarge) {
  // 128 MiB and more a head, half a GiB a group: three groups would do, two divide four.
  EXPECT_EQ(gradient_range(1, 16, 4, 8192, 96), (GradientRange{1, 2}));
  EXPECT_EQ(gradient_range(3, 16, 4, 8192, 96), (GradientRange{1, 2}));
  // More than the usual for one group.
  EXPECT_EQ(gradient_range(1, 8, 4, 32768, 80), (GradientRange{1, 1}));
}

TEST(GradientRange, NoneWhereOneGroupIsTooLarge) {
  EXPECT_EQ(gradient_range(1, 8, 1, 32768, 80), GradientRange{});
  EXPECT_EQ(gradient_range(1, 1, 1, 65536, 32), GradientRange{});
  EXPECT_EQ(gradient_range(1, 1, 1, int64_t{1} << 40, 32), GradientRange{});
  EXPECT_EQ(gradient_range(1, int64_t{1} << 40, 1, 64, 32), GradientRange{});
}

TEST(GradientRange, IsBoundedDividesAndIsLargest) {
  for (const int64_t B : {1, 2, 6, 64}) {
    for (const int64_t G : {1, 3, 8, 40}) {
      for (const int64_t R : {1, 4}) {
        for (const int64_t T : {64, 100, 2048, 8000, 16384, 30000, 60000}) {
          for (const int64_t K : {32, 96, 256}) {
            const GradientRange r = gradient_range(B, G * R, G, T, K);
            const int64_t group = gradient_head_bytes(T, K) * R;
            if (r.batch == 0) {
              EXPECT_GT(group, kMostGradientWorkspace);
              continue;
            }
            ASSERT_GT(r.groups, 0);
            EXPECT_EQ(B % r.batch, 0);
            EXPECT_EQ(G % r.groups, 0);
            EXPECT_TRUE(r.batch == 1 || r.groups == G) << "lse of some heads is not in one piece";
            const int64_t bytes = r.batch * r.groups * group;
            EXPECT_LE(bytes, r.groups > 1 || r.batch > 1 ? kUsualGradientWorkspace
                                                         : kMostGradientWorkspace);
            if (r.groups < G) {
              EXPECT_GT(G * group, kUsualGradientWorkspace);
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace sgactor::kernels::cuda
