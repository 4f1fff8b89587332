#include "transport/collectives/collectives.h"

#include "transport/collectives/engine.h"
#include "transport/collectives/reduce.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace sgactor::transport {
namespace {

// Schedules of more shapes than this are built again when they come back.
constexpr size_t kMaxSchedules = 1024;
constexpr uint64_t kStepBits = 32;

Status cancelled(const char* why) { return make_status(Code::kCancelled, why); }

size_t index_of(int64_t i) { return static_cast<size_t>(i); }

}  // namespace

// The public face: everything becomes a task of the progress thread.

Collectives::Collectives(Fabric& fabric, const CollectivesOptions& options)
    : engine_(std::make_shared<Engine>(fabric, options)) {
  fabric.add_peer_lost([engine = std::weak_ptr<Engine>(engine_)](PeerId peer, const Status& why) {
    if (const auto e = engine.lock()) e->peer_lost(peer, why);
  });
}

Collectives::~Collectives() {
  abort(~Generation{0}, make_status(Code::kCancelled, "the collectives are closed"));
}

void Collectives::set_routes(RouteTable routes) {
  engine_->fabric().progress().post(
      [engine = engine_, routes = std::move(routes)]() mutable { engine->set_routes(routes); });
}

void Collectives::start(CollectiveRequest request, uint64_t token, kernels::CompletionSink& sink) {
  engine_->added();
  engine_->fabric().progress().post(
      [engine = engine_, request = std::move(request), token, &sink]() mutable {
        engine->start(std::move(request), token, sink);
      });
}

void Collectives::abort(Generation generation, const Status& why) {
  engine_->fabric().progress().post([engine = engine_, generation, message = why.message()] {
    engine->abort(generation, make_status(Code::kCancelled, message));
  });
}

void Collectives::abort_peer(PeerId peer, const Status& why) {
  engine_->fabric().progress().post([engine = engine_, peer, message = why.message()] {
    const Status status = make_status(Code::kDisconnected, message);
    engine->peer_lost(peer, status);
    engine->fabric().abort_peer(peer, status);
  });
}

int64_t Collectives::num_pending() const { return engine_->num_pending(); }

// The engine.

void Collectives::Engine::set_routes(RouteTable routes) {
  if (has_routes_ && routes.generation <= routes_.generation) return;
  // First the old ones end, while the routes that they were posted by still stand.
  if (routes.generation > 0) abort(routes.generation - 1, cancelled("a later generation"));
  has_routes_ = true;
  routes_ = std::move(routes);
  fabric_.fence(routes_.generation);
}

void Collectives::Engine::abort(Generation up_to, const Status& why) {
  first_open_ = std::max(first_open_, up_to == ~Generation{0} ? up_to : up_to + 1);
  for (size_t slot = 0; slot < active_.size(); ++slot) {
    if (active_[slot] && active_[slot]->request.generation < first_open_) fail(slot, why);
  }
}

void Collectives::Engine::peer_lost(PeerId peer, const Status& why) {
  for (size_t slot = 0; slot < active_.size(); ++slot) {
    if (!active_[slot]) continue;
    const Active& active = *active_[slot];
    const auto num_members = static_cast<int32_t>(active.request.group.size());
    for (int32_t member = 0; member < num_members; ++member) {
      if (peer_of(active, member) != peer) continue;
      fail(slot, why);
      break;
    }
  }
}

Status Collectives::Engine::check(const CollectiveRequest& request) const {
  if (request.generation < first_open_) return cancelled("a generation that is over");
  if (!has_routes_ || request.generation != routes_.generation) {
    return invalid_argument(
        fmt::format("a collective of generation {} without its routes", request.generation));
  }
  for (const int32_t rank : request.group) {
    if (routes_.find(rank) == nullptr) {
      return invalid_argument(fmt::format("a collective with rank {}, which has no route", rank));
    }
  }
  return {};
}

Result<std::shared_ptr<const Schedule>> Collectives::Engine::schedule_for(
    const CollectiveRequest& r) {
  ScheduleShape shape;
  shape.kind = r.kind;
  shape.element = r.element;
  shape.algorithm = r.algorithm;
  shape.total = r.total;
  shape.piece = r.piece;
  shape.num_members = static_cast<int32_t>(r.group.size());
  shape.index = r.index;
  shape.root = r.root;
  shape.has_output = r.output != nullptr;
  const auto found = schedules_.find(shape.key());
  if (found != schedules_.end()) return found->second;
  SGA_TRY(check_shape(shape));
  if (schedules_.size() >= kMaxSchedules) schedules_.clear();
  auto schedule = std::make_shared<const Schedule>(build_schedule(shape, options_));
  schedules_.emplace(shape.key(), schedule);
  return schedule;
}

