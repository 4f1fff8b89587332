#include "actors/runtime/journal.h"

#include "tests/support/full_disk.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

namespace sgactor::actors {
namespace {

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(Journal, KeepsCommitsAndAppendsToWhatIsThere) {
  const std::string path = testing::TempDir() + "/sga_journal_test";
  std::filesystem::remove(path);
  const CommitRecord one{1, 1, {1, 1}};
  const CommitRecord two{2, 3, {1, 4}, {0x40B1C2D3, -1}};
  {
    auto journal = open_journal(path);
    ASSERT_TRUE(journal.ok()) << journal.status().to_string();
    ASSERT_TRUE((*journal)->append(one).ok());
  }
  {
    auto journal = open_journal(path);
    ASSERT_TRUE(journal.ok());
    ASSERT_TRUE((*journal)->append(two).ok());
  }
  const auto records = parse_journal(read_file(path));
  ASSERT_TRUE(records.ok()) << records.status().to_string();
  EXPECT_EQ(*records, (std::vector<CommitRecord>{one, two}));
  std::filesystem::remove(path);
}

TEST(Journal, ARecordThatDoesNotFitLeavesNothingOfItself) {
  const std::string path = testing::TempDir() + "/sga_journal_full";
  std::filesystem::remove(path);
  auto journal = open_journal(path);
  ASSERT_TRUE(journal.ok());
  const CommitRecord one{1, 1, {1, 1}};
  ASSERT_TRUE((*journal)->append(one).ok());
  const Status refused = [&] {
    const tests::FullDisk full(std::filesystem::file_size(path) + 10);
    return (*journal)->append({2, 1, {1, 1}});
  }();
  EXPECT_FALSE(refused.ok());
  const CommitRecord three{2, 2, {1, 2}};
  ASSERT_TRUE((*journal)->append(three).ok());
  const auto records = parse_journal(read_file(path));
  ASSERT_TRUE(records.ok()) << records.status().to_string();
  EXPECT_EQ(*records, (std::vector<CommitRecord>{one, three}));
  std::filesystem::remove(path);
}

TEST(Journal, OpenedAgainItCutsWhatAKilledWriterLeft) {
  const std::string path = testing::TempDir() + "/sga_journal_torn";
  const CommitRecord one{1, 1, {1, 1}};
  const CommitRecord two{2, 1, {1, 1}};
  const std::string line = format_commit(one);
  for (size_t kept : {size_t{0}, size_t{1}, line.size() - 1}) {
    std::ofstream(path, std::ios::binary) << line << line.substr(0, kept);
    {
      auto journal = open_journal(path);
      ASSERT_TRUE(journal.ok()) << journal.status().to_string();
      ASSERT_TRUE((*journal)->append(two).ok());
    }
    const auto records = parse_journal(read_file(path));
    ASSERT_TRUE(records.ok()) << kept << ": " << records.status().to_string();
    EXPECT_EQ(*records, (std::vector<CommitRecord>{one, two})) << kept;
  }
  std::filesystem::remove(path);
}

TEST(Journal, ALineCutShortIsLeftOutAnAlteredOneIsRefused) {
  const std::string text = format_commit({1, 1, {1}}) + format_commit({2, 1, {1}});
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    const auto records = parse_journal(text.substr(0, cut));
    ASSERT_TRUE(records.ok()) << cut;
    EXPECT_EQ(records->size(), cut == text.size() ? 2U : cut * 2 >= text.size() ? 1U : 0U) << cut;
  }
  for (size_t i = 0; i + 1 < text.size() / 2; ++i) {
    std::string altered = text;
    altered[i] ^= 1;
    const auto records = parse_journal(altered);
    ASSERT_FALSE(records.ok()) << i;
    EXPECT_EQ(records.status().code(), Code::kCorruption);
  }
}

TEST(Journal, LossesAreOfAllRanksOrNone) {
  EXPECT_EQ(format_commit({3, 1, {1, 2}, {0, -1}})
                .rfind("commit step=3 generation=1 incarnations=1,2 losses=00000000,- #", 0),
            0U);
  EXPECT_EQ(format_commit({3, 1, {1, 2}}).find("losses"), std::string::npos);
  EXPECT_FALSE(parse_journal(format_commit({3, 1, {1, 2}, {7}})).ok());
}

TEST(Journal, SaysWhyItCannotBeOpened) {
  const auto journal = open_journal(testing::TempDir() + "/no/such/folder/journal");
  ASSERT_FALSE(journal.ok());
  EXPECT_EQ(journal.status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace sgactor::actors
