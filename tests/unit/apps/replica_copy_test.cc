#include "apps/sgactor/replica_copy.h"

#include <gtest/gtest.h>

namespace sgactor::apps {
namespace {

ReplicaAnswer part_of(int64_t copy, int32_t rank, const std::string& part) {
  ReplicaAnswer out;
  out.copy = copy;
  out.rank = rank;
  out.part = part;
  return out;
}

TEST(ReplicaCopy, MessagesComeBackAsTheyWere) {
  const auto order =
      parse_replica_order(to_wire(ReplicaOrder{7, 41, 3, "/dev/shm/a \xFF"}).payload);
  ASSERT_TRUE(order.ok());
  EXPECT_EQ(order->copy, 7);
  EXPECT_EQ(order->step, 41);
  EXPECT_EQ(order->rank, 3);
  EXPECT_EQ(order->root, "/dev/shm/a \xFF");
  ReplicaAnswer answer = part_of(7, 3, std::string("\0bytes\xFE", 7));
  actors::StepDone& done = answer.done.emplace();
  done.step = 41;
  done.numbers.grad_norm = 0.1F;
  done.numbers.lr = 1e-4F;
  done.tokens = 512;
  done.sample_hash = 0xFEDCBA9876543210ULL;
  const auto again = parse_replica_answer(to_wire(answer).payload);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->part, answer.part);
  ASSERT_TRUE(again->done);
  EXPECT_EQ(again->done->step, 41);
  EXPECT_EQ(again->done->numbers.grad_norm, 0.1F);
  EXPECT_EQ(again->done->numbers.lr, 1e-4F);
  EXPECT_EQ(again->done->tokens, 512);
  EXPECT_EQ(again->done->sample_hash, 0xFEDCBA9876543210ULL);
  for (const char* bad : {"", "{}", "[1]", R"({"copy":"x","step":1,"rank":0,"root":""})"}) {
    EXPECT_EQ(parse_replica_order(bad).status().code(), Code::kCorruption) << bad;
    EXPECT_EQ(parse_replica_answer(bad).status().code(), Code::kCorruption) << bad;
  }
}

TEST(ReplicaCopy, IsSettledWhenAllHaveAnswered) {
  ReplicaCopy copy;
  EXPECT_TRUE(copy.settled());
  copy.begin(1, 20, "root", {{0, 5}, {3, 6}});
  copy.on_answer(part_of(1, 3, "b"));
  copy.on_answer(part_of(1, 9, "of nobody who was asked"));
  EXPECT_FALSE(copy.settled());
  copy.on_answer(part_of(1, 0, "a"));
  EXPECT_TRUE(copy.settled());
  EXPECT_TRUE(copy.status().ok());
  EXPECT_EQ(copy.parts(), (std::vector<std::string>{"a", "b"}));
}

TEST(ReplicaCopy, WaitsForThoseThatStillReadForOneThatWasGivenUp) {
  ReplicaCopy copy;
  copy.begin(1, 20, "root", {{0, 5}});
  copy.begin(2, 20, "other", {{1, 6}});
  copy.on_answer(part_of(2, 1, "new"));
  EXPECT_FALSE(copy.settled()) << "rank 0 reads its state still";
  copy.on_answer(part_of(1, 0, "old"));
  EXPECT_TRUE(copy.settled());
  EXPECT_TRUE(copy.status().ok());
  EXPECT_EQ(copy.parts(), (std::vector<std::string>{"new"}));
}

TEST(ReplicaCopy, ALostWriterOrOneThatFailsEndsIt) {
  ReplicaCopy copy;
  copy.begin(1, 20, "root", {{0, 5}, {3, 6}});
  copy.forget(6);
  copy.on_answer(part_of(1, 0, "a"));
  EXPECT_TRUE(copy.settled());
  EXPECT_EQ(copy.status().code(), Code::kDisconnected);
  EXPECT_TRUE(copy.failed().empty());
  copy.begin(2, 20, "root", {{0, 5}});
  EXPECT_TRUE(copy.status().ok());
  ReplicaAnswer bad = part_of(2, 0, "");
  bad.failure = "no room";
  copy.on_answer(bad);
  EXPECT_TRUE(copy.settled());
  EXPECT_NE(copy.status().message().find("no room"), std::string::npos);
  EXPECT_EQ(copy.failed(), (std::set<int32_t>{0}));
}

TEST(ReplicaCopy, OnlyNumbersOfItsStepCount) {
  ReplicaCopy copy;
  copy.begin(1, 20, "root", {{0, 5}, {1, 5}});
  ReplicaAnswer answer = part_of(1, 0, "a");
  answer.done.emplace().step = 19;
  copy.on_answer(answer);
  EXPECT_FALSE(copy.done());
  answer.rank = 1;
  answer.done->step = 20;
  copy.on_answer(answer);
  EXPECT_TRUE(copy.done());
}

}  // namespace
}  // namespace sgactor::apps
