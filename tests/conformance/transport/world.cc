#include "tests/conformance/transport/world.h"

#include "transport/ucx/process_fabric.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace sgactor::transport {

void Waiter::on_transfer(uint64_t token, const Status& status) noexcept {
  const std::lock_guard lock(mutex_);
  completions_.emplace_back(token, status);
  changed_.notify_all();
}

bool Waiter::wait(size_t count) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::seconds(kDeadlineS),
                           [&] { return completions_.size() >= count; });
}

Status Waiter::first_error() {
  const std::lock_guard lock(mutex_);
  for (const auto& [token, status] : completions_) {
    if (!status.ok()) return status;
  }
  return {};
}

std::vector<std::pair<uint64_t, Status>> Waiter::completions() {
  const std::lock_guard lock(mutex_);
  return completions_;
}

namespace {

FabricKind inproc_kind() {
  return {"inproc",
          [](const std::shared_ptr<InprocNetwork>& network, PeerId self,
             FabricOptions options) -> Result<std::unique_ptr<Fabric>> {
            SGA_ASSIGN(auto fabric, InprocFabric::create(network, self, std::move(options)));
            return std::unique_ptr<Fabric>(std::move(fabric));
          }};
}

FabricKind process_kind(std::string name, bool shared_memory, std::string tcp,
                        std::optional<UcxOptions> ucx) {
  return {std::move(name),
          [shared_memory, tcp, ucx](const std::shared_ptr<InprocNetwork>& /*network*/, PeerId self,
                                    FabricOptions options) -> Result<std::unique_ptr<Fabric>> {
            ProcessFabricOptions o;
            o.fabric = std::move(options);
            o.shared_memory = shared_memory;
            o.tcp = tcp;
            o.ucx = ucx;
            SGA_ASSIGN(auto fabric, ProcessFabric::create(self, std::move(o)));
            return std::unique_ptr<Fabric>(std::move(fabric));
          }};
}

}  // namespace

const std::vector<FabricKind>& fabric_kinds() {
  static const std::vector<FabricKind> kinds = {inproc_kind(), process_kind("shm", true, "", {}),
                                                process_kind("tcp", false, "127.0.0.1:0", {}),
                                                process_kind("ucx_tcp", false, "", UcxOptions())};
  return kinds;
}

World::World(const FabricKind& kind, std::vector<PeerId> rank_to_peer, FabricOptions options,
             CollectivesOptions collectives)
    : rank_to_peer_(std::move(rank_to_peer)) {
  options.keyed_hash = &hash_;
  options.secret.fill(std::byte{7});
  const PeerId num_peers = *std::max_element(rank_to_peer_.begin(), rank_to_peer_.end()) + 1;
  for (PeerId p = 0; p < num_peers; ++p) {
    auto fabric = kind.create(network_, p, options);
    if (!fabric.ok()) {
      ADD_FAILURE() << fabric.status().to_string();
      std::abort();
    }
    fabrics_.push_back(std::move(fabric).value());
    collectives_.push_back(std::make_unique<Collectives>(*fabrics_.back(), collectives));
  }
  Waiter connected;
  for (PeerId a = 0; a < num_peers; ++a) {
    for (PeerId b = 0; b < num_peers; ++b) {
      fabrics_[a]->connect(b, fabrics_[b]->address(),
                           [&connected](const Status& s) { connected.on_transfer(0, s); });
    }
  }
  EXPECT_TRUE(connected.wait(static_cast<size_t>(num_peers) * num_peers));
  EXPECT_TRUE(connected.first_error().ok()) << connected.first_error().to_string();
  set_routes(1);
}

World::~World() {
  for (PeerId p = 0; p < fabrics_.size(); ++p) kill(p);
}

void World::kill(PeerId peer) {
  collectives_[peer].reset();
  fabrics_[peer].reset();
}

void World::set_routes(Generation generation) {
  RouteTable routes;
  routes.generation = generation;
  for (size_t rank = 0; rank < rank_to_peer_.size(); ++rank) {
    routes.peer_of_rank[static_cast<int32_t>(rank)] = rank_to_peer_[rank];
  }
  for (auto& collectives : collectives_) {
    if (collectives) collectives->set_routes(routes);
  }
}

void World::inside(PeerId peer, std::function<void()> task) {
  std::promise<void> done;
  fabrics_[peer]->progress().post([&] {
    task();
    done.set_value();
  });
  done.get_future().wait();
}

}  // namespace sgactor::transport
