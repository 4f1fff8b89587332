#pragma once
#include "actors/protocol/interfaces.h"
#include "actors/runtime/completion.h"
#include "actors/runtime/rank_setup.h"
#include "actors/runtime/run_shared.h"
#include "actors/runtime/services.h"
#include "actors/runtime/training.h"

#include <memory>
#include <vector>

namespace sgactor::actors {

/// What the actors of one program of one rank are spawned with. Lives until all streams are
/// synchronized.
struct ProgramHost {
  ProgramId id = kTraining;
  int64_t first_step = 1;
  int64_t last_step = 1;
  ProgramSetup setup;
  Services services;
  std::shared_ptr<RunShared> shared;
  std::vector<int32_t> lane_tracks;
  std::vector<std::unique_ptr<ActorSink>> sinks;  ///< one a launch
  std::unique_ptr<ActorSink> feeder_sink;
  std::unique_ptr<ActorSink> worker_sink;

  [[nodiscard]] const ProgramContext& context() const { return *setup.context; }
};
/// Makes the sinks. `lane_tracks` as Tracer::add_track gave them.
std::shared_ptr<ProgramHost> create_host(ProgramId id, ProgramSetup setup, const Services& services,
                                         std::shared_ptr<RunShared> shared,
                                         std::vector<int32_t> lane_tracks);

/// Lets go of the actors the sinks tell. After all streams are synchronized, before the actor
/// system ends.
void release_receivers(ProgramHost& host);

/// Spawn functions. Each actor is linked to `parent` (a worker), so that they end together, and
/// monitored by it, so that its Status is heard. Call from a handler of `parent`.
PoolActor spawn_pool(caf::local_actor* parent, const std::shared_ptr<ProgramHost>& host);
SubgraphActor spawn_subgraph(caf::local_actor* parent, const std::shared_ptr<ProgramHost>& host,
                             graph::LaunchId launch);
FeederActor spawn_feeder(caf::local_actor* parent, const std::shared_ptr<ProgramHost>& host);

/// What a checkpoint writer needs.
struct WriterHost {
  int32_t rank = 0;
  std::string root;
  std::shared_ptr<SnapshotStaging> snapshots;
  Services services;
  std::shared_ptr<RunShared> shared;
  std::unique_ptr<ActorSink> sink;
};
WriterActor spawn_writer(caf::local_actor* parent, const std::shared_ptr<WriterHost>& host,
                         const WorkerActor& worker, const CoordinatorActor& coordinator);

}  // namespace sgactor::actors
