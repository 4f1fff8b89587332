#include "supervision/membership/journal.h"

#include "graph/base/hash.h"
#include "supervision/membership/journal_file.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

namespace sgactor::supervision {
namespace {

World first_world() {
  World w;
  w.generation = 1;
  w.nodes = {0, 1};
  w.workers = {{0, 0, 0, 0xAB}, {1, 1, 0, 0xAB}, {2, 1, 1, 0xAB}};
  w.ranks = {{0, 1, 1, kNone}, {1, 1, 0, kNone}};
  return w;
}

/// Entry 0: the first world; 1: commit 1; 2: rank 1 moves to worker 2, and commit 2.
std::vector<JournalEntry> entries() {
  World moved = first_world();
  EXPECT_TRUE(apply_record(CommitRecord{1}, moved).ok());
  World next = moved;
  next.generation = 2;
  next.workers = {{0, 0, 0, 0xAB}, {2, 1, 1, 0xAB}};
  next.ranks[1].worker = 2;
  next.ranks[1].incarnation = 2;
  std::vector<Record> records = difference(moved, next);
  records.emplace_back(CommitRecord{2});
  return {{0, difference({}, first_world())}, {1, {CommitRecord{1}}}, {2, records}};
}

std::string text_of(const std::vector<JournalEntry>& all) {
  std::string out;
  for (const JournalEntry& e : all) out += format_entry(e);
  return out;
}

TEST(Journal, ReplaysWhatWasWritten) {
  const auto all = entries();
  const auto got = replay_journal(text_of(all));
  ASSERT_TRUE(got.ok()) << got.status().to_string();
  EXPECT_FALSE(got->torn);
  EXPECT_EQ(got->next_number, 3);
  EXPECT_EQ(got->valid_bytes, static_cast<int64_t>(text_of(all).size()));
  EXPECT_EQ(got->world.generation, 2);
  EXPECT_EQ(got->world.committed, 2);
  EXPECT_EQ(got->world.workers.size(), 2U);
  EXPECT_EQ(got->world.ranks[1], (RankPlace{2, 2, 0, 0}));  // the commit made its mirror its source
  EXPECT_EQ(got->world.ranks[0], (RankPlace{0, 1, 1, 1}));
}

TEST(Journal, ATailCutAnywhereIsLeftOut) {
  const auto all = entries();
  const std::string whole = text_of(all);
  const size_t before_last = whole.size() - format_entry(all.back()).size();
  for (size_t cut = before_last; cut < whole.size(); ++cut) {
    const auto got = replay_journal(whole.substr(0, cut));
    ASSERT_TRUE(got.ok()) << cut << got.status().to_string();
    EXPECT_EQ(got->next_number, 2);
    EXPECT_EQ(got->valid_bytes, static_cast<int64_t>(before_last));
    EXPECT_EQ(got->torn, cut > before_last);
    EXPECT_EQ(got->world.committed, 1);
  }
}

TEST(Journal, ALastLineWithAHoleIsTorn) {
  const auto all = entries();
  std::string text = text_of(all);
  text[text.size() - 40] = '\0';
  const auto got = replay_journal(text);
  ASSERT_TRUE(got.ok()) << got.status().to_string();
  EXPECT_TRUE(got->torn);
  EXPECT_EQ(got->next_number, 2);
}

TEST(Journal, AnAlteredLineInTheMiddleIsCorruption) {
  std::string text = text_of(entries());
  text[10] ^= 1;
  const auto got = replay_journal(text);
  ASSERT_FALSE(got.ok());
  EXPECT_EQ(got.status().code(), Code::kCorruption);
  EXPECT_NE(got.status().message().find("line 1"), std::string::npos);
}

TEST(Journal, RecordsThatDoNotFollowAreRefused) {
  World w = first_world();
  EXPECT_FALSE(apply_record(MembershipRecord{1, {0}, {}}, w).ok());      // generation not higher
  EXPECT_FALSE(apply_record(PlaceRecord{1, {2, 1, 0, kNone}}, w).ok());  // moved, same incarnation
  EXPECT_FALSE(apply_record(PlaceRecord{7, {2, 1, 0, kNone}}, w).ok());  // no such rank
  EXPECT_FALSE(apply_record(PlaceRecord{-1, {2, 1, 0, kNone}}, w).ok());
  EXPECT_TRUE(apply_record(PlaceRecord{1, {2, 2, 0, kNone}}, w).ok());
  EXPECT_TRUE(apply_record(CommitRecord{5}, w).ok());  // the first: a resumed run
  EXPECT_FALSE(apply_record(CommitRecord{5}, w).ok());
  EXPECT_FALSE(apply_record(CommitRecord{7}, w).ok());
  EXPECT_TRUE(apply_record(CommitRecord{6}, w).ok());
}

TEST(Journal, HostileTextIsNeverMoreThanAnError) {
  const std::string good = text_of(entries());
  for (size_t i = 0; i < good.size(); i += 3) {
    for (const char c : {'\n', '-', '9', '\xff', ';'}) {
      std::string text = good;
      text[i] = c;
      (void)replay_journal(text);
    }
  }
  // Well signed, but nonsense.
  for (const std::string body :
       {"0", "0 members", "0 members 99999999999999999999 - -", "0 place 1 1 1 1", "0 commit x",
        "0 place 5 0 1 0 0", "x commit 1", "0 commit 1;", "0 commit 1; ", "0 members 1 0 -extra"}) {
    const auto got = replay_journal(fmt::format("{} #{}\n0 more\n", body, hex64(hash64(body))));
    EXPECT_FALSE(got.ok()) << body;
  }
}

class JournalFileTest : public testing::Test {
 protected:
  void SetUp() override {
    path_ = testing::TempDir() + fmt::format("sgactor_journal_{}", ::getpid());
    ::unlink(path_.c_str());
  }
  void TearDown() override { ::unlink(path_.c_str()); }
  std::string read() const {
    std::stringstream s;
    s << std::ifstream(path_).rdbuf();
    return s.str();
  }
  std::string path_;
};

TEST_F(JournalFileTest, AppendsAndReplaysAcrossATornTail) {
  const auto all = entries();
  {
    auto file = JournalFile::open(path_);
    ASSERT_TRUE(file.ok()) << file.status().to_string();
    EXPECT_EQ((*file)->replayed().next_number, 0);
    ASSERT_TRUE((*file)->append(all[0]).ok());
    ASSERT_TRUE((*file)->append(all[1]).ok());
  }
  std::ofstream(path_, std::ios::app) << format_entry(all[2]).substr(0, 17);
  {
    auto file = JournalFile::open(path_);
    ASSERT_TRUE(file.ok()) << file.status().to_string();
    EXPECT_TRUE((*file)->replayed().torn);
    EXPECT_EQ((*file)->replayed().next_number, 2);
    ASSERT_TRUE((*file)->append(all[2]).ok());
  }
  EXPECT_EQ(read(), text_of(all));
}

}  // namespace
}  // namespace sgactor::supervision