void Collectives::Engine::take_scratch(Active& active, size_t bytes) {
  if (bytes == 0) return;
  size_t best = scratch_.size();
  for (size_t i = 0; i < scratch_.size(); ++i) {
    if (scratch_[i].used || scratch_[i].bytes < bytes) continue;
    if (best == scratch_.size() || scratch_[i].bytes < scratch_[best].bytes) best = i;
  }
  if (best == scratch_.size()) {
    // A block that is free but too small is replaced, so that blocks do not pile up.
    const auto small = std::find_if(scratch_.begin(), scratch_.end(),
                                    [](const ScratchBlock& b) { return !b.used; });
    if (small != scratch_.end()) {
      best = static_cast<size_t>(small - scratch_.begin());
    } else {
      scratch_.emplace_back();
    }
    scratch_[best].memory = std::make_unique_for_overwrite<std::byte[]>(bytes + 64);
    scratch_[best].bytes = bytes;
  }
  scratch_[best].used = true;
  active.scratch_block = best + 1;
  const auto raw = reinterpret_cast<uintptr_t>(scratch_[best].memory.get());
  active.scratch = scratch_[best].memory.get() + (64 - raw % 64) % 64;
}

void Collectives::Engine::start(CollectiveRequest request, uint64_t token,
                                kernels::CompletionSink& sink) {
  const auto refuse = [&](const Status& status) {
    num_pending_.fetch_sub(1);
    sink.on_complete(token, status, {});
  };
  if (Status s = check(request); !s.ok()) return refuse(s);
  auto schedule = schedule_for(request);
  if (!schedule.ok()) return refuse(schedule.status());
  size_t slot = active_.size();
  if (free_slots_.empty()) {
    active_.emplace_back();
  } else {
    slot = free_slots_.back();
    free_slots_.pop_back();
  }
  active_[slot] = std::make_unique<Active>();
  Active& active = *active_[slot];
  active.request = std::move(request);
  active.schedule = *schedule;
  active.token = token;
  active.sink = &sink;
  active.start_ns = fabric_.progress().now_ns();
  active.keep_alive = shared_from_this();
  const std::vector<Step>& steps = active.schedule->steps;
  active.steps_left = steps.size();
  active.waits.resize(steps.size());
  active.transfers.resize(steps.size());
  take_scratch(active, index_of(active.schedule->scratch_bytes));
  for (size_t i = 0; i < steps.size(); ++i) {
    active.waits[i] = steps[i].num_waits;
    if (steps[i].num_waits == 0) active.ready.push_back(static_cast<int32_t>(i));
  }
  advance(slot);
}

std::byte* Collectives::Engine::address(const Active& active, Ref ref) const {
  switch (ref.space) {
    case Ref::Space::kInput:
      return const_cast<std::byte*>(active.request.input) + ref.offset;
    case Ref::Space::kOutput:
      return active.request.output + ref.offset;
    case Ref::Space::kScratch:
    case Ref::Space::kMessage:  // has no place of its own
      break;
  }
  return active.scratch + ref.offset;
}

PeerId Collectives::Engine::peer_of(const Active& active, int32_t member) const {
  const PeerId* peer = routes_.find(active.request.group[index_of(member)]);
  return peer == nullptr ? fabric_.self() : *peer;
}

void Collectives::Engine::advance(size_t slot) {
  Active& active = *active_[slot];
  if (active.advancing) return;
  active.advancing = true;
  while (active.failure.ok() && !active.ready.empty()) {
    const int32_t step = active.ready.front();
    active.ready.pop_front();
    run_step(slot, step);
  }
  active.advancing = false;
  finish_if_done(slot);
}

void Collectives::Engine::run_step(size_t slot, int32_t id) {
  Active& active = *active_[slot];
  const Step& step = active.schedule->steps[index_of(id)];
  std::byte* at = address(active, step.at);
  const auto source = [&](int32_t i) {
    return address(active, active.schedule->sources[index_of(step.first_source + i)]);
  };
  switch (step.kind) {
    case Step::Kind::kSend:
    case Step::Kind::kRecv:
    case Step::Kind::kRecvReduce:
      return post(slot, id);
    case Step::Kind::kReduce: {
      constexpr int32_t kFew = 16;
      std::array<const std::byte*, kFew> few;
      std::vector<const std::byte*> many;
      if (step.num_sources > kFew) many.resize(index_of(step.num_sources));
      const std::byte** sources = step.num_sources > kFew ? many.data() : few.data();
      for (int32_t i = 0; i < step.num_sources; ++i) sources[i] = source(i);
      const Element element = active.request.element;
      reduce_in_order(element, active.request.reduction, {sources, index_of(step.num_sources)}, at,
                      step.bytes / element_bytes(element));
      break;
    }
    case Step::Kind::kCopy:
      if (at != source(0)) std::memmove(at, source(0), index_of(step.bytes));
      break;
    case Step::Kind::kZero:
      std::memset(at, 0, index_of(step.bytes));
      break;
    case Step::Kind::kJoin:
      break;
  }
  step_done(active, id);
}

