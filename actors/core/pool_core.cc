#include "actors/core/pool_core.h"

#include "graph/base/units.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace sgactor::actors {

PoolCore::PoolCore(const graph::RankProgram& program, const Schedule& schedule,
                   int64_t align_bytes) {
  std::vector<int32_t> first_slot(program.buffers.size(), -1);
  for (size_t b = 0; b < program.buffers.size(); ++b) {
    const graph::Buffer& buffer = program.buffers[b];
    const int64_t bytes = round_up(buffer.bytes, align_bytes);
    if (graph::is_persistent(buffer.kind)) {
      for (int64_t offset : buffer.offsets) {
        stats_.high_water_bytes = std::max(stats_.high_water_bytes, offset + bytes);
      }
      continue;
    }
    first_slot[b] = num_slots();
    for (int64_t offset : buffer.offsets) slots_.push_back({offset, offset + bytes, {}});
  }
  find_overlaps();
  for (const std::vector<LaneItem>& items : schedule.lanes) {
    LaneQueue& queue = lanes_.emplace_back();
    for (size_t p = 0; p < items.size(); ++p) {
      if (items[p].leases.empty()) continue;
      Want want{static_cast<int32_t>(p), {}};
      for (const SlotRef& ref : items[p].leases) {
        want.slots.push_back(first_slot[static_cast<size_t>(ref.buffer)] + ref.slot);
      }
      queue.wants.push_back(std::move(want));
    }
  }
}

void PoolCore::find_overlaps() {
  std::vector<int32_t> by_begin(slots_.size());
  std::iota(by_begin.begin(), by_begin.end(), 0);
  const auto slot = [this](int32_t i) -> Slot& { return slots_[static_cast<size_t>(i)]; };
  std::sort(by_begin.begin(), by_begin.end(),
            [&](int32_t a, int32_t b) { return slot(a).begin < slot(b).begin; });
  for (size_t i = 0; i < by_begin.size(); ++i) {
    for (size_t j = i + 1; j < by_begin.size(); ++j) {
      if (slot(by_begin[j]).begin >= slot(by_begin[i]).end) break;
      slot(by_begin[i]).overlaps.push_back(by_begin[j]);
      slot(by_begin[j]).overlaps.push_back(by_begin[i]);
    }
  }
}

Status PoolCore::request(int32_t lane, LanePoint at, std::vector<LeaseGrant>* grants) {
  if (lane < 0 || static_cast<size_t>(lane) >= lanes_.size()) {
    return internal_error(fmt::format("lease asked on lane {}", lane));
  }
  LaneQueue& queue = lanes_[static_cast<size_t>(lane)];
  const auto wanted =
      std::lower_bound(queue.wants.begin(), queue.wants.end(), at.position,
                       [](const Want& w, int32_t position) { return w.position < position; });
  if (wanted == queue.wants.end() || wanted->position != at.position) {
    return internal_error(
        fmt::format("lane {} position {} has nothing to lease", lane, at.position));
  }
  if (queue.step < 0) queue.step = at.step;
  const LanePoint head{queue.step, queue.wants[queue.head].position};
  if (at < head || std::find(queue.asked.begin(), queue.asked.end(), at) != queue.asked.end()) {
    return internal_error(
        fmt::format("lane {} step {} position {} asked twice", lane, at.step, at.position));
  }
  queue.asked.push_back(at);
  pump(grants);
  return {};
}

Status PoolCore::release(LeaseId lease, LanePoint last_use, std::vector<LeaseGrant>* grants) {
  if (lease.slot < 0 || lease.slot >= num_slots()) {
    return internal_error(fmt::format("there is no slot {}", lease.slot));
  }
  Slot& slot = slots_[static_cast<size_t>(lease.slot)];
  if (!slot.held || slot.serial != lease.serial) {
    return internal_error(
        fmt::format("slot {}: lease {} came back twice", lease.slot, lease.serial));
  }
  slot.held = false;
  slot.last_use = last_use;
  --stats_.num_held;
  pump(grants);
  return {};
}

void PoolCore::on_progress(int32_t lane, LanePoint at, std::vector<LeaseGrant>* grants) {
  LaneQueue& queue = lanes_[static_cast<size_t>(lane)];
  queue.complete = std::max(queue.complete, at);
  pump(grants);
}

bool PoolCore::may_use(int32_t index, int32_t lane) const {
  const Slot& slot = slots_[static_cast<size_t>(index)];
  if (slot.held) return false;
  if (slot.lane < 0 || slot.lane == lane) return true;
  return lanes_[static_cast<size_t>(slot.lane)].complete >= slot.last_use;
}

bool PoolCore::free_for(const Want& want, int32_t lane) const {
  return std::all_of(want.slots.begin(), want.slots.end(), [&](int32_t s) {
    if (!may_use(s, lane)) return false;
    const std::vector<int32_t>& others = slots_[static_cast<size_t>(s)].overlaps;
    return std::all_of(others.begin(), others.end(), [&](int32_t o) { return may_use(o, lane); });
  });
}

void PoolCore::grant(const Want& want, int32_t lane, LanePoint at,
                     std::vector<LeaseGrant>* grants) {
  LeaseGrant& out = grants->emplace_back();
  out.lane = lane;
  out.at = at;
  for (int32_t s : want.slots) {
    Slot& slot = slots_[static_cast<size_t>(s)];
    slot.held = true;
    slot.lane = lane;
    slot.serial = next_serial_++;
    out.leases.push_back({s, slot.serial});
    stats_.high_water_bytes = std::max(stats_.high_water_bytes, slot.end);
    ++stats_.num_held;
    ++stats_.num_granted;
  }
}

void PoolCore::pump(std::vector<LeaseGrant>* grants) {
  for (size_t lane = 0; lane < lanes_.size(); ++lane) {
    LaneQueue& queue = lanes_[lane];
    const auto number = static_cast<int32_t>(lane);
    while (!queue.asked.empty()) {
      const Want& want = queue.wants[queue.head];
      const LanePoint head{queue.step, want.position};
      const auto asked = std::find(queue.asked.begin(), queue.asked.end(), head);
      if (asked == queue.asked.end() || !free_for(want, number)) break;
      *asked = queue.asked.back();
      queue.asked.pop_back();
      grant(want, number, head, grants);
      if (++queue.head == queue.wants.size()) {
        queue.head = 0;
        ++queue.step;
      }
    }
  }
}

}  // namespace sgactor::actors
