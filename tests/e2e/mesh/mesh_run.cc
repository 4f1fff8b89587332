#include "tests/e2e/mesh/mesh_run.h"

#include "actors/runtime/program_context.h"
#include "actors/runtime/services.h"
#include "actors/runtime/training_system.h"
#include "transport/inproc/inproc_fabric.h"

#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>

#include <atomic>
#include <future>

namespace sgactor::tests {
namespace {

Status connect_all(const std::vector<std::unique_ptr<transport::Fabric>>& fabrics) {
  std::atomic<size_t> num_answers{0};
  std::atomic<bool> failed{false};
  for (const auto& from : fabrics) {
    for (const auto& to : fabrics) {
      if (from == to) continue;
      from->connect(to->self(), to->address(), [&](const Status& status) {
        if (!status.ok()) failed = true;
        ++num_answers;
        num_answers.notify_all();
      });
    }
  }
  const size_t num_asked = fabrics.size() * (fabrics.size() - 1);
  for (size_t n = num_answers; n < num_asked; n = num_answers) num_answers.wait(n);
  return failed ? internal_error("fabrics of one process did not connect") : Status();
}

Held held_by(const actors::ProgramContext& context) {
  Held out;
  out.arena_bytes = context.arena->bytes();
  for (const actors::TensorPlace& place : context.state) {
    const bool parameter = context.buffer(place.buffer).kind == graph::BufferKind::kParameter;
    (parameter ? out.parameter_bytes : out.moment_bytes) += place.bytes;
  }
  for (const graph::Buffer& buffer : context.program->buffers) {
    if (buffer.kind == graph::BufferKind::kAccumulator) out.accumulator_bytes += buffer.bytes;
  }
  return out;
}

}  // namespace

Result<std::unique_ptr<Links>> Links::create(int32_t num_ranks, int32_t num_workers,
                                             const std::vector<transport::FaultScript>& faults) {
  std::unique_ptr<Links> out(new Links());
  const auto network = std::make_shared<transport::InprocNetwork>();
  transport::RouteTable routes;
  routes.generation = 1;
  for (int32_t r = 0; r < num_ranks; ++r) {
    routes.peer_of_rank[r] = static_cast<transport::PeerId>(r % num_workers);
  }
  for (int32_t w = 0; w < num_workers; ++w) {
    transport::FabricOptions options;
    if (!faults.empty()) options.faults = faults[static_cast<size_t>(w)];
    SGA_ASSIGN(auto fabric, transport::InprocFabric::create(
                                network, static_cast<transport::PeerId>(w), options));
    out->fabrics_.push_back(std::move(fabric));
  }
  SGA_TRY(connect_all(out->fabrics_));
  for (const auto& fabric : out->fabrics_) {
    out->collectives_.push_back(std::make_unique<transport::Collectives>(*fabric));
    out->collectives_.back()->set_routes(routes);
  }
  return out;
}

Result<WorkersRun> run_workers(const actors::TrainingSpec& spec, actors::TrainingInputs inputs,
                               int32_t num_workers, Links& links) {
  const auto data = actors::create_thread_service("data");
  const auto storage = actors::create_thread_service("storage");
  const auto inlined = actors::create_inline_service();
  const actors::Services services{data.get(), inlined.get(), storage.get(), inlined.get()};
  const auto shared = std::make_shared<actors::RunShared>();
  SGA_ASSIGN(const auto host, actors::create_coordinator_host(
                                  spec, inputs, services, actors::create_memory_journal(), shared));
  WorkersRun out;
  out.held.resize(static_cast<size_t>(host->num_ranks()));
  std::vector<std::unique_ptr<actors::WorkerAssembly>> workers;
  for (int32_t w = 0; w < num_workers; ++w) {
    std::vector<int32_t> ranks;
    for (int32_t r = w; r < host->num_ranks(); r += num_workers) ranks.push_back(r);
    inputs.collectives = &links.of(w);
    SGA_ASSIGN(auto worker, actors::WorkerAssembly::create(spec, inputs, ranks, services));
    for (const actors::RankSetup& rank : worker->ranks()) {
      out.held[static_cast<size_t>(rank.rank)] = held_by(*rank.training.context);
    }
    host->workers.push_back([h = worker->host()](caf::local_actor* parent,
                                                 const actors::CoordinatorActor& coordinator) {
      return actors::spawn_worker(parent, h, coordinator);
    });
    workers.push_back(std::move(worker));
  }
  std::promise<actors::RunOutcome> promise;
  host->on_finished = [&promise](const actors::RunOutcome& o) { promise.set_value(o); };
  caf::actor_system_config config;
  config.set("scheduler.max-threads", size_t{2});
  caf::actor_system system(config);
  const actors::CoordinatorActor coordinator = actors::spawn_coordinator(system, host);
  out.outcome = promise.get_future().get();
  system.await_all_actors_done();
  for (const auto& worker : workers) worker->close();
  SGA_TRY(out.outcome.status);
  return out;
}

}  // namespace sgactor::tests