void Collectives::Engine::post(size_t slot, int32_t id) {
  Active& active = *active_[slot];
  const Step& step = active.schedule->steps[index_of(id)];
  const CollectiveRequest& request = active.request;
  const bool is_send = step.kind == Step::Kind::kSend;
  const int32_t mine = request.group[index_of(request.index)];
  const int32_t theirs = request.group[index_of(step.peer)];
  Tag tag;
  tag.key = request.key;
  tag.generation = request.generation;
  tag.source = is_send ? mine : theirs;
  tag.target = is_send ? theirs : mine;
  tag.phase = step.phase;
  Endpoint& endpoint = fabric_.endpoint(peer_of(active, step.peer));
  const uint64_t token = static_cast<uint64_t>(slot) << kStepBits | static_cast<uint32_t>(id);
  std::byte* at = address(active, step.at);
  ++active.under_way;
  TransferId& transfer = active.transfers[index_of(id)];
  if (is_send) {
    transfer = endpoint.post_send(tag, {at, index_of(step.bytes)}, token, *this);
  } else if (step.kind == Step::Kind::kRecv) {
    transfer = endpoint.post_recv(tag, {at, index_of(step.bytes)}, token, *this);
  } else {
    transfer = endpoint.post_recv_to(tag, index_of(step.bytes), token, *this, *this);
  }
}

void Collectives::Engine::on_payload(uint64_t token, size_t offset,
                                     std::span<const std::byte> bytes) noexcept {
  const auto slot = static_cast<size_t>(token >> kStepBits);
  const Active& active = *active_[slot];
  const Step& step = active.schedule->steps[index_of(static_cast<int32_t>(token & 0xFFFFFFFFU))];
  std::array<const std::byte*, ScheduleBuilder::kMaxRecvSources> sources;
  for (int32_t i = 0; i < step.num_sources; ++i) {
    const Ref ref = active.schedule->sources[index_of(step.first_source + i)];
    sources[index_of(i)] =
        ref.space == Ref::Space::kMessage ? bytes.data() : address(active, ref) + offset;
  }
  const Element element = active.request.element;
  reduce_in_order(element, active.request.reduction,
                  std::span(sources).first(index_of(step.num_sources)),
                  address(active, step.at) + offset,
                  static_cast<int64_t>(bytes.size()) / element_bytes(element));
}

void Collectives::Engine::on_transfer(uint64_t token, const Status& status) noexcept {
  const auto slot = static_cast<size_t>(token >> kStepBits);
  const auto step = static_cast<int32_t>(token & 0xFFFFFFFFU);
  Active& active = *active_[slot];
  active.transfers[index_of(step)] = 0;
  --active.under_way;
  if (!status.ok()) {
    fail(slot, status);
    return;
  }
  step_done(active, step);
  advance(slot);
}

void Collectives::Engine::step_done(Active& active, int32_t id) {
  const Step& step = active.schedule->steps[index_of(id)];
  --active.steps_left;
  for (int32_t i = 0; i < step.num_next; ++i) {
    const int32_t next = active.schedule->next[index_of(step.first_next + i)];
    if (--active.waits[index_of(next)] == 0) active.ready.push_back(next);
  }
}

void Collectives::Engine::fail(size_t slot, const Status& why) {
  Active& active = *active_[slot];
  if (active.failure.ok()) {
    active.failure = why;
    for (size_t i = 0; i < active.transfers.size(); ++i) {
      if (active.transfers[i] == 0) continue;
      const Step& step = active.schedule->steps[i];
      fabric_.endpoint(peer_of(active, step.peer)).cancel(active.transfers[i]);
    }
  }
  finish_if_done(slot);
}

void Collectives::Engine::finish_if_done(size_t slot) {
  Active& active = *active_[slot];
  if (active.advancing || active.under_way > 0) return;
  if (active.failure.ok() && active.steps_left > 0) return;
  if (active.scratch_block > 0) scratch_[active.scratch_block - 1].used = false;
  const std::unique_ptr<Active> ended = std::move(active_[slot]);
  free_slots_.push_back(slot);
  num_pending_.fetch_sub(1);
  ended->sink->on_complete(ended->token, ended->failure,
                           {ended->start_ns, fabric_.progress().now_ns()});
}

}  // namespace sgactor::transport
