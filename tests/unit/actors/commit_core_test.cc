#include "actors/core/commit_core.h"

#include <gtest/gtest.h>

namespace sgactor::actors {
namespace {

using Vote = CommitCore::Vote;

TEST(CommitCore, CommitsWhenAllHaveVotedAndTheRecordIsDurable) {
  CommitCore core({1, 1}, 1, 0);
  EXPECT_EQ(*core.on_vote(0, 1, 1, 1), Vote::kCounted);
  EXPECT_EQ(*core.on_vote(0, 1, 1, 1), Vote::kRepeated);
  EXPECT_FALSE(core.on_durable(1).ok());  // rank 1 has not voted
  EXPECT_EQ(*core.on_vote(1, 1, 1, 1), Vote::kAll);
  EXPECT_EQ(core.committed(), 0);
  EXPECT_EQ(core.record(), (CommitRecord{1, 1, {1, 1}}));
  EXPECT_TRUE(core.on_durable(1).ok());
  EXPECT_EQ(core.committed(), 1);
  EXPECT_EQ(*core.on_vote(0, 1, 1, 1), Vote::kRepeated);
  EXPECT_EQ(*core.on_vote(0, 1, 1, 2), Vote::kCounted);
}

TEST(CommitCore, StepsCommitInOrder) {
  CommitCore core({1}, 1, 7);
  EXPECT_FALSE(core.on_vote(0, 1, 1, 9).ok());
  EXPECT_FALSE(core.on_vote(3, 1, 1, 8).ok());
  EXPECT_EQ(*core.on_vote(0, 1, 1, 8), Vote::kAll);
  EXPECT_FALSE(core.on_durable(9).ok());
  EXPECT_TRUE(core.on_durable(8).ok());
  EXPECT_FALSE(core.on_durable(8).ok());
}

TEST(CommitCore, AdoptionForgetsTheVoteOfTheDead) {
  CommitCore core({1, 1}, 1, 0);
  EXPECT_EQ(*core.on_vote(0, 1, 1, 1), Vote::kCounted);
  EXPECT_TRUE(core.adopt(0, 2, 2));
  EXPECT_FALSE(core.adopt(0, 2, 3));  // only a higher one
  EXPECT_EQ(core.generation(), 2);
  EXPECT_EQ(*core.on_vote(0, 1, 1, 1), Vote::kStale);
  EXPECT_EQ(*core.on_vote(0, 1, 2, 1), Vote::kStale);
  EXPECT_EQ(*core.on_vote(1, 1, 2, 1), Vote::kCounted);
  EXPECT_EQ(*core.on_vote(0, 2, 2, 1), Vote::kAll);
  EXPECT_EQ(core.record().incarnations, (std::vector<int64_t>{2, 1}));
}

TEST(CommitCore, AFenceKeepsVotesOfSurvivorsAndIsWrittenAsItStands) {
  CommitCore core({1, 1, 1}, 1, 6);
  EXPECT_EQ(*core.on_vote(0, 1, 1, 7), Vote::kCounted);
  EXPECT_EQ(*core.on_vote(1, 1, 1, 7), Vote::kCounted);
  EXPECT_TRUE(core.adopt(1, 2, 2));
  EXPECT_EQ(core.standing(), (CommitRecord{6, 2, {1, 2, 1}}));
  EXPECT_EQ(*core.on_vote(0, 1, 2, 7), Vote::kRepeated);
  EXPECT_EQ(*core.on_vote(2, 1, 2, 7), Vote::kCounted);
  EXPECT_EQ(*core.on_vote(1, 2, 2, 7), Vote::kAll);
}

TEST(CommitCore, AFenceWithoutLossKeepsVotesAndCountsThoseOfItsGenerationOnly) {
  CommitCore core({1, 1}, 1, 0);
  EXPECT_EQ(core.on_vote(0, 1, 1, 1).value(), CommitCore::Vote::kCounted);
  core.fence(2);
  EXPECT_EQ(core.generation(), 2);
  EXPECT_EQ(core.on_vote(1, 1, 1, 1).value(), CommitCore::Vote::kStale);
  EXPECT_EQ(core.on_vote(0, 1, 2, 1).value(), CommitCore::Vote::kRepeated);
  EXPECT_EQ(core.on_vote(1, 1, 2, 1).value(), CommitCore::Vote::kAll);
  core.fence(1);
  EXPECT_EQ(core.generation(), 2) << "it never goes back";
}

}  // namespace
}  // namespace sgactor::actors
