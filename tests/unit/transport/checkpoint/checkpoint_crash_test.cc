// A writer that stops after any number of disk operations, by a kill or by a power cut, and a disk
// that is full at any byte: what was whole stays whole, and nothing half-written is taken for
// whole.
#include "tests/unit/transport/checkpoint/memory_file_system.h"
#include "tests/unit/transport/checkpoint/small_state.h"

#include <gtest/gtest.h>

namespace sgactor::transport {
namespace {

using Disk = std::shared_ptr<MemoryFileSystem>;

Disk disk_with(const std::vector<int64_t>& steps) {
  auto files = std::make_shared<MemoryFileSystem>();
  for (const int64_t step : steps) EXPECT_TRUE(SmallState(step).write("/c", files).ok());
  return files;
}

/// The newest whole checkpoint is one of `steps`, it holds its state, and the disk works on.
void expect_newest_in(const Disk& files, const std::vector<int64_t>& steps,
                      const std::string& when) {
  const auto newest = newest_checkpoint("/c", nullptr, true, files);
  ASSERT_TRUE(newest.ok()) << when << ": " << newest.status().to_string();
  const auto checkpoint = Checkpoint::open(*newest, files);
  ASSERT_TRUE(checkpoint.ok()) << when;
  const int64_t step = (*checkpoint)->info().step;
  EXPECT_NE(std::find(steps.begin(), steps.end(), step), steps.end()) << when << ": step " << step;
  SmallState(step).expect_in(**checkpoint);
  ASSERT_TRUE(SmallState(99).write("/c", files).ok()) << when;
  ASSERT_TRUE(prune_checkpoints("/c", 1, files).ok()) << when;
  static const std::vector<std::string> kOnly99 = disk_with({99})->files();
  EXPECT_EQ(files->files(), kOnly99) << when;
  EXPECT_TRUE(verify_checkpoint("/c/step-00000099", files).ok()) << when;
}

/// Runs `action` on copies of `start`, stopping it after 0, 1, 2 … operations, until it gets
/// through. Then what is found must be one of `before`, or of `after` once it has returned ok.
template <class Action>
void stop_everywhere(const Disk& start, const Action& action, const std::vector<int64_t>& before,
                     const std::vector<int64_t>& after) {
  bool done = false;
  for (int64_t n = 0; !done; ++n) {
    ASSERT_LT(n, 1000);
    const Disk files = start->after_kill();
    files->die_after(n);
    done = action(files).ok();
    std::vector<int64_t> allowed = after;
    if (!done) allowed.insert(allowed.end(), before.begin(), before.end());
    expect_newest_in(files->after_kill(), allowed, "killed after " + std::to_string(n));
    for (uint64_t seed = 0; seed < 4; ++seed)
      expect_newest_in(files->after_power_cut(seed), allowed,
                       "power cut after " + std::to_string(n) + ", seed " + std::to_string(seed));
  }
}

TEST(CheckpointCrash, WritingKeepsTheOneBefore) {
  stop_everywhere(disk_with({1}),
                  [](const Disk& d) { return SmallState(2).write("/c", d).status(); }, {1}, {2});
}

TEST(CheckpointCrash, WritingAStepAgainKeepsTheOneBefore) {
  // Step 2 was cut off before its COMMIT; its chunks are there and get used.
  const Disk start = disk_with({1, 2});
  ASSERT_TRUE(start->remove_file("/c/step-00000002/COMMIT").ok());
  stop_everywhere(start, [](const Disk& d) { return SmallState(2).write("/c", d).status(); }, {1},
                  {2});
}

TEST(CheckpointCrash, ReplacingAStepKeepsTheOneBefore) {
  const Disk start = disk_with({1, 2});
  bool done = false;
  for (int64_t n = 0; !done; ++n) {
    ASSERT_LT(n, 1000);
    const Disk files = start->after_kill();
    files->die_after(n);
    SmallState other(7);
    other.step = 2;
    done = other.write("/c", files).ok();
    for (uint64_t seed = 0; seed < 4; ++seed) {
      const Disk found = files->after_power_cut(seed);
      const auto newest = newest_checkpoint("/c", nullptr, true, found);
      ASSERT_TRUE(newest.ok()) << n;
      const auto checkpoint = Checkpoint::open(*newest, found);
      ASSERT_TRUE(checkpoint.ok()) << n;
      if ((*checkpoint)->info().step == 1) {
        EXPECT_FALSE(done);
        SmallState(1).expect_in(**checkpoint);
        continue;
      }
      std::vector<std::byte> weights(280);
      ASSERT_TRUE((*checkpoint)->load("embed.weight", {DType::kF32, {10, 7}}, weights).ok());
      EXPECT_TRUE(weights == other.data[0] || (!done && weights == SmallState(2).data[0])) << n;
    }
  }
}

TEST(CheckpointCrash, PruningKeepsTheNewest) {
  stop_everywhere(disk_with({1, 2, 3}), [](const Disk& d) { return prune_checkpoints("/c", 1, d); },
                  {3}, {3});
}

TEST(CheckpointCrash, PruningLeavesNoCommitWithoutItsChunks) {
  const Disk start = disk_with({1, 2, 3});
  bool done = false;
  for (int64_t n = 0; !done; ++n) {
    ASSERT_LT(n, 1000);
    const Disk files = start->after_kill();
    files->die_after(n);
    done = prune_checkpoints("/c", 1, files).ok();
    for (uint64_t seed = 0; seed < 4; ++seed) {
      const auto list = list_checkpoints("/c", files->after_power_cut(seed));
      ASSERT_TRUE(list.ok());
      for (const CheckpointListing& found : *list) {
        if (found.status.ok()) continue;
        EXPECT_NE(found.status.message().find("COMMIT: no such file"), std::string::npos)
            << n << ": " << found.status.message();
      }
    }
  }
}

TEST(CheckpointCrash, ASecondPowerCutLosesNothingThatWasWhole) {
  // A process is killed, another one reuses its chunks and commits, then the power fails.
  const Disk start = disk_with({1});
  for (int64_t n = 0; n < 60; ++n) {
    const Disk first = start->after_kill();
    first->die_after(n);
    if (SmallState(2).write("/c", first).ok()) break;
    const Disk second = first->after_kill();
    ASSERT_TRUE(SmallState(2).write("/c", second).ok());
    for (uint64_t seed = 0; seed < 4; ++seed)
      expect_newest_in(second->after_power_cut(seed), {2}, "killed after " + std::to_string(n));
  }
}

TEST(CheckpointCrash, ADiskThatIsFullAtAnyByte) {
  const Disk start = disk_with({1});
  bool done = false;
  for (int64_t room = 0; !done; room += 37) {
    ASSERT_LT(room, 20000);
    const Disk files = start->after_kill();
    files->set_capacity(start->used_bytes() + room);
    const Status status = SmallState(2).write("/c", files).status();
    done = status.ok();
    if (!done) {
      EXPECT_EQ(status.code(), Code::kInternal);
      EXPECT_NE(status.message().find("No space left on device"), std::string::npos);
      EXPECT_EQ(status.message().rfind("/c/", 0), 0U) << status.message();
      for (const std::string& path : files->files())
        EXPECT_EQ(path.find(".tmp"), std::string::npos) << path;
    }
    expect_newest_in(files->after_kill(), {done ? 2 : 1}, "room for " + std::to_string(room));
  }
}

}  // namespace
}  // namespace sgactor::transport
