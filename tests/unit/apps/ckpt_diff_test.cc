#include "apps/sgactor/ckpt_diff.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <limits>
#include <memory>

namespace sgactor::apps {
namespace {

namespace fs = std::filesystem;
using transport::Checkpoint;
using transport::NamedTensor;
using transport::StoredTensor;
using transport::TensorSlice;

class CkptDiffTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = testing::TempDir() + "/sga_ckpt_diff_" + std::to_string(::getpid());
    fs::remove_all(root_);
  }
  void TearDown() override { fs::remove_all(root_); }

  static std::span<const std::byte> bytes_of(const std::vector<float>& values) {
    return std::as_bytes(std::span(values));
  }
  static TensorType f32(std::vector<int64_t> dims) { return {DType::kF32, Shape(std::move(dims))}; }
  /// One writer.
  std::unique_ptr<Checkpoint> write(const std::string& name,
                                    const std::vector<NamedTensor>& tensors) const {
    const std::string root = root_ + "/" + name;
    transport::CheckpointInfo info;
    info.step = 3;
    EXPECT_TRUE(transport::write_checkpoint(root, info, tensors, {}).ok());
    auto opened = Checkpoint::open(root + "/step-00000003");
    EXPECT_TRUE(opened.ok()) << opened.status().to_string();
    return std::move(*opened);
  }
  /// `values` of four rows of two, by a writer for each half.
  std::unique_ptr<Checkpoint> write_halves(const std::vector<float>& values) const {
    const std::string root = root_ + "/halves";
    std::vector<std::string> parts;
    for (int64_t half = 0; half < 2; ++half) {
      const std::vector<float> mine(values.begin() + half * 4, values.begin() + half * 4 + 4);
      const std::vector<StoredTensor> tensors = {
          {"w", f32({4, 2}), TensorSlice{0, half * 2, 2, 0, 4}, bytes_of(mine), "s"}};
      transport::WriteOptions options;
      options.writer = std::to_string(half);
      auto part = transport::write_part(root, 3, tensors, options);
      EXPECT_TRUE(part.ok()) << part.status().to_string();
      parts.push_back(part->part);
    }
    transport::CheckpointInfo info;
    info.step = 3;
    const auto dir = transport::commit_checkpoint(root, info, parts);
    EXPECT_TRUE(dir.ok()) << dir.status().to_string();
    return std::move(*Checkpoint::open(*dir));
  }
  static CheckpointDifference compared(const Checkpoint& a, const Checkpoint& b) {
    auto found = compare_checkpoints(a, b);
    EXPECT_TRUE(found.ok()) << found.status().to_string();
    return found.ok() ? *found : CheckpointDifference{};
  }

  std::string root_;
  const std::vector<float> values_ = {1, 2, 3, 4, 5, 6, 7, 8};
};

TEST_F(CkptDiffTest, HowATensorWasCutDoesNotCount) {
  const auto whole = write("whole", {{"w", f32({4, 2}), bytes_of(values_)}});
  const auto halves = write_halves(values_);
  ASSERT_EQ(halves->info().tensors[0].pieces.size(), 2U);
  EXPECT_TRUE(compared(*whole, *halves).equal());
  std::vector<float> other = values_;
  other[5] = 6.5F;
  const auto found = compared(*write("other", {{"w", f32({4, 2}), bytes_of(other)}}), *halves);
  ASSERT_EQ(found.tensors.size(), 1U);
  EXPECT_EQ(found.tensors[0].num_different, 1);
  EXPECT_EQ(found.tensors[0].num_elements, 8);
  EXPECT_DOUBLE_EQ(found.tensors[0].max_absolute, 0.5);
  EXPECT_DOUBLE_EQ(found.tensors[0].max_relative, 0.5 / 6.5);
}

TEST_F(CkptDiffTest, NamesAndTypesAreToldApart) {
  const auto a = write("a", {{"both", f32({8}), bytes_of(values_)},
                             {"old", f32({8}), bytes_of(values_)},
                             {"shape", f32({8}), bytes_of(values_)}});
  const auto b = write("b", {{"both", f32({8}), bytes_of(values_)},
                             {"new", f32({8}), bytes_of(values_)},
                             {"shape", f32({2, 4}), bytes_of(values_)}});
  const auto found = compared(*a, *b);
  EXPECT_EQ(found.num_tensors, 4);
  ASSERT_EQ(found.tensors.size(), 3U);
  EXPECT_EQ(found.tensors[0].kind, TensorDifference::Kind::kOnlyInB);
  EXPECT_EQ(difference_text(found.tensors[0]), "new  only in b (f32[8])");
  EXPECT_EQ(found.tensors[1].kind, TensorDifference::Kind::kOnlyInA);
  EXPECT_EQ(found.tensors[2].kind, TensorDifference::Kind::kType);
  EXPECT_EQ(difference_text(found.tensors[2]), "shape  f32[8] in a, f32[2, 4] in b");
}

TEST_F(CkptDiffTest, BitsCountWhereNumbersAreEqualOrNone) {
  std::vector<float> a = {0.0F, 1, std::numeric_limits<float>::quiet_NaN(), 4};
  std::vector<float> b = {-0.0F, 1, std::numeric_limits<float>::quiet_NaN(),
                          std::numeric_limits<float>::infinity()};
  const auto found = compared(*write("a", {{"w", f32({4}), bytes_of(a)}}),
                              *write("b", {{"w", f32({4}), bytes_of(b)}}));
  ASSERT_EQ(found.tensors.size(), 1U);
  EXPECT_EQ(found.tensors[0].num_different, 2) << "equal bits of a NaN are no difference";
  EXPECT_EQ(found.tensors[0].num_not_finite, 1);
  EXPECT_EQ(found.tensors[0].max_absolute, 0);
  EXPECT_EQ(found.tensors[0].max_relative, 0);
}

}  // namespace
}  // namespace sgactor::apps
