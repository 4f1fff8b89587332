#include "actors/core/pool_core.h"

#include "graph/base/units.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

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
    for (int64_t offset : buffer.offsets) {
      Slot& slot = slots_.emplace_back();
      slot.begin = offset;
      slot.end = offset + bytes;
    }
  }
  find_overlaps();
  lanes_.resize(schedule.lanes.size());
  for (size_t lane = 0; lane < lanes_.size(); ++lane) {
    lanes_[lane].channel =
        lane < program.lanes.size() && program.lanes[lane].kind == graph::LaneKind::kCommunication;
  }
  list_wants(schedule, first_slot);
}

void PoolCore::list_wants(const Schedule& schedule, const std::vector<int32_t>& first_slot) {
  std::vector<std::pair<int64_t, Want>> found;  // with LaneItem::order
  for (size_t lane = 0; lane < schedule.lanes.size(); ++lane) {
    const std::vector<LaneItem>& items = schedule.lanes[lane];
    for (size_t p = 0; p < items.size(); ++p) {
      if (items[p].leases.empty()) continue;
      Want want;
      want.lane = static_cast<int32_t>(lane);
      want.position = static_cast<int32_t>(p);
      for (const SlotRef& ref : items[p].leases) {
        want.slots.push_back(first_slot[static_cast<size_t>(ref.buffer)] + ref.slot);
      }
      found.emplace_back(items[p].order, std::move(want));
    }
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (auto& [order, want] : found) {
    const auto index = static_cast<int32_t>(wants_.size());
    lanes_[static_cast<size_t>(want.lane)].wants.push_back(index);
    for (const int32_t s : want.slots) slots_[static_cast<size_t>(s)].users.push_back(index);
    wants_.push_back(std::move(want));
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

const int32_t* PoolCore::find_want(int32_t lane, int32_t position) const {
  const std::vector<int32_t>& wants = lanes_[static_cast<size_t>(lane)].wants;
  const auto at = std::lower_bound(
      wants.begin(), wants.end(), position,
      [this](int32_t w, int32_t p) { return wants_[static_cast<size_t>(w)].position < p; });
  if (at == wants.end() || wants_[static_cast<size_t>(*at)].position != position) return nullptr;
  return &*at;
}

Status PoolCore::request(int32_t lane, LanePoint at, std::vector<LeaseGrant>* grants) {
  if (lane < 0 || static_cast<size_t>(lane) >= lanes_.size()) {
    return internal_error(fmt::format("lease asked on lane {}", lane));
  }
  const int32_t* want = find_want(lane, at.position);
  if (want == nullptr) {
    return internal_error(
        fmt::format("lane {} position {} has nothing to lease", lane, at.position));
  }
  if (!started_) {
    started_ = true;
    for (Slot& s : slots_) s.next_step = at.step;
  }
  const Asked asked{at.step, *want};
  const auto place = std::lower_bound(asked_.begin(), asked_.end(), asked);
  if (at.step <= wants_[static_cast<size_t>(*want)].granted_step ||
      (place != asked_.end() && *place == asked)) {
    return internal_error(
        fmt::format("lane {} step {} position {} asked twice", lane, at.step, at.position));
  }
  asked_.insert(place, asked);
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
  LanePoint& complete = lanes_[static_cast<size_t>(lane)].complete;
  complete = std::max(complete, at);
  pump(grants);
}

bool PoolCore::may_use(int32_t index, const Asked& asked) const {
  const Slot& slot = slots_[static_cast<size_t>(index)];
  if (slot.held) return false;
  if (!slot.users.empty() && Asked{slot.next_step, slot.users[slot.next_user]} < asked) {
    return false;  // an earlier one has not had its turn
  }
  if (slot.lane < 0 || slot.lane == wants_[static_cast<size_t>(asked.want)].lane) return true;
  const Lane& before = lanes_[static_cast<size_t>(slot.lane)];
  return before.channel || before.complete >= slot.last_use;
}

bool PoolCore::may_grant(const Asked& asked) const {
  const std::vector<int32_t>& slots = wants_[static_cast<size_t>(asked.want)].slots;
  return std::all_of(slots.begin(), slots.end(), [&](int32_t s) {
    const std::vector<int32_t>& others = slots_[static_cast<size_t>(s)].overlaps;
    return may_use(s, asked) &&
           std::all_of(others.begin(), others.end(), [&](int32_t o) { return may_use(o, asked); });
  });
}

void PoolCore::grant(const Asked& asked, std::vector<LeaseGrant>* grants) {
  Want& want = wants_[static_cast<size_t>(asked.want)];
  want.granted_step = asked.step;
  LeaseGrant& out = grants->emplace_back();
  out.lane = want.lane;
  out.at = {asked.step, want.position};
  for (int32_t s : want.slots) {
    Slot& slot = slots_[static_cast<size_t>(s)];
    slot.held = true;
    slot.lane = want.lane;
    slot.serial = next_serial_++;
    if (++slot.next_user == slot.users.size()) {
      slot.next_user = 0;
      slot.next_step = asked.step + 1;
    }
    out.leases.push_back({s, slot.serial});
    stats_.high_water_bytes = std::max(stats_.high_water_bytes, slot.end);
    ++stats_.num_held;
    ++stats_.num_granted;
  }
}

void PoolCore::pump(std::vector<LeaseGrant>* grants) {
  // A grant makes way for later ones only, so once through is enough.
  size_t kept = 0;
  for (const Asked& asked : asked_) {
    if (may_grant(asked)) {
      grant(asked, grants);
    } else {
      asked_[kept++] = asked;
    }
  }
  asked_.resize(kept);
}

}  // namespace sgactor::actors
