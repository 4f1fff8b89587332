// run_training against the same plan run without actors: equal bit for bit on every backend.
#include "actors/runtime/journal.h"
#include "actors/runtime/snapshot.h"
#include "actors/runtime/training.h"
#include "tests/actor/training_rig.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <zlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>

namespace sgactor::actors {
namespace {

namespace fs = std::filesystem;
using testing_support::bits;
using testing_support::grad_norms;
using testing_support::losses;
using testing_support::RecordingObserver;
using testing_support::TrainingRig;

std::unique_ptr<TrainingRig> make_rig(const std::string& backend, bool validation = false) {
  TrainingRig::Options options;
  options.backend = backend;
  options.validation = validation;
  options.num_threads = 2;
  auto rig = TrainingRig::create(options);
  EXPECT_TRUE(rig.ok()) << rig.status().to_string();
  return rig.ok() ? std::move(*rig) : nullptr;
}

/// A folder of the test's own, empty.
std::string fresh_dir(const std::string& name) {
  const std::string dir = testing::TempDir() + "/sga_" + name;
  fs::remove_all(dir);
  fs::create_directories(dir);
  return dir;
}

class RunTraining : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Backends, RunTraining, testing::Values("symbolic", "reference", "cpu"));

TEST_P(RunTraining, EqualsThePlanWithoutActors) {
  const auto rig = make_rig(GetParam());
  ASSERT_TRUE(rig);
  const auto expected = rig->run_without_actors(5);
  ASSERT_TRUE(expected.ok()) << expected.status().to_string();
  TrainingSpec spec;
  spec.last_step = 5;
  spec.checkpoint_root = fresh_dir("equals") + "/ckpt";
  RecordingObserver observer;
  const auto summary = run_training(spec, rig->inputs(&observer));
  ASSERT_TRUE(summary.ok()) << summary.status().to_string();
  EXPECT_EQ(bits(losses(observer.steps)), bits(expected->losses));
  EXPECT_EQ(bits(grad_norms(observer.steps)), bits(expected->grad_norms));
  EXPECT_EQ(summary->last_step, 5);
  EXPECT_FALSE(summary->interrupted);
  EXPECT_EQ(observer.steps[2].sample_hash, rig->sampler->sample_hash(3));
  EXPECT_EQ(observer.steps[2].tokens, rig->sampler->valid_tokens(3));
  ASSERT_EQ(observer.checkpoints.size(), 1U);
  const auto checkpoint = transport::Checkpoint::open(observer.checkpoints[0].second);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().to_string();
  EXPECT_EQ((*checkpoint)->info().step, 5);
  EXPECT_EQ((*checkpoint)->info().data_position, 5);
  for (const graph::Buffer& b : rig->state_buffers()) {
    std::vector<std::byte> stored(static_cast<size_t>(b.type.bytes()));
    ASSERT_TRUE((*checkpoint)->load(b.name, b.type, stored).ok()) << b.name;
    const auto in_memory = expected->executor->read_bytes(b.name);
    ASSERT_TRUE(in_memory.ok());
    EXPECT_EQ(stored, *in_memory) << b.name;
  }
}

TEST_P(RunTraining, AllocatesNothingAfterStartAndFillsThePlannedArena) {
  const auto rig = make_rig(GetParam(), true);
  ASSERT_TRUE(rig);
  TrainingSpec spec;
  spec.last_step = 4;
  spec.validation_interval = 2;
  spec.validation_batches = 3;
  spec.checkpoint_interval = 2;
  spec.checkpoint_root = fresh_dir("allocates") + "/ckpt";
  const auto summary = run_training(spec, rig->inputs(nullptr));
  ASSERT_TRUE(summary.ok()) << summary.status().to_string();
  EXPECT_EQ(summary->allocations_at_start.num_allocations,
            summary->allocations_at_end.num_allocations);
  EXPECT_EQ(summary->allocations_at_start.live_bytes, summary->allocations_at_end.live_bytes);
  EXPECT_GT(summary->allocations_at_start.num_allocations, 0);
  EXPECT_EQ(summary->arena_high_water_bytes, rig->plan.programs[0].arena_bytes);
  EXPECT_GT(summary->num_messages, 0);
  EXPECT_EQ(rig->backend->allocation_stats().live_bytes, 0);  // all of it went with the run
}

TEST_P(RunTraining, ValidationIsTheForwardPlansLossAndLeavesTrainingAlone) {
  const auto rig = make_rig(GetParam(), true);
  ASSERT_TRUE(rig);
  RecordingObserver plain, validated;
  TrainingSpec spec;
  spec.last_step = 4;
  spec.final_checkpoint = false;
  TrainingInputs inputs = rig->inputs(&plain);
  inputs.validation_plan = nullptr;
  ASSERT_TRUE(run_training(spec, inputs).ok());
  spec.validation_interval = 2;
  spec.validation_batches = 3;
  const auto summary = run_training(spec, rig->inputs(&validated));
  ASSERT_TRUE(summary.ok()) << summary.status().to_string();
  EXPECT_EQ(bits(losses(plain.steps)), bits(losses(validated.steps)));
  ASSERT_EQ(validated.validations.size(), 2U);
  EXPECT_EQ(validated.validations[0].first, 2);
  EXPECT_EQ(validated.validations[1].first, 4);
  if (std::string(GetParam()) == "symbolic") return;  // its numbers are hashes
  EXPECT_NE(validated.validations[0].second, validated.validations[1].second);

  spec.last_step = 2;
  spec.checkpoint_root = fresh_dir("validation") + "/ckpt";
  spec.final_checkpoint = true;
  RecordingObserver again;
  ASSERT_TRUE(run_training(spec, rig->inputs(&again)).ok());
  const auto state = transport::Checkpoint::open(again.checkpoints.at(0).second);
  ASSERT_TRUE(state.ok());
  auto runner = ForwardRunner::create(rig->validation_plan, *rig->backend, **state);
  ASSERT_TRUE(runner.ok()) << runner.status().to_string();
  double sum = 0;
  int64_t valid = 0;
  const auto n = static_cast<size_t>(rig->options.micro_batch_size * rig->options.seq_len);
  for (int64_t i = 1; i <= spec.validation_batches; ++i) {
    std::vector<int32_t> tokens(n), targets(n);
    rig->validation_sampler->fill(i, 0, tokens, targets);
    const auto count =
        std::count_if(targets.begin(), targets.end(), [](int32_t t) { return t >= 0; });
    const auto loss = (*runner)->run(tokens, targets);
    ASSERT_TRUE(loss.ok()) << loss.status().to_string();
    sum += static_cast<double>(loss->at(0)) * static_cast<double>(count);
    valid += count;
  }
  const double mean = sum / static_cast<double>(valid);
  // The reference keeps its state in float64, the checkpoint in float32.
  EXPECT_NEAR(again.validations.at(0).second, mean, std::string(GetParam()) == "cpu" ? 0 : 1e-6);
}

TEST(RunTrainingResume, SixStepsAreThreeAndThree) {
  const auto rig = make_rig("cpu");
  ASSERT_TRUE(rig);
  RecordingObserver whole, first, second;
  TrainingSpec spec;
  spec.last_step = 6;
  spec.checkpoint_root = fresh_dir("resume_whole") + "/ckpt";
  ASSERT_TRUE(run_training(spec, rig->inputs(&whole)).ok());
  const std::string root = fresh_dir("resume_parts") + "/ckpt";
  spec.checkpoint_root = root;
  spec.last_step = 3;
  ASSERT_TRUE(run_training(spec, rig->inputs(&first)).ok());
  const auto newest = transport::newest_checkpoint(root, nullptr);
  ASSERT_TRUE(newest.ok()) << newest.status().to_string();
  EXPECT_EQ(*newest, checkpoint_path(root, 3));
  const auto state = transport::Checkpoint::open(*newest);
  ASSERT_TRUE(state.ok());
  spec.first_step = (*state)->info().step + 1;
  spec.last_step = 6;
  TrainingInputs inputs = rig->inputs(&second);
  inputs.initial_state = state->get();
  ASSERT_TRUE(run_training(spec, inputs).ok());
  std::vector<float> parts = losses(first.steps);
  for (float l : losses(second.steps)) parts.push_back(l);
  EXPECT_EQ(bits(parts), bits(losses(whole.steps)));
  EXPECT_EQ(second.steps.at(0).step, 4);
}

TEST(RunTrainingStop, FinishesTheStepAndTakesACheckpoint) {
  const auto rig = make_rig("cpu");
  ASSERT_TRUE(rig);
  RecordingObserver observer;
  observer.stop_at = 2;
  TrainingSpec spec;
  spec.last_step = 100;
  spec.checkpoint_root = fresh_dir("stop") + "/ckpt";
  TrainingInputs inputs = rig->inputs(&observer);
  inputs.stop = &observer.stop;
  const auto summary = run_training(spec, inputs);
  ASSERT_TRUE(summary.ok()) << summary.status().to_string();
  EXPECT_TRUE(summary->interrupted);
  EXPECT_EQ(summary->last_step, 2);
  EXPECT_EQ(observer.steps.size(), 2U);
  ASSERT_EQ(observer.checkpoints.size(), 1U);
  EXPECT_EQ(observer.checkpoints[0].first, 2);
  EXPECT_TRUE(transport::verify_checkpoint(observer.checkpoints[0].second).ok());
}

TEST(RunTrainingCheckpoints, AreTakenAtTheIntervalAndPruned) {
  const auto rig = make_rig("cpu");
  ASSERT_TRUE(rig);
  RecordingObserver observer;
  TrainingSpec spec;
  spec.last_step = 7;
  spec.checkpoint_interval = 2;
  spec.keep_checkpoints = 2;
  spec.checkpoint_root = fresh_dir("interval") + "/ckpt";
  ASSERT_TRUE(run_training(spec, rig->inputs(&observer)).ok());
  std::vector<int64_t> taken;
  for (const auto& [step, path] : observer.checkpoints) taken.push_back(step);
  EXPECT_EQ(taken, (std::vector<int64_t>{2, 4, 6, 7}));
  const auto kept = transport::list_checkpoints(spec.checkpoint_root);
  ASSERT_TRUE(kept.ok());
  ASSERT_EQ(kept->size(), 2U);
  EXPECT_EQ((*kept)[0].step, 6);
  EXPECT_EQ((*kept)[1].step, 7);
}

TEST(RunTrainingJournal, HasEveryCommitBeforeItsUpdate) {
  const auto rig = make_rig("cpu");
  ASSERT_TRUE(rig);
  TrainingSpec spec;
  spec.first_step = 1;
  spec.last_step = 3;
  spec.journal_file = fresh_dir("journal") + "/journal";
  ASSERT_TRUE(run_training(spec, rig->inputs(nullptr)).ok());
  std::ifstream in(spec.journal_file);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  const auto records = parse_journal(text);
  ASSERT_TRUE(records.ok()) << records.status().to_string();
  EXPECT_EQ(*records, (std::vector<CommitRecord>{{1, 1, {1}}, {2, 1, {1}}, {3, 1, {1}}}));
}

TEST(RunTrainingThreads, SameBitsWithAnyNumberOfSchedulerThreads) {
  const auto rig = make_rig("cpu");
  ASSERT_TRUE(rig);
  std::set<std::vector<uint32_t>> seen;
  for (int32_t threads : {1, 2, 4}) {
    TrainingSpec spec;
    spec.last_step = 5;
    spec.scheduler_threads = threads;
    RecordingObserver observer;
    ASSERT_TRUE(run_training(spec, rig->inputs(&observer)).ok());
    seen.insert(bits(losses(observer.steps)));
  }
  EXPECT_EQ(seen.size(), 1U);
}

std::string read_gzip(const std::string& path) {
  std::string out;
  gzFile file = gzopen(path.c_str(), "rb");
  if (file == nullptr) return out;
  std::string part(1 << 16, '\0');
  int n = 0;
  while ((n = gzread(file, part.data(), static_cast<unsigned>(part.size()))) > 0) {
    out.append(part, 0, static_cast<size_t>(n));
  }
  gzclose(file);
  return out;
}

TEST(RunTrainingTrace, ShowsActorsKernelsAndMessagesOfTheFirstSteps) {
  const auto rig = make_rig("cpu");
  ASSERT_TRUE(rig);
  TrainingSpec spec;
  spec.last_step = 4;
  spec.trace_steps = 2;
  spec.trace_file = fresh_dir("trace") + "/rank0_trace.json.gz";
  ASSERT_TRUE(run_training(spec, rig->inputs(nullptr)).ok());
  const auto trace = nlohmann::json::parse(read_gzip(spec.trace_file));
  std::map<int, std::string> tracks;
  std::map<std::string, int> kernels;
  std::multiset<std::string> starts, finishes;
  for (const auto& e : trace["traceEvents"]) {
    if (e["ph"] == "M" && e["name"] == "thread_name") tracks[e["tid"]] = e["args"]["name"];
    if (e["ph"] == "s") starts.insert(e["id"]);
    if (e["ph"] == "f") finishes.insert(e["id"]);
    if (e["ph"] == "X" && tracks[e["tid"]] == "rank 0 lane 0") {
      ++kernels[e["name"]];
      EXPECT_LE(e["args"]["step"], 2);
      EXPECT_GE(e["dur"], 0.0);
    }
  }
  for (const char* actor : {"coordinator", "worker", "pool", "feeder"}) {
    EXPECT_TRUE(std::any_of(tracks.begin(), tracks.end(), [&](const auto& t) {
      return t.second == actor;
    })) << actor;
  }
  const graph::RankProgram& program = rig->plan.programs[0];
  for (const graph::Launch& l : program.launches) {
    const bool once = l.phase == graph::Phase::kReduce || l.phase == graph::Phase::kUpdate;
    EXPECT_EQ(kernels[l.name], 2 * (once ? 1 : program.num_micro_batches)) << l.name;
  }
  EXPECT_GT(starts.size(), 2 * program.lanes[0].order.size());
  for (const std::string& id : finishes) EXPECT_TRUE(starts.contains(id)) << id;
}

}  // namespace
}  // namespace sgactor::actors
