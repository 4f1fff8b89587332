#include "actors/runtime/members.h"

namespace sgactor::actors {

std::shared_ptr<ProgramHost> create_host(ProgramId id, ProgramSetup setup, const Services& services,
                                         std::shared_ptr<RunShared> shared,
                                         std::vector<int32_t> lane_tracks) {
  auto host = std::make_shared<ProgramHost>();
  host->id = id;
  host->setup = std::move(setup);
  host->services = services;
  host->shared = std::move(shared);
  host->lane_tracks = std::move(lane_tracks);
  const ProgramContext& context = host->context();
  const auto sink = [&](std::string_view name) {
    return std::make_unique<ActorSink>(context.lanes, host->shared, host->lane_tracks, name);
  };
  for (const graph::Launch& l : context.program->launches) host->sinks.push_back(sink(l.name));
  host->feeder_sink = sink("feed");
  host->worker_sink = sink("step");
  return host;
}

void release_receivers(ProgramHost& host) {
  for (const auto& sink : host.sinks) sink->set_receiver(LauncherActor());
  host.feeder_sink->set_receiver(LauncherActor());
  host.worker_sink->set_receiver(LauncherActor());
}

}  // namespace sgactor::actors
