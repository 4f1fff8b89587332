#include "actors/strategy/blocking_group.h"

#include "graph/base/hash.h"

#include <fmt/format.h>

#include <utility>

namespace sgactor::actors {

using transport::CollectiveKind;
using transport::CollectiveRequest;
using transport::Element;

BlockingGroup::BlockingGroup(transport::Collectives& collectives, std::vector<int32_t> members,
                             int32_t index)
    : collectives_(collectives), members_(std::move(members)), index_(index) {}

void BlockingGroup::open(uint64_t key, transport::Generation generation) {
  key_ = key;
  num_calls_ = 0;
  generation_ = generation;
}

CollectiveRequest BlockingGroup::request(CollectiveKind kind, Element element) {
  CollectiveRequest r;
  r.kind = kind;
  r.element = element;
  r.group = members_;
  r.index = index_;
  r.key = mix64(key_, num_calls_++);
  r.generation = generation_;
  return r;
}

Status BlockingGroup::run(CollectiveRequest request) {
  complete_ = false;  // nobody else looks: no call is under way
  collectives_.start(std::move(request), 0, *this);
  std::unique_lock lock(mutex_);
  done_.wait(lock, [this] { return complete_; });
  return std::exchange(outcome_, Status());
}

void BlockingGroup::on_complete(uint64_t /*token*/, const Status& status,
                                kernels::LaunchTiming /*timing*/) noexcept {
  const std::lock_guard lock(mutex_);
  outcome_ = status;
  complete_ = true;
  done_.notify_all();  // under the lock: the waiter may destroy this once it has it
}

Status BlockingGroup::all_reduce(std::span<float> values) {
  if (values.empty()) return {};
  CollectiveRequest r = request(CollectiveKind::kAllReduce, Element::kF32);
  r.input = reinterpret_cast<const std::byte*>(values.data());
  r.output = reinterpret_cast<std::byte*>(values.data());
  r.total = static_cast<int64_t>(values.size());
  return run(std::move(r));
}

Status BlockingGroup::all_gather(std::span<const std::byte> mine, std::span<std::byte> all) {
  if (all.size() != mine.size() * members_.size()) {
    return invalid_argument(fmt::format("all_gather of {} bytes from each of {} members into {}",
                                        mine.size(), members_.size(), all.size()));
  }
  if (mine.empty()) return {};
  CollectiveRequest r = request(CollectiveKind::kAllGather, Element::kU8);
  r.input = mine.data();
  r.output = all.data();
  r.piece = static_cast<int64_t>(mine.size());
  r.total = static_cast<int64_t>(all.size());
  return run(std::move(r));
}

Status BlockingGroup::broadcast(std::span<float> values, int32_t root) {
  if (root < 0 || root >= size()) {
    return invalid_argument(fmt::format("broadcast from member {} of {}", root, size()));
  }
  if (values.empty()) return {};
  CollectiveRequest r = request(CollectiveKind::kBroadcast, Element::kF32);
  r.input = reinterpret_cast<const std::byte*>(values.data());
  r.output = reinterpret_cast<std::byte*>(values.data());
  r.total = static_cast<int64_t>(values.size());
  r.root = root;
  return run(std::move(r));
}

Status BlockingGroup::barrier() { return run(request(CollectiveKind::kBarrier, Element::kU8)); }

std::vector<int32_t> dp_members(const graph::Plan& plan, int32_t rank) {
  const graph::RankPlacement& at = plan.ranks[static_cast<size_t>(rank)];
  std::vector<int32_t> members;
  for (int32_t dp = 0; dp < plan.mesh.dp; ++dp) {
    members.push_back(graph::rank_at(plan, at.pp, dp, at.tp));
  }
  return members;
}

}  // namespace sgactor::actors
