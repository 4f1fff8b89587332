#pragma once
#include "actors/protocol/interfaces.h"
#include "actors/runtime/gateway.h"

#include <caf/actor_system.hpp>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

namespace sgactor::actors {

/// What a worker's process and the proxy in it share. Thread-safe.
class Voice {
 public:
  /// Nothing is said to the coordinator: it is gone, or does not know yet who this process is.
  void hush() { hushed_ = true; }
  void speak() { hushed_ = false; }
  [[nodiscard]] bool hushed() const { return hushed_; }
  /// The first failure that nobody may have heard of; ok if there was none.
  [[nodiscard]] Status failure() const {
    const std::lock_guard lock(mutex_);
    return failure_;
  }
  void note_failure(const Status& status) {
    const std::lock_guard lock(mutex_);
    if (failure_.ok()) failure_ = status;
  }

 private:
  std::atomic<bool> hushed_{false};
  mutable std::mutex mutex_;
  Status failure_;
};

/// As spawn_coordinator_proxy, for a worker that outlives its coordinator: the loss of the link
/// ends nothing, what the worker says meanwhile is dropped (it is said again on Resume), and
/// whoever owns the process binds both to the gateway again (BindCoordinator) once another
/// coordinator has taken it. Ends by an exit message of anybody but the gateway.
CoordinatorActor spawn_standing_proxy(
    caf::actor_system& system, const GatewayActor& gateway,
    std::function<WorkerActor(caf::local_actor* parent, const CoordinatorActor& coordinator)>
        spawn_worker,
    int32_t first_rank, std::shared_ptr<Voice> voice);

}  // namespace sgactor::actors
