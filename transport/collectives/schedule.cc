#include "transport/collectives/schedule.h"

#include <algorithm>
#include <bit>

namespace sgactor::transport {

int64_t ScheduleShape::piece_length(int32_t i) const {
  return std::clamp<int64_t>(total - i * piece, 0, piece);
}

Chunks::Chunks(const ScheduleShape& shape, const CollectivesOptions& options, int64_t piece) {
  // Large pieces are cut into larger chunks, so that the number of steps stays bounded.
  const int64_t bytes = std::clamp(piece * shape.element_size() / 512, options.chunk_bytes,
                                   std::max<int64_t>(options.chunk_bytes, 4 << 20));
  chunk_elements = std::max<int64_t>(1, bytes / shape.element_size());
}

ScheduleBuilder::StepId ScheduleBuilder::add(Step step, std::initializer_list<StepId> waits) {
  const auto id = static_cast<StepId>(schedule_.steps.size());
  schedule_.steps.push_back(step);
  for (const StepId before : waits) wait(id, before);
  return id;
}

void ScheduleBuilder::wait(StepId step, StepId before) {
  if (before == kNone) return;
  edges_.emplace_back(before, step);
  ++schedule_.steps[static_cast<size_t>(step)].num_waits;
}

ScheduleBuilder::StepId ScheduleBuilder::send(Ref from, int64_t bytes, int32_t peer, uint32_t phase,
                                              std::initializer_list<StepId> waits) {
  return add({.kind = Step::Kind::kSend, .at = from, .bytes = bytes, .peer = peer, .phase = phase},
             waits);
}

ScheduleBuilder::StepId ScheduleBuilder::recv(Ref to, int64_t bytes, int32_t peer, uint32_t phase,
                                              std::initializer_list<StepId> waits) {
  return add({.kind = Step::Kind::kRecv, .at = to, .bytes = bytes, .peer = peer, .phase = phase},
             waits);
}

ScheduleBuilder::StepId ScheduleBuilder::recv_reduce(Ref to, int64_t bytes, int32_t peer,
                                                     uint32_t phase, std::span<const Ref> sources,
                                                     std::initializer_list<StepId> waits) {
  SGA_CHECK(sources.size() <= kMaxRecvSources, "too many sources beside a message");
  const StepId id = reduce(to, bytes, sources, waits);
  Step& step = schedule_.steps[static_cast<size_t>(id)];
  step.kind = Step::Kind::kRecvReduce;
  step.peer = peer;
  step.phase = phase;
  return id;
}

ScheduleBuilder::StepId ScheduleBuilder::reduce(Ref to, int64_t bytes, std::span<const Ref> sources,
                                                std::initializer_list<StepId> waits) {
  Step step{.kind = Step::Kind::kReduce, .at = to, .bytes = bytes};
  step.first_source = static_cast<int32_t>(schedule_.sources.size());
  step.num_sources = static_cast<int32_t>(sources.size());
  schedule_.sources.insert(schedule_.sources.end(), sources.begin(), sources.end());
  return add(step, waits);
}

ScheduleBuilder::StepId ScheduleBuilder::copy(Ref to, Ref from, int64_t bytes,
                                              std::initializer_list<StepId> waits) {
  const StepId id = reduce(to, bytes, {&from, 1}, waits);
  schedule_.steps[static_cast<size_t>(id)].kind = Step::Kind::kCopy;
  return id;
}

ScheduleBuilder::StepId ScheduleBuilder::zero(Ref at, int64_t bytes) {
  return add({.kind = Step::Kind::kZero, .at = at, .bytes = bytes}, {});
}

ScheduleBuilder::StepId ScheduleBuilder::join(std::initializer_list<StepId> waits) {
  return add({.kind = Step::Kind::kJoin}, waits);
}

Ref ScheduleBuilder::scratch(int64_t bytes) {
  const Ref at{Ref::Space::kScratch, schedule_.scratch_bytes};
  schedule_.scratch_bytes += (bytes + 63) / 64 * 64;
  return at;
}

Schedule ScheduleBuilder::finish() {
  std::stable_sort(edges_.begin(), edges_.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [before, step] : edges_) {
    Step& s = schedule_.steps[static_cast<size_t>(before)];
    if (s.num_next++ == 0) s.first_next = static_cast<int32_t>(schedule_.next.size());
    schedule_.next.push_back(step);
  }
  edges_.clear();
  return std::move(schedule_);
}

namespace {

void build_all_reduce(ScheduleBuilder& b) {
  const ScheduleShape& s = b.shape();
  const bool even = std::has_single_bit(static_cast<uint32_t>(s.num_members));
  switch (s.algorithm) {
    case Algorithm::kExact:
      return build_exact_all_reduce(b);
    case Algorithm::kTree:
      return build_tree_all_reduce(b);
    case Algorithm::kHalvingDoubling:
      if (even) return build_halving_doubling_all_reduce(b);
      return build_ring_all_reduce(b);
    case Algorithm::kRing:
      return build_ring_all_reduce(b);
  }
}

void build_point_to_point(ScheduleBuilder& b) {
  const ScheduleShape& s = b.shape();
  const int64_t bytes = s.total * s.element_size();
  if (s.kind == CollectiveKind::kSend) {
    b.send({Ref::Space::kInput, 0}, bytes, s.root, 0, {});
  } else {
    b.recv({Ref::Space::kOutput, 0}, bytes, s.root, 0, {});
  }
}

void build_reduce_scatter(ScheduleBuilder& b) {
  const ScheduleShape& s = b.shape();
  if (s.algorithm == Algorithm::kExact) {
    build_exact_reduce_scatter(b);
  } else {
    build_ring_reduce_scatter(b);
  }
  const int64_t length = s.piece_length(s.index);
  if (length < s.piece) {
    b.zero({Ref::Space::kOutput, length * s.element_size()}, (s.piece - length) * s.element_size());
  }
}

}  // namespace

Schedule build_schedule(const ScheduleShape& shape, const CollectivesOptions& options) {
  ScheduleShape s = shape;
  if (s.kind == CollectiveKind::kAllReduce) {
    s.piece = (s.total + s.num_members - 1) / s.num_members;
  }
  ScheduleBuilder b(s, options);
  switch (s.kind) {
    case CollectiveKind::kAllReduce:
      build_all_reduce(b);
      break;
    case CollectiveKind::kReduceScatter:
      build_reduce_scatter(b);
      break;
    case CollectiveKind::kAllGather:
      if (s.algorithm == Algorithm::kRing) {
        build_ring_all_gather(b);
      } else {
        build_direct_all_gather(b);
      }
      break;
    case CollectiveKind::kBroadcast:
      build_tree_broadcast(b);
      break;
    case CollectiveKind::kAllToAll:
      build_all_to_all(b);
      break;
    case CollectiveKind::kBarrier:
      build_barrier(b);
      break;
    case CollectiveKind::kSend:
    case CollectiveKind::kRecv:
      build_point_to_point(b);
      break;
  }
  return b.finish();
}

Status check_shape(const ScheduleShape& s) {
  constexpr int32_t kMaxMembers = 1 << 16;
  constexpr int64_t kMaxElements = int64_t{1} << 40;
  if (s.num_members < 1 || s.num_members > kMaxMembers || s.index < 0 || s.index >= s.num_members) {
    return invalid_argument("a collective of a member that is not in its group");
  }
  if (s.total < 0 || s.piece < 0 || s.total > kMaxElements || s.piece > kMaxElements) {
    return invalid_argument("a collective of a negative or absurd count");
  }
  const bool has_pieces =
      s.kind == CollectiveKind::kReduceScatter || s.kind == CollectiveKind::kAllGather;
  if (has_pieces && s.total > s.num_members * s.piece) {
    return invalid_argument("a collective whose total exceeds its pieces");
  }
  const bool has_root = s.kind == CollectiveKind::kBroadcast || s.kind == CollectiveKind::kSend ||
                        s.kind == CollectiveKind::kRecv;
  if (has_root && (s.root < 0 || s.root >= s.num_members)) {
    return invalid_argument("a collective whose root is not in its group");
  }
  return {};
}

}  // namespace sgactor::transport
