#include "actors/runtime/training.h"

#include "actors/runtime/training_system.h"

#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>
#include <caf/atom.hpp>

#include <future>

namespace sgactor::actors {
namespace {

/// Scheduler for one worker: sharing idles without waking, and no actor keeps a thread for long.
class RunConfig : public caf::actor_system_config {
 public:
  explicit RunConfig(int32_t num_threads) {
    set("scheduler.policy", caf::atom("sharing"));
    set("scheduler.max-threads", static_cast<size_t>(num_threads));
    set("scheduler.max-throughput", size_t{64});
  }
};

struct ServiceSet {
  explicit ServiceSet(bool host_visible)
      : data(create_thread_service("sga-data")),
        // A read of a few bytes of host memory does not block.
        device(host_visible ? create_inline_service() : create_thread_service("sga-device")),
        storage(create_thread_service("sga-storage")) {}
  std::unique_ptr<BlockingService> data, device, storage, journal;

  [[nodiscard]] Services view() const {
    return {data.get(), device.get(), storage.get(), journal.get()};
  }
  /// Waits for what is under way.
  void finish() {
    for (auto* service : {&data, &device, &storage, &journal}) service->reset();
  }
};

RunOutcome run_actors(RunAssembly& assembly, ServiceSet& services, int32_t num_threads,
                      const std::function<void(WorkerAssembly*)>& on_running) {
  std::promise<RunOutcome> promise;
  std::future<RunOutcome> outcome = promise.get_future();
  assembly.host()->on_finished = [&promise](const RunOutcome& o) { promise.set_value(o); };
  RunConfig config(num_threads);
  caf::actor_system system(config);
  // Held until the end: a worker that dies lets go of the coordinator before it tells it so, and an
  // actor that nobody refers to is gone.
  if (on_running) on_running(&assembly.worker());
  const CoordinatorActor coordinator = spawn_coordinator(system, assembly.host());
  RunOutcome out = outcome.get();
  system.await_all_actors_done();
  if (on_running) on_running(nullptr);
  // Jobs and sinks hold actors, which must not outlive their system.
  services.finish();
  assembly.close();
  return out;
}

}  // namespace

Result<TrainingSummary> run_training(const TrainingSpec& spec, const TrainingInputs& inputs) {
  if (inputs.backend == nullptr) return invalid_argument("a run needs a backend");
  ServiceSet services(inputs.backend->host_visible());
  std::shared_ptr<Journal> journal = create_memory_journal();
  if (spec.journal_file.empty()) {
    services.journal = create_inline_service();
  } else {
    SGA_ASSIGN(journal, open_journal(spec.journal_file));
    services.journal = create_thread_service("sga-journal");
  }
  SGA_ASSIGN(const std::unique_ptr<RunAssembly> assembly,
             RunAssembly::create(spec, inputs, services.view(), std::move(journal)));
  const RunOutcome outcome =
      run_actors(*assembly, services, spec.scheduler_threads, inputs.on_running);
  Status trace;
  if (!spec.trace_file.empty()) trace = assembly->shared().tracer.write(spec.trace_file, 0);
  SGA_TRY(outcome.status);
  SGA_TRY(trace);
  return summarize(assembly->shared(), outcome, *inputs.backend);
}

}  // namespace sgactor::actors
