#include "kernels/cuda/matmul_table.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
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

TEST_F(Table, AFullDiskLeavesNoPartOfARow) {
  MatmulTable table("gpu");
  ASSERT_TRUE(table.open(file_).ok());
  const std::string whole = text();
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit full = before;
  full.rlim_cur = std::filesystem::file_size(file_) + 4;
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &full), 0);
  const Result<int> added = table.add("product", 3);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_FALSE(added.ok());
  EXPECT_EQ(text(), whole);
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
