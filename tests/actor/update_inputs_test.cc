// Update inputs: a copy of the state and what the updates since have read give the state of the
// last step, bit for bit; files that are not whole are refused.
#include "actors/runtime/update_inputs.h"

#include "actors/runtime/rank_setup.h"
#include "tests/actor/faulty_backend.h"
#include "tests/actor/training_rig.h"
#include "transport/storage/checkpoint.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <bit>
#include <filesystem>
#include <fstream>

namespace sgactor::actors {
namespace {

namespace fs = std::filesystem;
using testing_support::HiddenBackend;
using testing_support::RecordingObserver;
using testing_support::TrainingRig;

constexpr int64_t kCopyStep = 2;
constexpr int64_t kLastStep = 5;

struct MeshCase {
  const char* name;
  graph::MeshShape mesh;  // pp, dp, tp
  int32_t zero_stage = 0;
  int32_t num_micro_batches = 2;
  bool hidden = false;  // memory that the host does not see
};
void PrintTo(const MeshCase& c, std::ostream* out) { *out << c.name; }

/// A run of kLastStep steps that has kept its update inputs, with copies of the state.
class UpdateInputsTest : public testing::TestWithParam<MeshCase> {
 protected:
  void run(const MeshCase& c) {
    TrainingRig::Options options;
    options.backend = "cpu";
    options.mesh = c.mesh;
    options.zero_stage = c.zero_stage;
    options.num_micro_batches = c.num_micro_batches;
    auto rig = TrainingRig::create(options);
    ASSERT_TRUE(rig.ok()) << rig.status().to_string();
    rig_ = std::move(*rig);
    hidden_ = std::make_unique<HiddenBackend>(*rig_->backend);
    backend_ = c.hidden ? hidden_.get() : rig_->backend.get();
    const std::string root = testing::TempDir() + "/sga_update_inputs_" + c.name;
    fs::remove_all(root);
    spec_.last_step = kLastStep;
    spec_.checkpoint_interval = 1;
    spec_.checkpoint_root = root + "/ckpt";
    spec_.mirror_root = mirror_ = root + "/mirror";
    TrainingInputs inputs = rig_->inputs(&observer_);
    inputs.backend = backend_;
    const auto summary = run_training(spec_, inputs);
    ASSERT_TRUE(summary.ok()) << summary.status().to_string();
    ASSERT_EQ(observer_.checkpoints.size(), static_cast<size_t>(kLastStep));
  }
  /// Rank `r` with the state after `step`, and the updates from `redo_from` (0: none) on redone.
  Result<RankSetup> set_up(int32_t r, int64_t step, int64_t redo_from) const {
    SGA_ASSIGN(const auto state, transport::Checkpoint::open(
                                     observer_.checkpoints[static_cast<size_t>(step - 1)].second));
    TrainingInputs inputs = rig_->inputs(nullptr);
    inputs.backend = backend_;
    inputs.initial_state = state.get();
    TrainingSpec spec = spec_;
    spec.first_step = kLastStep + 1;
    spec.last_step = kLastStep + 1;
    spec.redo_from = redo_from;
    return set_up_rank(spec, inputs, r);
  }
  [[nodiscard]] std::string file(int64_t step, int32_t rank) const {
    return fmt::format("{}/inputs/step-{:08}/rank-{}", mirror_, step, rank);
  }

