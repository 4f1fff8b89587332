#include "supervision/recovery/placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

namespace sgactor::supervision {
namespace {

NodeId choose_mirror(const World& world, NodeId home) {
  NodeId best = kNone;
  int32_t best_count = 0;
  for (const NodeId node : world.nodes) {
    if (node == home) continue;
    int32_t count = 0;
    for (const RankPlace& p : world.ranks) count += p.mirror == node ? 1 : 0;
    if (best == kNone || count < best_count) {
      best = node;
      best_count = count;
    }
  }
  // With one node left its process still outlives a worker.
  return best != kNone ? best : (world.has_node(home) ? home : kNone);
}

void place_mirror(World& world, RankPlace& place) {
  if (!world.has_node(place.source)) place.source = kNone;
  const Member* host = world.find(place.worker);
  const NodeId home = host != nullptr ? host->node : kNone;
  const bool alive = world.has_node(place.mirror);
  const bool apart = place.mirror != home || world.nodes.size() < 2;
  if (alive && apart) return;
  // The old mirror may be whole already: better than nobody.
  if (place.source == kNone && alive) place.source = place.mirror;
  place.mirror = kNone;
  place.mirror = choose_mirror(world, home);
}

/// Nearest spare, else the least loaded worker with room; kNone if there is none.
WorkerId choose_worker(const World& world, const Member* old, const PlacementOptions& options) {
  const Member* best = nullptr;
  std::tuple<int32_t, int32_t, WorkerId> best_cost;
  for (const Member& m : world.workers) {
    const int32_t hosted = world.num_hosted(m.worker);
    if (hosted >= options.max_ranks_per_worker) continue;
    if (old != nullptr && !options.allow_inexact && m.fingerprint != old->fingerprint) continue;
    const int32_t distance = old != nullptr && m.node == old->node ? 0 : 1;
    const std::tuple cost(hosted, distance, m.worker);
    if (best == nullptr || cost < best_cost) {
      best = &m;
      best_cost = cost;
    }
  }
  return best != nullptr ? best->worker : kNone;
}

}  // namespace

Result<World> initial_world(int32_t num_ranks, std::vector<NodeId> nodes,
                            std::vector<Member> workers, const PlacementOptions& options) {
  World world;
  world.generation = 1;
  world.nodes = std::move(nodes);
  world.workers = std::move(workers);
  const auto num_workers = static_cast<int64_t>(world.workers.size());
  if (num_workers * options.max_ranks_per_worker < num_ranks) {
    return make_status(Code::kOverloaded,
                       fmt::format("{} ranks do not fit {} workers", num_ranks, num_workers),
                       Scope::kJob);
  }
  const int64_t hosts = std::min<int64_t>(num_workers, num_ranks);
  for (int32_t r = 0; r < num_ranks; ++r) {
    RankPlace place;
    place.worker = world.workers[static_cast<size_t>(r * hosts / num_ranks)].worker;
    place_mirror(world, place);
    world.ranks.push_back(place);
  }
  return world;
}

Result<World> replace_members(const World& before, std::vector<NodeId> nodes,
                              std::vector<Member> workers, const PlacementOptions& options) {
  World world = before;
  world.generation = before.generation + 1;
  world.nodes = std::move(nodes);
  world.workers = std::move(workers);
  for (size_t r = 0; r < world.ranks.size(); ++r) {
    RankPlace& place = world.ranks[r];
    if (world.find(place.worker) != nullptr) continue;
    place.worker = kNone;
    const WorkerId next = choose_worker(world, before.find(before.ranks[r].worker), options);
    if (next == kNone) {
      return make_status(
          Code::kOverloaded,
          fmt::format("no worker of {} has room for rank {}", world.workers.size(), r),
          Scope::kJob);
    }
    place.worker = next;
    ++place.incarnation;
  }
  for (RankPlace& place : world.ranks) place_mirror(world, place);
  return world;
}

World rebalance(const World& before, const PlacementOptions& options) {
  World world = before;
  bool moved = false;
  for (;;) {
    const Member* full = nullptr;
    const Member* room = nullptr;
    for (const Member& m : world.workers) {
      const int32_t n = world.num_hosted(m.worker);
      if (full == nullptr || n > world.num_hosted(full->worker)) full = &m;
      if (room == nullptr || n < world.num_hosted(room->worker)) room = &m;
    }
    if (full == nullptr || world.num_hosted(full->worker) < world.num_hosted(room->worker) + 2)
      break;
    if (!options.allow_inexact && full->fingerprint != room->fingerprint) break;
    RankPlace* mover = nullptr;
    for (RankPlace& p : world.ranks) {
      if (p.worker == full->worker && world.has_node(p.source)) mover = &p;
    }
    if (mover == nullptr) break;
    mover->worker = room->worker;
    ++mover->incarnation;
    moved = true;
  }
  if (!moved) return before;
  world.generation = before.generation + 1;
  for (RankPlace& place : world.ranks) place_mirror(world, place);
  return world;
}

}  // namespace sgactor::supervision
