#include "graph/base/status.h"

#include <gtest/gtest.h>

namespace sgactor {
namespace {

Result<int> half(int n) {
  if (n % 2 != 0) return invalid_argument("odd");
  return n / 2;
}

Result<int> quarter(int n) {
  SGA_ASSIGN(const int h, half(n));
  SGA_ASSIGN(const int q, half(h));
  return q;
}

Status check_even(int n) {
  SGA_TRY(half(n).status());
  return {};
}

TEST(StatusTest, OkIsEmpty) {
  const Status ok;
  EXPECT_TRUE(ok.ok());
  EXPECT_EQ(ok.code(), Code::kOk);
  EXPECT_EQ(ok.message(), "");
  EXPECT_EQ(ok.to_string(), "ok");
  EXPECT_TRUE(ok.with_context("reading").ok());
  EXPECT_TRUE(Status(Code::kOk, Scope::kRank, "not kept").ok());
}

TEST(StatusTest, RemembersWhereItWasMade) {
  const Status s = invalid_argument("no such key");
  EXPECT_EQ(s.code(), Code::kInvalidArgument);
  EXPECT_EQ(s.scope(), Scope::kCall);
  // The project's path, not the machine's.
  EXPECT_NE(s.origin().where.find("graph/base/status_test.cc:"), std::string::npos);
  EXPECT_NE(s.origin().where.front(), '/');
}

TEST(StatusTest, PrintsAllItKnows) {
  Origin origin;
  origin.rank = 3;
  origin.actor = "layer.0";
  origin.step = 7;
  origin.generation = 2;
  const Status s(Code::kDeviceFault, Scope::kDevice, "xid 79", origin);
  EXPECT_EQ(s.to_string(), "device fault (device): xid 79 [rank 3, layer.0, step 7, generation 2]");
}

TEST(StatusTest, ContextKeepsCodeScopeAndOrigin) {
  const Status s = corruption("bad checksum").with_context("chunk 4");
  EXPECT_EQ(s.code(), Code::kCorruption);
  EXPECT_EQ(s.message(), "chunk 4: bad checksum");
  Origin origin;
  origin.rank = 1;
  EXPECT_EQ(s.with_origin(origin).origin().rank, 1);
  EXPECT_EQ(s.with_origin(origin).message(), s.message());
}

TEST(StatusTest, EveryCodeAndScopeHasAName) {
  for (int code = 0; code <= static_cast<int>(Code::kInternal); ++code) {
    EXPECT_NE(to_string(static_cast<Code>(code)), "unknown");
  }
  for (int scope = 0; scope <= static_cast<int>(Scope::kJob); ++scope) {
    EXPECT_NE(to_string(static_cast<Scope>(scope)), "unknown");
  }
  EXPECT_LT(Scope::kCall, Scope::kJob);
}

TEST(StatusTest, MacrosPassErrorsOn) {
  EXPECT_EQ(quarter(12).value(), 3);
  EXPECT_EQ(quarter(6).status().message(), "odd");
  EXPECT_EQ(quarter(7).status().code(), Code::kInvalidArgument);
  EXPECT_TRUE(check_even(2).ok());
  EXPECT_FALSE(check_even(3).ok());
}

TEST(StatusDeathTest, CheckAborts) { EXPECT_DEATH(SGA_CHECK(1 == 2, "sums"), "check '1 == 2'"); }

}  // namespace
}  // namespace sgactor
