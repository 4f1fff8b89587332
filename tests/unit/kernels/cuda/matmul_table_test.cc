#include "kernels/cuda/matmul_table.h"

#include "graph/base/log.h"
#include "tests/support/full_disk.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>
#include <vector>

namespace sgactor::kernels::cuda {
namespace {

class Table : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::remove(file_); }
  void TearDown() override { std::filesystem::remove(file_); }
  [[nodiscard]] std::string text() const {
    std::ifstream in(file_, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void append(const std::string& text) const {
    std::ofstream(file_, std::ios::binary | std::ios::app) << text;
  }
  const std::string file_ = testing::TempDir() + "/sga_matmul_table_test";
};

TEST_F(Table, TheFirstRowOfAProductStands) {
  MatmulTable one("gpu");
  MatmulTable other("gpu");
  ASSERT_TRUE(one.open(file_).ok());
  ASSERT_TRUE(other.open(file_).ok());
  EXPECT_EQ(one.fingerprint(), other.fingerprint());
  EXPECT_EQ(one.add("p", 3).value(), 3);
  EXPECT_FALSE(other.find("p"));
  EXPECT_EQ(other.add("p", 5).value(), 3);
  EXPECT_EQ(other.find("p"), 3);
  MatmulTable later("gpu");
  ASSERT_TRUE(later.open(file_).ok());
  EXPECT_EQ(later.find("p"), 3);
}

TEST_F(Table, RowsOfOtherMachinesAreKeptAndNotUsed) {
  MatmulTable one("gpu");
  MatmulTable other("another gpu");
  ASSERT_TRUE(one.open(file_).ok());
  ASSERT_TRUE(one.add("p", 3).ok());
  ASSERT_TRUE(other.open(file_).ok());
  EXPECT_FALSE(other.find("p"));
  EXPECT_NE(one.fingerprint(), other.fingerprint());
  EXPECT_EQ(other.add("p", 1).value(), 1);
  EXPECT_EQ(one.add("p", 2).value(), 3);
}

TEST_F(Table, WhatAKilledWriterLeftIsCutOff) {
  std::string fingerprint;
  {
    MatmulTable table("gpu");
    ASSERT_TRUE(table.open(file_).ok());
    ASSERT_TRUE(table.add("p", 12).ok());
    fingerprint = table.fingerprint();
  }
  const std::string whole = text();
  for (const std::string torn : {"g", "gpu|q", "gpu|q|", "gpu|q|1"}) {
    append(torn);
    MatmulTable table("gpu");
    const Status opened = table.open(file_);
    ASSERT_TRUE(opened.ok()) << torn << ": " << opened.to_string();
    EXPECT_EQ(table.fingerprint(), fingerprint);
    EXPECT_EQ(table.find("p"), 12);
    EXPECT_FALSE(table.find("q")) << torn;
    EXPECT_EQ(text(), whole);
  }
}

TEST_F(Table, AnAlteredRowIsNamed) {
  MatmulTable table("gpu");
  append("gpu|file|1\nnonsense\n");
  const Status opened = table.open(file_);
  EXPECT_EQ(opened.code(), Code::kInvalidArgument);
  EXPECT_NE(opened.to_string().find("line 2"), std::string::npos) << opened.to_string();
  EXPECT_FALSE(table.measures());
  EXPECT_EQ(table.fingerprint(), "default");
}

/// As long as it lives, the process is nobody if it was root, who may write everything.
class Nobody {
 public:
  Nobody() : before_(::geteuid()) {
    if (before_ == 0) {
      EXPECT_EQ(::seteuid(65534), 0);
    }
  }
  Nobody(const Nobody&) = delete;
  Nobody& operator=(const Nobody&) = delete;
  ~Nobody() { EXPECT_EQ(::seteuid(before_), 0); }

 private:
  uid_t before_;
};

TEST_F(Table, AFullDiskIsOneWarningAndLeavesNoPartOfARow) {
  log::reset_warnings();
  MatmulTable table("gpu");
  ASSERT_TRUE(table.open(file_).ok());
  ASSERT_EQ(table.add("known", 2).value(), 2);
  const std::string fingerprint = table.fingerprint();
  const std::string whole = text();
  {
    const tests::FullDisk full(std::filesystem::file_size(file_) + 4);
    EXPECT_TRUE(table.measures());
    // The next run would measure anew: what cannot be kept is not used.
    const Result<int> added = table.add("product", 3);
    ASSERT_TRUE(added.ok()) << added.status().to_string();
    EXPECT_EQ(*added, 0);
    EXPECT_FALSE(table.measures());
    EXPECT_EQ(table.add("other", 3).value(), 0);
  }
  EXPECT_EQ(log::num_warnings(), 1);
  log::reset_warnings();
  EXPECT_EQ(text(), whole);
  EXPECT_EQ(table.add("known", 5).value(), 2);
  EXPECT_EQ(table.find("product"), 0);
  EXPECT_EQ(table.fingerprint(), fingerprint);
}

TEST_F(Table, AFullDiskAtTheStartMeasuresNothing) {
  log::reset_warnings();
  MatmulTable table("gpu");
  append("another gpu|file|1\n");
  const tests::FullDisk full(std::filesystem::file_size(file_));
  ASSERT_TRUE(table.open(file_).ok());
  EXPECT_FALSE(table.measures());
  EXPECT_EQ(table.fingerprint(), "default");
  EXPECT_EQ(log::num_warnings(), 1);
  log::reset_warnings();
}

TEST_F(Table, AFileThatCanOnlyBeReadIsRead) {
  {
    MatmulTable writer("gpu");
    ASSERT_TRUE(writer.open(file_).ok());
    ASSERT_TRUE(writer.add("p", 3).ok());
  }
  append("gpu|torn");
  const std::string whole = text();
  std::filesystem::permissions(file_, std::filesystem::perms(0444));
  log::reset_warnings();
  MatmulTable table("gpu");
  MatmulTable again("gpu");
  MatmulTable stranger("another gpu");
  {
    const Nobody nobody;
    if (text().empty()) GTEST_SKIP() << "nobody may read " << file_;
    const Status opened = table.open(file_);
    ASSERT_TRUE(opened.ok()) << opened.to_string();
    ASSERT_TRUE(again.open(file_).ok());
    ASSERT_TRUE(stranger.open(file_).ok());
  }
  EXPECT_EQ(log::num_warnings(), 3) << "one a table";
  log::reset_warnings();
  EXPECT_EQ(table.find("p"), 3);
  EXPECT_FALSE(table.measures());
  EXPECT_EQ(table.add("p", 5).value(), 3);
  EXPECT_EQ(table.add("q", 5).value(), 0);
  EXPECT_EQ(text(), whole);
  // Rows that others add do not change what this one computes: it is known by its rows.
  EXPECT_EQ(table.fingerprint(), again.fingerprint());
  EXPECT_TRUE(table.fingerprint().starts_with("tuned-rows-")) << table.fingerprint();
  EXPECT_EQ(stranger.fingerprint(), "default");
}

TEST_F(Table, ATableThatIsSpoiledMeanwhileIsOneWarning) {
  log::reset_warnings();
  MatmulTable table("gpu");
  ASSERT_TRUE(table.open(file_).ok());
  append("nonsense\n");
  EXPECT_EQ(table.add("p", 3).value(), 0);
  EXPECT_EQ(table.add("q", 3).value(), 0);
  EXPECT_EQ(log::num_warnings(), 1);
  log::reset_warnings();
}

TEST_F(Table, OfTheDefaultFileItIsLoggedThatItCannotBeUsed) {
  const char* known = std::getenv("XDG_CACHE_HOME");
  const std::string before = known != nullptr ? known : "";
  const std::string cache = testing::TempDir() + "/sga_matmul_cache_test";
  ::setenv("XDG_CACHE_HOME", cache.c_str(), 1);
  const std::string file = default_matmul_file();
  std::filesystem::create_directories(file);  // a folder in its place
  log::reset_warnings();
  MatmulTable table("gpu");
  const Status opened = table.open(file);
  EXPECT_EQ(opened.code(), Code::kInvalidArgument);
  EXPECT_FALSE(table.measures());
  EXPECT_EQ(table.fingerprint(), "default");
  EXPECT_EQ(log::num_warnings(), 1);
  log::reset_warnings();
  // One that the user has named is an error, which says so itself.
  std::filesystem::create_directories(file_);
  EXPECT_FALSE(MatmulTable("gpu").open(file_).ok());
  EXPECT_EQ(log::num_warnings(), 0);
  std::filesystem::remove_all(cache);
  known != nullptr ? ::setenv("XDG_CACHE_HOME", before.c_str(), 1) : ::unsetenv("XDG_CACHE_HOME");
}

TEST_F(Table, ManyWritersAgree) {
  constexpr int kWriters = 8;
  std::vector<int> used(kWriters, -1);
  {
    std::vector<std::jthread> writers;
    for (int w = 0; w < kWriters; ++w) {
      writers.emplace_back([&, w] {
        MatmulTable table("gpu");
        if (!table.open(file_).ok()) return;
        for (int p = 0; p < 20; ++p) {
          const auto place = table.add("p" + std::to_string(p), w);
          if (p == 0 && place.ok()) used[static_cast<size_t>(w)] = *place;
        }
      });
    }
  }
  for (int w = 1; w < kWriters; ++w) EXPECT_EQ(used[static_cast<size_t>(w)], used[0]);
  EXPECT_GE(used[0], 0);
}

}  // namespace
}  // namespace sgactor::kernels::cuda
