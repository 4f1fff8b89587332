// Where the copies lie that checkpoints are written from, on a device whose memory the host does
// not see.
#include "actors/runtime/training.h"
#include "graph/base/units.h"
#include "tests/actor/faulty_backend.h"
#include "tests/actor/training_rig.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

namespace sgactor::actors {
namespace {

using testing_support::FaultyBackend;
using testing_support::RecordingObserver;
using testing_support::TrainingRig;

/// A device apart, of which `free_bytes` are said to be free (0: nothing is said) and which refuses
/// the copies where `refuses`.
class ApartBackend final : public FaultyBackend {
 public:
  ApartBackend(kernels::Backend& inner, int64_t free_bytes, bool refuses)
      : FaultyBackend(inner, INT64_MAX), info_(inner.info()), refuses_(refuses) {
    info_.free_bytes = free_bytes;
    info_.process_bytes = 1000;
    info_.scratch_bytes = 1000;
  }
  [[nodiscard]] const kernels::DeviceInfo& info() const override { return info_; }
  [[nodiscard]] bool host_visible() const override { return false; }
  Result<std::unique_ptr<kernels::DeviceMemory>> allocate(int64_t bytes,
                                                          std::string_view label) override {
    if (label == "snapshot staging") {
      copy_bytes = bytes;
      ++asked;
      live_before_copies = allocation_stats().live_bytes;
      if (refuses_) return make_status(Code::kOutOfMemory, "none left", Scope::kDevice);
    }
    return FaultyBackend::allocate(bytes, label);
  }
  Result<std::unique_ptr<kernels::DeviceMemory>> allocate_host(int64_t bytes,
                                                               std::string_view label) override {
    copy_bytes = bytes;
    ++on_host;
    return FaultyBackend::allocate(bytes, label);
  }

  int64_t asked = 0;    // times that the device was asked for the copies
  int64_t on_host = 0;  // times that they came to lie in the host's memory
  int64_t copy_bytes = 0;
  int64_t live_before_copies = 0;

 private:
  kernels::DeviceInfo info_;
  bool refuses_;
};

class SnapshotPlace : public testing::Test {
 protected:
  void SetUp() override {
    TrainingRig::Options options;
    options.backend = "cpu";
    auto rig = TrainingRig::create(options);
    ASSERT_TRUE(rig.ok()) << rig.status().to_string();
    rig_ = std::move(*rig);
  }
  /// The state that the checkpoint of two steps has, all tensors one after the other.
  std::vector<std::byte> state_of(kernels::Backend& backend, const std::string& name) {
    const std::string dir = testing::TempDir() + "/sga_snapshot_place_" + name;
    std::filesystem::remove_all(dir);
    TrainingSpec spec;
    spec.last_step = 2;
    spec.checkpoint_root = dir + "/ckpt";
    RecordingObserver observer;
    TrainingInputs inputs = rig_->inputs(&observer);
    inputs.backend = &backend;
    const auto summary = run_training(spec, inputs);
    EXPECT_TRUE(summary.ok()) << summary.status().to_string();
    std::vector<std::byte> all;
    if (observer.checkpoints.size() != 1) return all;
    const auto checkpoint = transport::Checkpoint::open(observer.checkpoints[0].second);
    if (!checkpoint.ok()) return all;
    for (const graph::Buffer& b : rig_->state_buffers()) {
      std::vector<std::byte> stored(static_cast<size_t>(b.type.bytes()));
      EXPECT_TRUE((*checkpoint)->load(b.name, b.type, stored).ok()) << b.name;
      all.insert(all.end(), stored.begin(), stored.end());
    }
    std::filesystem::remove_all(dir);
    return all;
  }

  std::unique_ptr<TrainingRig> rig_;
};

TEST_F(SnapshotPlace, TheDeviceWhereItHasRoom) {
  const auto expected = state_of(*rig_->backend, "plain");
  ASSERT_FALSE(expected.empty());
  ApartBackend backend(*rig_->backend, 0, false);
  EXPECT_EQ(state_of(backend, "unknown"), expected);
  EXPECT_EQ(backend.asked, 1);
  EXPECT_EQ(backend.on_host, 0);
  // Exactly enough, with what the backend may still ask for.
  const int64_t enough = backend.live_before_copies + backend.copy_bytes + 2000;
  ApartBackend just(*rig_->backend, enough, false);
  EXPECT_EQ(state_of(just, "enough"), expected);
  EXPECT_EQ(just.on_host, 0);
  ApartBackend less(*rig_->backend, enough - 1, false);
  EXPECT_EQ(state_of(less, "less"), expected);
  EXPECT_EQ(less.asked, 0);
  EXPECT_EQ(less.on_host, 1);
  EXPECT_EQ(less.copy_bytes, backend.copy_bytes);
}

TEST_F(SnapshotPlace, TheHostWhereTheDeviceRefuses) {
  const auto expected = state_of(*rig_->backend, "plain");
  ApartBackend backend(*rig_->backend, 0, true);
  EXPECT_EQ(state_of(backend, "refused"), expected);
  EXPECT_EQ(backend.asked, 1);
  EXPECT_EQ(backend.on_host, 1);
}

}  // namespace
}  // namespace sgactor::actors
