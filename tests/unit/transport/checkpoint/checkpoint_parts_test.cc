// Slices of tensors, and checkpoints that several writers make of them.
#include "transport/storage/checkpoint.h"
#include "transport/storage/manifest.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <numeric>

namespace sgactor::transport {
namespace {

const TensorType kType{DType::kF32, {5, 3}};

std::span<const std::byte> bytes_of(const std::vector<float>& v) {
  return std::as_bytes(std::span(v));
}

std::vector<float> numbered(int64_t n) {
  std::vector<float> v(static_cast<size_t>(n));
  std::iota(v.begin(), v.end(), 1.0F);
  return v;
}

std::vector<float> cut(const std::vector<float>& whole, const TensorType& type,
                       const TensorSlice& slice) {
  std::vector<float> out(static_cast<size_t>(slice.count), -1.0F);
  cut_slice(bytes_of(whole), type, slice, std::as_writable_bytes(std::span(out)));
  return out;
}

TEST(TensorSlice, CutsARangeOfADimAndThenAFlatPiece) {
  const std::vector<float> whole = numbered(15);
  // Rows 3 to 5 of 5: one row of padding.
  EXPECT_EQ(cut(whole, kType, {0, 3, 3, 0, 9}),
            (std::vector<float>{10, 11, 12, 13, 14, 15, 0, 0, 0}));
  // Columns 2 and 3 of 3: the second is padding in each row.
  EXPECT_EQ(cut(whole, kType, {1, 2, 2, 0, 10}),
            (std::vector<float>{3, 0, 6, 0, 9, 0, 12, 0, 15, 0}));
  // Of those, elements 3 to 8 and what lies beyond the end.
  EXPECT_EQ(cut(whole, kType, {1, 2, 2, 3, 6}), (std::vector<float>{0, 9, 0, 12, 0, 15}));
  EXPECT_EQ(cut(whole, kType, {-1, 0, 0, 12, 5}), (std::vector<float>{13, 14, 15, 0, 0}));
  // A range that lies beyond the dim is padding only.
  EXPECT_EQ(cut(whole, kType, {0, 6, 2, 0, 6}), std::vector<float>(6, 0.0F));
  EXPECT_EQ(num_real_elements(kType.shape, {1, 2, 2, 3, 6}), 3);
  EXPECT_EQ(num_real_elements(kType.shape, {0, 6, 2, 0, 6}), 0);
}

TEST(TensorSlice, PiecesOfEveryCutMakeUpTheWhole) {
  const TensorType type{DType::kF32, {3, 7, 4}};
  const std::vector<float> whole = numbered(84);
  for (int32_t dim = -1; dim < 3; ++dim) {
    for (int64_t tp = 1; tp <= (dim < 0 ? 1 : 4); ++tp) {
      for (int64_t dp = 1; dp <= 3; ++dp) {
        std::vector<float> joined(84, 0.0F);
        int64_t real = 0;
        for (int64_t t = 0; t < tp; ++t) {
          TensorSlice slice;
          slice.dim = dim;
          if (dim >= 0) slice.extent = (type.shape.dim(dim) + tp - 1) / tp;
          slice.begin = t * slice.extent;
          slice.count = (range_elements(type.shape, slice) + dp - 1) / dp;
          for (int64_t d = 0; d < dp; ++d) {
            slice.first = d * slice.count;
            ASSERT_TRUE(check_slice(type.shape, slice).ok());
            real += num_real_elements(type.shape, slice);
            join_slice(bytes_of(cut(whole, type, slice)), type, slice,
                       std::as_writable_bytes(std::span(joined)));
          }
        }
        EXPECT_EQ(joined, whole) << dim << " " << tp << " " << dp;
        EXPECT_EQ(real, 84) << dim << " " << tp << " " << dp;
      }
    }
  }
}

TEST(TensorSlice, RefusesWhatIsNoPart) {
  EXPECT_FALSE(check_slice(kType.shape, {2, 0, 1, 0, 1}).ok());
  EXPECT_FALSE(check_slice(kType.shape, {0, -1, 1, 0, 1}).ok());
  EXPECT_FALSE(check_slice(kType.shape, {0, 0, 6, 0, 1}).ok());
  EXPECT_FALSE(check_slice(kType.shape, {-1, 0, 0, -1, 1}).ok());
  EXPECT_FALSE(check_slice(kType.shape, {-1, 0, 0, 0, INT64_MAX}).ok());
}

class CheckpointParts : public testing::Test {
 protected:
  void SetUp() override {
    root_ = testing::TempDir() + "/sga_parts";
    std::filesystem::remove_all(root_);
  }
  /// Writer `rank` of two: half of `a`, and the first one all of `b`.
  Result<WrittenPart> write(int32_t rank, int64_t step = 7) {
    const TensorSlice slice{-1, 0, 0, rank * 8, 8};
    const std::vector<float> mine = cut(a_, kType, slice);
    std::vector<StoredTensor> tensors = {{"a", kType, slice, bytes_of(mine), "layer.0"}};
    if (rank == 0) tensors.push_back({"b", kType, {}, bytes_of(b_), "head"});
    WriteOptions options;
    options.chunk_bytes = 16;
    options.writer = std::to_string(rank);
    return write_part(root_, step, tensors, options);
  }
  CheckpointInfo info(int64_t step = 7) const {
    CheckpointInfo out;
    out.step = step;
    return out;
  }
  std::vector<float> load(const Checkpoint& checkpoint, const std::string& name) const {
    std::vector<float> out(15);
    const Status s = checkpoint.load(name, kType, std::as_writable_bytes(std::span(out)));
    EXPECT_TRUE(s.ok()) << s.to_string();
    return out;
  }

