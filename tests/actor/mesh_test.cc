// Plans for several logical ranks, in one process and in several, against the same plans run in
// lock step without actors: equal bit for bit.
#include "actors/runtime/snapshot.h"
#include "actors/runtime/training_system.h"
#include "tests/actor/faulty_backend.h"
#include "tests/actor/training_rig.h"

#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <future>

namespace sgactor::actors {
namespace {

using testing_support::bits;
using testing_support::FaultyBackend;
using testing_support::grad_norms;
using testing_support::HiddenBackend;
using testing_support::losses;
using testing_support::RecordingObserver;
using testing_support::TrainingRig;

TrainingRig::Options mesh_options(graph::MeshShape mesh, int32_t zero_stage,
                                  int32_t num_micro_batches) {
  TrainingRig::Options options;
  options.backend = "cpu";
  options.mesh = mesh;
  options.zero_stage = zero_stage;
  options.num_micro_batches = num_micro_batches;
  return options;
}

std::string fresh_root(const std::string& name) {
  const std::string dir = testing::TempDir() + "/sga_mesh_" + name;
  std::filesystem::remove_all(dir);
  return dir + "/ckpt";
}

/// Every parameter and moment of the checkpoint, whole, has the executor's bits.
void expect_state(const std::string& path, const TrainingRig& rig,
                  const testing_support::MeshExecutor& mesh) {
  ASSERT_TRUE(transport::verify_checkpoint(path).ok());
  const auto checkpoint = transport::Checkpoint::open(path);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().to_string();
  EXPECT_EQ((*checkpoint)->info().tensors.size(), rig.state_buffers().size());
  for (const graph::Buffer& b : rig.state_buffers()) {
    const auto expected = mesh.state(b.name);
    ASSERT_TRUE(expected.ok()) << expected.status().to_string();
    std::vector<float> loaded(expected->size());
    const Status status =
        (*checkpoint)->load(b.name, whole_type(b), std::as_writable_bytes(std::span(loaded)));
    ASSERT_TRUE(status.ok()) << status.to_string();
    EXPECT_EQ(bits(loaded), bits(*expected)) << b.name;
  }
}

struct MeshCase {
  const char* name;
  graph::MeshShape mesh;  // pp, dp, tp
  int32_t zero_stage = 0;
  int32_t num_micro_batches = 2;
  graph::PipelineSchedule pipeline = graph::PipelineSchedule::k1F1B;
};
void PrintTo(const MeshCase& c, std::ostream* out) { *out << c.name; }

class MeshRun : public testing::TestWithParam<MeshCase> {};
INSTANTIATE_TEST_SUITE_P(
    Meshes, MeshRun,
    testing::Values(MeshCase{"dp4", {1, 4, 1}}, MeshCase{"dp3", {1, 3, 1}},
                    MeshCase{"dp2z1", {1, 2, 1}, 1}, MeshCase{"dp2z2", {1, 2, 1}, 2, 1},
                    MeshCase{"dp2z3", {1, 2, 1}, 3}, MeshCase{"pp2", {2, 1, 1}, 0, 3},
                    MeshCase{"pp2gpipe", {2, 1, 1}, 0, 3, graph::PipelineSchedule::kGPipe},
                    MeshCase{"dp2pp2z1", {2, 2, 1}, 1}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_P(MeshRun, OneProcessEqualsThePlanWithoutActors) {
  const MeshCase& c = GetParam();
  TrainingRig::Options options = mesh_options(c.mesh, c.zero_stage, c.num_micro_batches);
  options.pipeline = c.pipeline;
  const auto rig = TrainingRig::create(options);
  ASSERT_TRUE(rig.ok()) << rig.status().to_string();
  const auto expected = (*rig)->run_without_actors(4);
  ASSERT_TRUE(expected.ok()) << expected.status().to_string();
  TrainingSpec spec;
  spec.last_step = 4;
  spec.checkpoint_root = fresh_root(c.name);
  spec.checkpoint_interval = 2;
  RecordingObserver observer;
  const auto summary = run_training(spec, (*rig)->inputs(&observer));
  ASSERT_TRUE(summary.ok()) << summary.status().to_string();
  EXPECT_EQ(bits(losses(observer.steps)), bits(expected->losses));
  EXPECT_EQ(bits(grad_norms(observer.steps)), bits(expected->grad_norms));
  ASSERT_EQ(observer.checkpoints.size(), 2U);
  expect_state(observer.checkpoints[1].second, **rig, *expected->mesh);
}

TEST(MeshMemory, MemoryThatTheHostDoesNotSeeTravelsThroughTheHosts) {
  const auto rig = TrainingRig::create(mesh_options({1, 2, 1}, 2, 1));
  ASSERT_TRUE(rig.ok()) << rig.status().to_string();
  const auto expected = (*rig)->run_without_actors(3);
  ASSERT_TRUE(expected.ok()) << expected.status().to_string();
  HiddenBackend hidden(*(*rig)->backend);
  TrainingSpec spec;
  spec.last_step = 3;
  RecordingObserver observer;
  TrainingInputs inputs = (*rig)->inputs(&observer);
  inputs.backend = &hidden;
  const auto summary = run_training(spec, inputs);
  ASSERT_TRUE(summary.ok()) << summary.status().to_string();
  EXPECT_EQ(bits(losses(observer.steps)), bits(expected->losses));
}

/// Runs with a worker for each process of the rig, all under one coordinator.
Result<RunOutcome> run_workers(const TrainingRig& rig, const TrainingSpec& spec,
                               TrainingObserver* observer,
                               const std::vector<kernels::Backend*>& backends) {
  const auto data = create_thread_service("data");
  const auto storage = create_thread_service("storage");
  const auto inlined = create_inline_service();
  const Services services{data.get(), inlined.get(), storage.get(), inlined.get()};
  const auto shared = std::make_shared<RunShared>();
  TrainingInputs inputs = rig.inputs(observer);
  SGA_ASSIGN(const auto host,
             create_coordinator_host(spec, inputs, services, create_memory_journal(), shared));
  std::vector<std::unique_ptr<WorkerAssembly>> workers;
  const int32_t n = rig.options.num_processes;
  for (int32_t p = 0; p < n; ++p) {
    std::vector<int32_t> ranks;
    for (int32_t r = p; r < host->num_ranks(); r += n) ranks.push_back(r);
    inputs.backend = backends[static_cast<size_t>(p)];
    inputs.collectives = rig.collectives[static_cast<size_t>(p)].get();
    SGA_ASSIGN(auto worker, WorkerAssembly::create(spec, inputs, ranks, services));
    host->workers.push_back(
        [h = worker->host()](caf::local_actor* parent, const CoordinatorActor& coordinator) {
          return spawn_worker(parent, h, coordinator);
        });
    workers.push_back(std::move(worker));
  }
  std::promise<RunOutcome> promise;
  host->on_finished = [&promise](const RunOutcome& o) { promise.set_value(o); };
  caf::actor_system_config config;
  config.set("scheduler.max-threads", size_t{2});
  caf::actor_system system(config);
  const CoordinatorActor coordinator = spawn_coordinator(system, host);
  RunOutcome outcome = promise.get_future().get();
  system.await_all_actors_done();
  for (const auto& worker : workers) worker->close();
  return outcome;
}

TEST(MeshWorkers, SeveralProcessesEqualThePlanWithoutActors) {
  TrainingRig::Options options = mesh_options({1, 4, 1}, 3, 1);
  options.num_processes = 2;
  const auto rig = TrainingRig::create(options);
  ASSERT_TRUE(rig.ok()) << rig.status().to_string();
  const auto expected = (*rig)->run_without_actors(3);
  ASSERT_TRUE(expected.ok()) << expected.status().to_string();
  TrainingSpec spec;
  spec.last_step = 3;
  spec.checkpoint_root = fresh_root("workers");
  RecordingObserver observer;
  const std::vector<kernels::Backend*> backends(2, (*rig)->backend.get());
  const auto outcome = run_workers(**rig, spec, &observer, backends);
  ASSERT_TRUE(outcome.ok()) << outcome.status().to_string();
  ASSERT_TRUE(outcome->status.ok()) << outcome->status.to_string();
  EXPECT_EQ(bits(losses(observer.steps)), bits(expected->losses));
  EXPECT_EQ(bits(grad_norms(observer.steps)), bits(expected->grad_norms));
  ASSERT_EQ(observer.checkpoints.size(), 1U);
  expect_state(observer.checkpoints[0].second, **rig, *expected->mesh);
}

/// The ranks of a worker that lives wait for those of the one that broke: nobody hangs.
TEST(MeshWorkers, AFaultOfOneEndsTheRunForAll) {
  TrainingRig::Options options = mesh_options({1, 2, 1}, 0, 1);
  options.num_processes = 2;
  const auto rig = TrainingRig::create(options);
  ASSERT_TRUE(rig.ok()) << rig.status().to_string();
  TrainingSpec spec;
  spec.last_step = 5;
  for (const int64_t at : {2, 9, 17}) {
    FaultyBackend faulty(*(*rig)->backend, at);
    const auto fresh = TrainingRig::create(options);  // aborted collectives serve no second run
    ASSERT_TRUE(fresh.ok());
    RecordingObserver observer;
    const auto outcome = run_workers(**fresh, spec, &observer, {(*rig)->backend.get(), &faulty});
    ASSERT_TRUE(outcome.ok()) << outcome.status().to_string();
    EXPECT_EQ(outcome->status.code(), Code::kDeviceFault) << outcome->status.to_string();
    EXPECT_EQ(outcome->status.origin().rank, 1);
  }
}

/// A checkpoint of one mesh goes on with another: the same steps as without the break.
TEST(MeshCheckpoint, LoadsOnAnotherMesh) {
  const auto sharded = TrainingRig::create(mesh_options({1, 2, 1}, 3, 1));
  const auto plain = TrainingRig::create(mesh_options({1, 2, 1}, 0, 1));
  ASSERT_TRUE(sharded.ok() && plain.ok());
  TrainingSpec spec;
  spec.last_step = 4;
  RecordingObserver whole;
  ASSERT_TRUE(run_training(spec, (*plain)->inputs(&whole)).ok());
  spec.last_step = 2;
  spec.checkpoint_root = fresh_root("another");
  RecordingObserver first;
  ASSERT_TRUE(run_training(spec, (*sharded)->inputs(&first)).ok());
  ASSERT_EQ(first.checkpoints.size(), 1U);
  const auto checkpoint = transport::Checkpoint::open(first.checkpoints[0].second);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().to_string();
  const auto again = TrainingRig::create(mesh_options({1, 2, 1}, 0, 1));
  ASSERT_TRUE(again.ok());
  spec.first_step = 3;
  spec.last_step = 4;
  spec.checkpoint_root.clear();
  TrainingInputs inputs = (*again)->inputs(nullptr);
  inputs.initial_state = checkpoint->get();
  RecordingObserver rest;
  inputs.observer = &rest;
  const auto summary = run_training(spec, inputs);
  ASSERT_TRUE(summary.ok()) << summary.status().to_string();
  std::vector<float> joined = losses(first.steps);
  for (float l : losses(rest.steps)) joined.push_back(l);
  EXPECT_EQ(bits(joined), bits(losses(whole.steps)));
}

}  // namespace
}  // namespace sgactor::actors