  std::unique_ptr<TrainingRig> rig_;
  std::unique_ptr<HiddenBackend> hidden_;
  kernels::Backend* backend_ = nullptr;
  RecordingObserver observer_;
  TrainingSpec spec_;
  std::string mirror_;
};
INSTANTIATE_TEST_SUITE_P(
    Meshes, UpdateInputsTest,
    testing::Values(MeshCase{"dp2", {1, 2, 1}}, MeshCase{"dp2z1", {1, 2, 1}, 1},
                    MeshCase{"dp2z2", {1, 2, 1}, 2, 1}, MeshCase{"dp2z3", {1, 2, 1}, 3},
                    MeshCase{"dp2z3hidden", {1, 2, 1}, 3, 2, true},
                    MeshCase{"pp2", {2, 1, 1}, 0, 3}, MeshCase{"dp2pp2z1", {2, 2, 1}, 1}),
    [](const auto& info) { return std::string(info.param.name); });

std::vector<std::byte> native(kernels::Backend& backend, const TensorPlace& place) {
  std::vector<std::byte> out(static_cast<size_t>(place.type.bytes()));
  const Status read = backend.read_tensor(out, place.type, place.address);
  EXPECT_TRUE(read.ok()) << read.to_string();
  return out;
}

TEST_P(UpdateInputsTest, RedoneUpdatesGiveTheStateOfTheLastStep) {
  run(GetParam());
  if (HasFatalFailure()) return;
  for (int64_t step = 1; step <= kLastStep; ++step) {
    EXPECT_TRUE(inputs_whole(rig_->plan, mirror_, step)) << step;
  }
  size_t num_changed = 0;
  for (int32_t r = 0; r < static_cast<int32_t>(rig_->plan.ranks.size()); ++r) {
    const auto copy = set_up(r, kCopyStep, 0);
    const auto live = set_up(r, kLastStep, 0);
    const auto redone = set_up(r, kCopyStep, kCopyStep + 1);
    ASSERT_TRUE(copy.ok() && live.ok());
    ASSERT_TRUE(redone.ok()) << redone.status().to_string();
    const ProgramContext& expected = *live->training.context;
    const ProgramContext& got = *redone->training.context;
    for (size_t i = 0; i < expected.state.size(); ++i) {
      const auto bytes = native(*backend_, expected.state[i]);
      EXPECT_EQ(native(*backend_, got.state[i]), bytes) << expected.state[i].name << " of " << r;
      if (native(*backend_, copy->training.context->state[i]) != bytes) ++num_changed;
    }
    ASSERT_TRUE(redone->redone.has_value());
    const StepReport& last = observer_.steps.back();
    EXPECT_EQ(redone->redone->step, kLastStep);
    EXPECT_EQ(redone->redone->sample_hash, last.sample_hash);
    EXPECT_EQ(redone->redone->valid_tokens, last.tokens);
    EXPECT_EQ(std::bit_cast<uint32_t>(redone->redone->numbers.grad_norm),
              std::bit_cast<uint32_t>(last.grad_norm));
    EXPECT_EQ(std::bit_cast<uint32_t>(redone->redone->numbers.lr),
              std::bit_cast<uint32_t>(last.lr));
  }
  EXPECT_GT(num_changed, 0U);  // else nothing would have been shown
}

TEST_F(UpdateInputsTest, OneRankKeepsWhatAllDataParallelRanksRead) {
  run({"keeper", {1, 2, 1}});
  if (HasFatalFailure()) return;
  EXPECT_EQ(inputs_keeper(rig_->plan, 1), 0);
  EXPECT_GT(fs::file_size(file(kLastStep, 0)), 4 * fs::file_size(file(kLastStep, 1)));
}

TEST_F(UpdateInputsTest, FilesThatAreNotWholeAreRefused) {
  run({"damaged", {1, 2, 1}, 3});
  if (HasFatalFailure()) return;
  const auto refused = [this](int64_t step) {
    const auto redone = set_up(1, kCopyStep, kCopyStep + 1);
    ASSERT_EQ(redone.status().code(), Code::kCorruption) << redone.status().to_string();
    EXPECT_NE(redone.status().message().find(file(step, 1)), std::string::npos)
        << redone.status().to_string();
  };
  ASSERT_TRUE(set_up(1, kCopyStep, kCopyStep + 1).ok());
  const auto size = fs::file_size(file(4, 1));
  {
    std::fstream stream(file(4, 1), std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(static_cast<std::streamoff>(size) - 1);
    const auto last = static_cast<char>(stream.get() ^ 1);
    stream.seekp(static_cast<std::streamoff>(size) - 1);
    stream.put(last);
  }
  refused(4);  // its contents
  fs::resize_file(file(4, 1), size - 1);
  EXPECT_FALSE(inputs_whole(rig_->plan, mirror_, 4));
  refused(4);
  fs::copy_file(file(3, 1), file(4, 1), fs::copy_options::overwrite_existing);
  EXPECT_FALSE(inputs_whole(rig_->plan, mirror_, 4));
  refused(4);  // another step's
  fs::remove(file(3, 1));
  EXPECT_FALSE(inputs_whole(rig_->plan, mirror_, 3));
  refused(3);
}

TEST_F(UpdateInputsTest, OldStepsAreRemoved) {
  run({"pruned", {1, 2, 1}});
  if (HasFatalFailure()) return;
  prune_inputs(mirror_, 3);
  for (int64_t step = 1; step <= kLastStep; ++step) {
    EXPECT_EQ(inputs_whole(rig_->plan, mirror_, step), step > 3) << step;
    EXPECT_EQ(fs::exists(fs::path(file(step, 0)).parent_path()), step > 3) << step;
  }
}

TEST_F(UpdateInputsTest, PrunedFilesAreWrittenOver) {
  run({"again", {1, 2, 1}});
  if (HasFatalFailure()) return;
  const auto inode = [](const std::string& path) {
    struct stat info {};
    EXPECT_EQ(::stat(path.c_str(), &info), 0) << path;
    return info.st_ino;
  };
  const std::vector<std::vector<ino_t>> old = {{inode(file(1, 0)), inode(file(2, 0))},
                                               {inode(file(1, 1)), inode(file(2, 1))}};
  prune_inputs(mirror_, 2);
  for (const auto& spent : fs::directory_iterator(mirror_ + "/inputs/spent")) {
    fs::resize_file(spent, fs::file_size(spent) + 100);  // as if of a larger plan
  }
  for (int32_t r = 0; r < 2; ++r) {
    const auto rank = set_up(r, kLastStep, 0);
    ASSERT_TRUE(rank.ok()) << rank.status().to_string();
    ASSERT_TRUE((*rank).update_inputs->save(kLastStep + 1, 1, 1).ok());
    const ino_t got = inode(file(kLastStep + 1, r));
    EXPECT_TRUE(got == old[static_cast<size_t>(r)][0] || got == old[static_cast<size_t>(r)][1]);
  }
  EXPECT_TRUE(inputs_whole(rig_->plan, mirror_, kLastStep + 1));
}

}  // namespace
}  // namespace sgactor::actors
