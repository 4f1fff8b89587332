// The file of measured products; needs no GPU.
#include "kernels/cuda/matmul_table.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace sgactor::kernels::cuda {
namespace {

class MatmulTableTest : public ::testing::Test {
 protected:
  MatmulTableTest()
      : folder_(std::filesystem::path(::testing::TempDir()) /
                ("matmul_table_" + std::to_string(getpid()))),
        file_((folder_ / "cache" / "table.txt").string()) {}
  ~MatmulTableTest() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path folder_;
  std::string file_;
};

TEST_F(MatmulTableTest, WithoutFileNothingIsMeasured) {
  const MatmulTable table("gpu lib");
  EXPECT_FALSE(table.measures());
  EXPECT_FALSE(table.find("a"));
  EXPECT_EQ(table.fingerprint(), "default");
}

TEST_F(MatmulTableTest, FirstRowStandsForAllProcesses) {
  MatmulTable first("gpu lib");
  MatmulTable second("gpu lib");
  ASSERT_TRUE(first.open(file_).ok());
  ASSERT_TRUE(second.open(file_).ok());
  EXPECT_TRUE(first.measures());
  EXPECT_EQ(first.fingerprint(), second.fingerprint());
  EXPECT_EQ(first.add("a", 3).value(), 3);
  EXPECT_EQ(second.add("a", 5).value(), 3);
  EXPECT_EQ(second.find("a"), 3);
  MatmulTable third("gpu lib");
  ASSERT_TRUE(third.open(file_).ok());
  EXPECT_EQ(third.find("a"), 3);
  EXPECT_EQ(third.fingerprint(), first.fingerprint());
}

TEST_F(MatmulTableTest, RowsOfOtherMachinesAreNotUsed) {
  MatmulTable one("gpu lib");
  MatmulTable other("gpu lib2");
  ASSERT_TRUE(one.open(file_).ok());
  ASSERT_TRUE(one.add("a", 3).ok());
  ASSERT_TRUE(other.open(file_).ok());
  EXPECT_FALSE(other.find("a"));
  EXPECT_EQ(other.add("a", 4).value(), 4);
  EXPECT_NE(one.fingerprint(), other.fingerprint());
}

TEST_F(MatmulTableTest, BadFilesAreNamedAndNotUsed) {
  std::filesystem::create_directories(folder_);
  const std::string bad = (folder_ / "bad.txt").string();
  std::ofstream(bad) << "gpu lib|a|1\ngpu lib|b\n";
  MatmulTable table("gpu lib");
  const Status status = table.open(bad);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.message().find("bad.txt: line 2"), std::string::npos) << status.message();
  EXPECT_FALSE(table.measures());
  EXPECT_FALSE(table.find("a"));
  EXPECT_EQ(table.open(folder_.string()).code(), Code::kInvalidArgument);
  EXPECT_EQ(table.fingerprint(), "default");
}

}  // namespace
}  // namespace sgactor::kernels::cuda
