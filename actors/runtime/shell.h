#pragma once
#include "actors/protocol/interfaces.h"
#include "actors/protocol/status_error.h"
#include "actors/runtime/run_shared.h"
#include "graph/base/hash.h"

#include <caf/all.hpp>
#include <fmt/format.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

namespace sgactor::actors {

/// What every actor shell of this folder is made of: failing, handlers for what is not a message of
/// its interface, counting and tracing.

/// The Status of an exception that escaped a handler.
inline Status status_of(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const std::exception& e) {
    return internal_error(std::string("exception in an actor: ") + e.what());
  } catch (...) {
    return internal_error("exception of unknown type in an actor");
  }
}

/// Fills the fields of the origin that are not known yet.
inline Status at_actor(const Status& status, int32_t rank, const std::string& actor,
                       int64_t step = -1) {
  Origin origin = status.origin();
  if (origin.rank < 0) origin.rank = rank;
  if (origin.actor.empty()) origin.actor = actor;
  if (origin.step < 0) origin.step = step;
  return status.with_origin(std::move(origin));
}

/// Ends the actor with `status`; who watches it hears that.
template <class Self>
void fail(Self* self, const Status& status, int64_t step = -1) {
  self->quit(to_caf(at_actor(status, self->state.rank, self->state.name, step)));
}

/// Exceptions, messages that are in no interface and error messages end the actor with a Status;
/// orders to exit are obeyed. Call first in an actor's function.
template <class Self>
void install_handlers(Self* self) {
  self->set_exception_handler([self](std::exception_ptr& e) -> caf::error {
    return to_caf(at_actor(status_of(e), self->state.rank, self->state.name));
  });
  self->set_default_handler(
      [self](caf::scheduled_actor*, caf::message_view& view) -> caf::result<caf::message> {
        fail(self, internal_error("unexpected message " + view.content().stringify()));
        return caf::sec::unexpected_message;
      });
  self->set_error_handler([self](caf::error& e) { fail(self, from_caf(e)); });
  self->set_exit_handler([self](caf::exit_msg& msg) { self->quit(msg.reason); });
}

/// Counts and, while tracing is on, records an actor's handling of messages. Part of its state.
class Probe {
 public:
  Probe() = default;
  /// `rank`: of whose program the actor is; -1: of none alone.
  Probe(std::shared_ptr<RunShared> shared, const std::string& actor, int32_t rank = -1)
      : shared_(std::move(shared)),
        record_(&shared_->new_record(actor, rank)),
        track_(shared_->tracer.add_track(actor)) {}

  /// Lasts as long as the handler; a slice on the actor's track.
  class Span {
   public:
    Span(const Probe& probe, const caf::local_actor* self, std::string_view name, int64_t step,
         int32_t micro_batch)
        : probe_(probe.shared_->tracer.on() ? &probe : nullptr), self_(self) {
      if (probe_ == nullptr) return;
      name_ = name;
      step_ = step;
      micro_batch_ = micro_batch;
      start_ns_ = now();
    }
    ~Span() {
      if (probe_ == nullptr) return;
      probe_->shared_->tracer.slice(probe_->track_, name_, start_ns_, now(), step_, micro_batch_);
    }
    Span(const Span&) = delete;
    Span& operator=(const Span&) = delete;
    /// The message being handled is the one sent under `id`.
    void received(uint64_t id) const {
      if (probe_ != nullptr) probe_->shared_->tracer.flow_finish(probe_->track_, id, start_ns_);
    }
    /// The handler sends a message; the receiver makes the same id.
    void sent(uint64_t id) const {
      if (probe_ != nullptr) probe_->shared_->tracer.flow_start(probe_->track_, id, now());
    }

   private:
    [[nodiscard]] int64_t now() const {
      return self_->home_system().clock().now().time_since_epoch().count();
    }
    const Probe* probe_;
    const caf::local_actor* self_;
    std::string_view name_;
    int64_t step_ = 0;
    int32_t micro_batch_ = 0;
    int64_t start_ns_ = 0;
  };
  /// Call at the top of each handler. `name` is a literal. Throws where RunShared says so.
  [[nodiscard]] Span handle(const caf::local_actor* self, std::string_view name, int64_t step,
                            int32_t micro_batch = 0) {
    record_->note(name.data(), step, micro_batch);
    if (const auto action = shared_->trap.take(step)) spring(*action);
    return {*this, self, name, step, micro_batch};
  }
  /// Holds the first actor that comes here after RunShared says so.
  void stall_if_told() const {
    if (!shared_->stall_in_actor.load(std::memory_order_relaxed)) return;
    if (!shared_->stalled.exchange(true)) shared_->stall_in_actor.wait(true);
  }
  [[nodiscard]] RunShared& shared() const { return *shared_; }
  [[nodiscard]] const std::shared_ptr<RunShared>& shared_ptr() const { return shared_; }

 private:
  void spring(MessageTrap::Action action) const {
    using Action = MessageTrap::Action;
    if (action == Action::kThrow) throw std::runtime_error("injected");
    if (action == Action::kStall) return shared_->stall_in_actor.store(true);
    ::kill(::getpid(), action == Action::kKill ? SIGKILL : SIGSTOP);
  }

  std::shared_ptr<RunShared> shared_;
  RunShared::ActorRecord* record_ = nullptr;
  int32_t track_ = 0;
};

/// Ids of arrows, from what the message is about.
enum class Arrow : uint64_t { kToken = 1, kHandle, kLease, kBegin, kVote, kCommit, kDone };
inline uint64_t arrow_id(Arrow kind, int64_t rank, int64_t program, int64_t step, int64_t a = 0,
                         int64_t b = 0, int64_t c = 0) {
  uint64_t id = mix64(static_cast<uint64_t>(kind), static_cast<uint64_t>(rank));
  for (int64_t part : {program, step, a, b, c}) id = mix64(id, static_cast<uint64_t>(part));
  return id;
}

}  // namespace sgactor::actors