  std::string root_;
  const std::vector<float> a_ = numbered(15);
  const std::vector<float> b_ = std::vector<float>(15, 2.5F);
};

TEST_F(CheckpointParts, AreOneCheckpointWhenTheyAreCommitted) {
  const auto second = write(1);
  const auto first = write(0);
  ASSERT_TRUE(first.ok()) << first.status().to_string();
  ASSERT_TRUE(second.ok()) << second.status().to_string();
  EXPECT_FALSE(newest_checkpoint(root_, nullptr).ok());
  const auto path = commit_checkpoint(root_, info(), {first->part, second->part});
  ASSERT_TRUE(path.ok()) << path.status().to_string();
  EXPECT_TRUE(verify_checkpoint(*path).ok());
  const auto checkpoint = Checkpoint::open(*path);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().to_string();
  EXPECT_EQ((*checkpoint)->info().tensors.size(), 2U);
  EXPECT_EQ(load(**checkpoint, "a"), a_);
  EXPECT_EQ(load(**checkpoint, "b"), b_);
}

TEST_F(CheckpointParts, KeepTheirChunksWhenOthersArePruned) {
  const auto commit = [&](int64_t step) {
    const std::string first = write(0, step)->part;
    return commit_checkpoint(root_, info(step), {first, write(1, step)->part});
  };
  ASSERT_TRUE(commit(7).ok());
  const auto path = commit(8);
  ASSERT_TRUE(path.ok());
  ASSERT_TRUE(prune_checkpoints(root_, 1).ok());
  EXPECT_TRUE(verify_checkpoint(*path).ok());
  const auto listed = list_checkpoints(root_);
  ASSERT_TRUE(listed.ok());
  EXPECT_EQ(listed->size(), 1U);
}

TEST_F(CheckpointParts, RefusesPartsThatDoNotFit) {
  const std::string first = write(0)->part;
  const std::string second = write(1)->part;
  const auto refused = [&](const std::vector<std::string>& parts, int64_t step = 7) {
    return commit_checkpoint(root_, info(step), parts).status();
  };
  EXPECT_EQ(refused({first}).code(), Code::kCorruption);  // half of a is missing
  EXPECT_NE(refused({first}).message().find("tensor a: 8 of its 15"), std::string::npos);
  EXPECT_EQ(refused({first, first}).code(), Code::kInvalidArgument);      // b twice
  EXPECT_EQ(refused({first, second, second}).code(), Code::kCorruption);  // a piece twice
  EXPECT_EQ(refused({first, second}, 8).code(), Code::kInvalidArgument);  // of another step
  EXPECT_EQ(refused({first, "no part"}).code(), Code::kCorruption);
  EXPECT_FALSE(refused({}).ok());
}

TEST_F(CheckpointParts, AreNoCheckpointWithoutTheirChunks) {
  const std::vector<std::string> parts = {write(0)->part, write(1)->part};
  std::vector<std::filesystem::path> chunks;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root_ + "/chunks"))
    if (entry.is_regular_file()) chunks.push_back(entry.path());
  ASSERT_GT(chunks.size(), 2U);
  const auto refused = [&](const std::string& root, const std::string& chunk) {
    const Status status = commit_checkpoint(root, info(), parts).status();
    EXPECT_EQ(status.code(), Code::kCorruption) << status.to_string();
    EXPECT_NE(status.message().find(chunk), std::string::npos) << status.message();
    EXPECT_FALSE(std::filesystem::exists(root + "/step-00000007"));
  };
  // Of another root: none of them is there.
  refused(root_ + "/elsewhere", root_ + "/elsewhere/chunks/");
  const auto size = std::filesystem::file_size(chunks[0]);
  std::filesystem::resize_file(chunks[0], size - 1);
  refused(root_, chunks[0].string() + ": has " + std::to_string(size - 1) + " bytes");
  std::filesystem::remove(chunks[0]);
  refused(root_, chunks[0].string() + ": no such file");
}

TEST_F(CheckpointParts, AManifestWithAGapIsNoManifest) {
  const std::string first = write(0)->part;
  EXPECT_TRUE(parse_manifest(first, "part", true).ok());
  const auto gap = parse_manifest(first, "manifest");
  EXPECT_EQ(gap.status().code(), Code::kCorruption);
}

}  // namespace
}  // namespace sgactor::transport
