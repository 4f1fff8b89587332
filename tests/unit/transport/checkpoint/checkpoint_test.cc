#include "transport/storage/checkpoint.h"

#include "tests/support/full_disk.h"
#include "tests/unit/transport/checkpoint/memory_file_system.h"
#include "tests/unit/transport/checkpoint/small_state.h"
#include "tests/unit/transport/safetensors/temporary_directory.h"

#include <gtest/gtest.h>

#include <filesystem>

namespace sgactor::transport {
namespace {

std::shared_ptr<MemoryFileSystem> disk() { return std::make_shared<MemoryFileSystem>(); }

TEST(Checkpoint, HoldsWhatWasWritten) {
  const TemporaryDirectory dir;
  const std::string root = dir.file("run/ckpt");
  const SmallState state(10);
  const auto stats = state.write(root, nullptr);
  ASSERT_TRUE(stats.ok()) << stats.status().to_string();
  EXPECT_TRUE(verify_checkpoint(root + "/step-00000010").ok());
  const auto checkpoint = Checkpoint::open(root + "/step-00000010/");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().to_string();
  state.expect_in(**checkpoint);
  const CheckpointInfo expected = state.info();
  const CheckpointInfo& info = (*checkpoint)->info();
  EXPECT_EQ(info.schema_hash, expected.schema_hash);
  EXPECT_EQ(info.runtime_version, kRuntimeVersion);
  EXPECT_EQ(info.mesh, expected.mesh);
  EXPECT_EQ(info.run_state, expected.run_state);
  EXPECT_EQ(info.data_seed, expected.data_seed);
  EXPECT_EQ(info.data_position, expected.data_position);
  EXPECT_EQ(info.model_config, expected.model_config);
  EXPECT_EQ(info.job, expected.job);
  EXPECT_EQ(info.graph, expected.graph);
  EXPECT_EQ(info.chunk_bytes, 64);
}

TEST(Checkpoint, NamesTensorsThatDoNotFit) {
  const auto files = disk();
  ASSERT_TRUE(SmallState(1).write("/c", files).ok());
  const auto checkpoint = Checkpoint::open("/c/step-00000001", files);
  ASSERT_TRUE(checkpoint.ok());
  std::vector<std::byte> out(280);
  const Status missing = (*checkpoint)->load("nobody", {DType::kF32, {70}}, out);
  EXPECT_EQ(missing.code(), Code::kInvalidArgument);
  EXPECT_NE(missing.message().find("no tensor nobody"), std::string::npos);
  const Status type = (*checkpoint)->load("embed.weight", {DType::kF32, {7, 10}}, out);
  EXPECT_EQ(type.code(), Code::kInvalidArgument);
  EXPECT_NE(type.message().find("embed.weight is f32[10, 7], f32[7, 10] expected"),
            std::string::npos)
      << type.message();
  EXPECT_EQ(
      (*checkpoint)->load("embed.weight", {DType::kF32, {10, 7}}, std::span(out).first(279)).code(),
      Code::kInvalidArgument);
}

TEST(Checkpoint, WritesOnlyWhatChanged) {
  const auto files = disk();
  const auto first = SmallState(1).write("/c", files);
  ASSERT_TRUE(first.ok()) << first.status().to_string();
  // "zero" is four equal chunks, of which three are reused at once.
  EXPECT_EQ(first->bytes_reused, 3 * 64);
  const auto second = SmallState(2).write("/c", files);
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(second->bytes_reused, 200 + 256);  // "frozen" and "zero"
  EXPECT_EQ(second->bytes_written, first->bytes_written - 200 - 64);
  const auto again = SmallState(2).write("/c", files);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->bytes_written, 0);
  SmallState(1).expect_in(**Checkpoint::open("/c/step-00000001", files));
  SmallState(2).expect_in(**Checkpoint::open("/c/step-00000002", files));
}

TEST(Checkpoint, RefusesInputThatContradictsItself) {
  const auto files = disk();
  SmallState twice(1);
  twice.names[1] = twice.names[0];
  EXPECT_EQ(twice.write("/c", files).status().code(), Code::kInvalidArgument);
  SmallState small(1);
  small.data[0].pop_back();
  EXPECT_EQ(small.write("/c", files).status().code(), Code::kInvalidArgument);
  SmallState segments(1);
  segments.segments.pop_back();
  EXPECT_EQ(segments.write("/c", files).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(SmallState(-1).write("/c", files).status().code(), Code::kInvalidArgument);
  EXPECT_TRUE(files->files().empty());
}

/// Every file of the checkpoint, cut at every byte, or one byte longer, or gone.
TEST(Checkpoint, CutAtAnyByteIsRefused) {
  const auto whole = disk();
  ASSERT_TRUE(SmallState(1).write("/c", whole).ok());
  ASSERT_TRUE(SmallState(2).write("/c", whole).ok());
  const auto first = Checkpoint::open("/c/step-00000001", whole);
  ASSERT_TRUE(first.ok());
  ASSERT_TRUE(prune_checkpoints("/c", 1, whole).ok());  // only step 2 refers to what is left
  int64_t cuts = 0;
  for (const std::string& path : whole->files()) {
    const std::string bytes = *whole->read(path, 1 << 20);
    for (size_t size = 0; size <= bytes.size() + 1; ++size) {
      if (size == bytes.size()) continue;
      const auto files = whole->after_kill();
      files->overwrite(path, size > bytes.size() ? bytes + "x" : bytes.substr(0, size));
      const auto opened = Checkpoint::open("/c/step-00000002", files);
      EXPECT_EQ(opened.status().code(), Code::kCorruption) << path << " cut to " << size;
      EXPECT_NE(opened.status().message().find("/c/"), std::string::npos);
      EXPECT_EQ(newest_checkpoint("/c", nullptr, false, files).status().code(),
                Code::kInvalidArgument);
      ++cuts;
    }
    const auto files = whole->after_kill();
    ASSERT_TRUE(files->remove_file(path).ok());
    const Status gone = Checkpoint::open("/c/step-00000002", files).status();
    EXPECT_EQ(gone.code(), Code::kCorruption) << path;
    EXPECT_NE(gone.message().find(path + ": no such file"), std::string::npos) << gone.message();
  }
  EXPECT_GT(cuts, 1000);
}

TEST(Checkpoint, AFlippedBitIsFound) {
  const auto whole = disk();
  ASSERT_TRUE(SmallState(1).write("/c", whole).ok());
  for (const std::string& path : whole->files()) {
    std::string bytes = *whole->read(path, 1 << 20);
    for (size_t i = 0; i < bytes.size(); i += 1 + bytes.size() / 17) {
      const auto files = whole->after_kill();
      std::string changed = bytes;
      changed[i] ^= 0x10;
      files->overwrite(path, changed);
      const Status status = verify_checkpoint("/c/step-00000001", files);
      EXPECT_EQ(status.code(), Code::kCorruption) << path << " byte " << i;
      EXPECT_NE(status.message().find("/c/"), std::string::npos) << status.message();
      EXPECT_FALSE(newest_checkpoint("/c", nullptr, true, files).ok());
    }
  }
}

TEST(Checkpoint, LoadNamesTheDamagedChunk) {
  const auto files = disk();
  const SmallState state(1);
  ASSERT_TRUE(state.write("/c", files).ok());
  const auto checkpoint = Checkpoint::open("/c/step-00000001", files);
  ASSERT_TRUE(checkpoint.ok());
  const std::string path = "/c/chunks/" +
                           (*checkpoint)->info().tensors[0].chunks[2].hex().substr(0, 2) + "/" +
                           (*checkpoint)->info().tensors[0].chunks[2].hex() + ".bin";
  files->overwrite(path, std::string(64, 'x'));
  std::vector<std::byte> out(280);
  const Status status = (*checkpoint)->load("embed.weight", {DType::kF32, {10, 7}}, out);
  EXPECT_EQ(status.code(), Code::kCorruption);
  EXPECT_NE(status.message().find("tensor embed.weight: " + path), std::string::npos)
      << status.message();
}

TEST(Checkpoint, ADamagedChunkIsWrittenAnew) {
  for (const bool check : {true, false}) {
    const auto files = disk();
    const SmallState state(1);
    ASSERT_TRUE(state.write("/c", files).ok());
    std::string damaged;
    for (const std::string& path : files->files())
      if (path.ends_with(".bin") && path.find("chunks") != std::string::npos) damaged = path;
    const std::string bytes = *files->read(damaged, 1 << 20);
    files->overwrite(damaged, std::string(bytes.size(), 'x'));
    ASSERT_TRUE(SmallState(1).write("/c", files, check).ok());
    EXPECT_EQ(verify_checkpoint("/c/step-00000001", files).ok(), check);
    // A cut one is found by its size alone.
    files->overwrite(damaged, bytes.substr(1));
    ASSERT_TRUE(SmallState(1).write("/c", files, check).ok());
    EXPECT_TRUE(verify_checkpoint("/c/step-00000001", files).ok());
  }
}

TEST(Checkpoint, NewestWholeOneIsFoundAndTheOthersAreNamed) {
  const auto files = disk();
  for (const int64_t step : {1, 2, 10, 300}) ASSERT_TRUE(SmallState(step).write("/c", files).ok());
  files->overwrite("/c/step-00000300/COMMIT", "");
  ASSERT_TRUE(files->remove_file("/c/step-00000010/manifest.bin").ok());
  ASSERT_TRUE(files->make_directory("/c/step-7").ok());
  ASSERT_TRUE(files->make_directory("/c/step-0000001x").ok());
  ASSERT_TRUE(files->make_directory("/c/notes").ok());
  const auto list = list_checkpoints("/c", files);
  ASSERT_TRUE(list.ok());
  ASSERT_EQ(list->size(), 4U);
  EXPECT_EQ((*list)[0].step, 1);
  EXPECT_TRUE((*list)[1].status.ok());
  EXPECT_EQ((*list)[1].bytes, 280 + 66 + 200 + 24 + 256 + 4);
  EXPECT_FALSE((*list)[2].status.ok());
  EXPECT_EQ((*list)[3].step, 300);
  std::vector<CheckpointListing> skipped;
  const auto newest = newest_checkpoint("/c", &skipped, true, files);
  ASSERT_TRUE(newest.ok()) << newest.status().to_string();
  EXPECT_EQ(*newest, "/c/step-00000002");
  ASSERT_EQ(skipped.size(), 2U);
  EXPECT_EQ(skipped[0].step, 300);
  EXPECT_NE(skipped[0].status.message().find("/c/step-00000300/COMMIT"), std::string::npos);
  EXPECT_EQ(skipped[1].step, 10);
  EXPECT_NE(skipped[1].status.message().find("/c/step-00000010/manifest.bin: no such file"),
            std::string::npos);
}

TEST(Checkpoint, AManifestInAnotherStepsDirectoryIsRefused) {
  const auto files = disk();
  ASSERT_TRUE(SmallState(1).write("/c", files).ok());
  ASSERT_TRUE(SmallState(2).write("/c", files).ok());
  for (const char* name : {"/COMMIT", "/manifest.bin"})
    files->overwrite(std::string("/c/step-00000002") + name,
                     *files->read(std::string("/c/step-00000001") + name, 1 << 20));
  EXPECT_EQ(*newest_checkpoint("/c", nullptr, true, files), "/c/step-00000001");
}

TEST(Checkpoint, ARunDirectoryStandsForItsCheckpoints) {
  const auto files = disk();
  ASSERT_TRUE(SmallState(3).write("/run/ckpt", files).ok());
  EXPECT_EQ(*newest_checkpoint("/run", nullptr, true, files), "/run/ckpt/step-00000003");
  ASSERT_TRUE(prune_checkpoints("/run", 1, files).ok());
  EXPECT_EQ(newest_checkpoint("/none", nullptr, true, files).status().message(),
            "/none: no such directory");
  EXPECT_NE(newest_checkpoint("/", nullptr, true, files)
                .status()
                .message()
                .find("holds no whole checkpoint"),
            std::string::npos);
}

TEST(Checkpoint, PruneKeepsTheNewestWholeOnesAndTheirChunks) {
  const auto files = disk();
  for (const int64_t step : {1, 2, 3, 4, 5}) ASSERT_TRUE(SmallState(step).write("/c", files).ok());
  ASSERT_TRUE(files->remove_file("/c/step-00000005/COMMIT").ok());
  files->overwrite("/c/chunks/00.tmp", "not in a chunk directory");
  const int64_t before = files->used_bytes();
  ASSERT_TRUE(prune_checkpoints("/c", 0, files).ok());
  EXPECT_EQ(files->used_bytes(), before);
  ASSERT_TRUE(prune_checkpoints("/c", 2, files).ok());
  const auto list = list_checkpoints("/c", files);
  ASSERT_EQ(list->size(), 2U);
  EXPECT_EQ((*list)[0].step, 3);
  EXPECT_EQ((*list)[1].step, 4);
  SmallState(3).expect_in(**Checkpoint::open("/c/step-00000003", files));
  SmallState(4).expect_in(**Checkpoint::open("/c/step-00000004", files));
  // What a fresh directory with these two needs, and the stray file.
  const auto fresh = disk();
  ASSERT_TRUE(SmallState(3).write("/c", fresh).ok());
  ASSERT_TRUE(SmallState(4).write("/c", fresh).ok());
  EXPECT_EQ(files->used_bytes(), fresh->used_bytes() + 24);
}

TEST(Checkpoint, PruneWithoutAWholeOneRemovesNothing) {
  const auto files = disk();
  ASSERT_TRUE(SmallState(1).write("/c", files).ok());
  files->overwrite("/c/step-00000001/COMMIT", "x");
  const auto before = files->files();
  ASSERT_TRUE(prune_checkpoints("/c", 1, files).ok());
  EXPECT_EQ(files->files(), before);
}

TEST(Checkpoint, AStepCanBeWrittenAgainWithOtherContent) {
  const auto files = disk();
  ASSERT_TRUE(SmallState(1).write("/c", files).ok());
  SmallState other(9);
  other.step = 1;
  ASSERT_TRUE(other.write("/c", files).ok());
  ASSERT_TRUE(verify_checkpoint("/c/step-00000001", files).ok());
  other.expect_in(**Checkpoint::open("/c/step-00000001", files));
}

// The real disk's limit on the size of a file stands for a full disk.
TEST(Checkpoint, AFullDiskIsOneClearError) {
  const TemporaryDirectory dir;
  const std::string root = dir.file("ckpt");
  ASSERT_TRUE(SmallState(1).write(root, nullptr).ok());
  const Status status = [&] {
    const tests::FullDisk full(32);
    return SmallState(2).write(root, nullptr).status();
  }();
  EXPECT_EQ(status.code(), Code::kInternal);
  EXPECT_NE(status.message().find(root + "/chunks/"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("write: File too large"), std::string::npos) << status.message();
  EXPECT_EQ(*newest_checkpoint(root, nullptr), root + "/step-00000001");
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root))
    EXPECT_EQ(entry.path().string().find(".tmp"), std::string::npos) << entry.path();
}

}  // namespace
}  // namespace sgactor::transport
