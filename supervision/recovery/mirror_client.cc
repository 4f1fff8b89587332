#include "supervision/recovery/mirror_client.h"

#include <algorithm>

namespace sgactor::supervision {

void MirrorClient::retarget(NodeId mirror) {
  mirror_ = mirror;
  whole_step_ = kNone;
  transfer_.reset();
  inputs_.clear();
  next_due_us_ = kNever;
}

void MirrorClient::assume(int64_t state_step, int64_t step) {
  whole_step_ = state_step;
  for (int64_t s = state_step + 1; s <= step; ++s) inputs_[s].acked = true;
}

MirrorClient::Item MirrorClient::make_item(const Payload& payload, int64_t now_us) {
  next_due_us_ = std::min(next_due_us_, now_us);
  return Item{payload, false, now_us, resend_.first_us};
}

void MirrorClient::put_state(int64_t step, const State& state, int64_t now_us) {
  if (mirror_ == kNone || transfer_) return;
  transfer_.emplace();
  transfer_->step = step;
  for (const Payload& chunk : state) transfer_->chunks.push_back(make_item(chunk, now_us));
}

void MirrorClient::put_inputs(int64_t step, const Payload& inputs, int64_t now_us) {
  if (mirror_ == kNone || inputs_.contains(step)) return;
  inputs_.emplace(step, make_item(inputs, now_us));
}

void MirrorClient::on_ack(const MirrorAck& ack) {
  if (ack.chunk == kNone) {
    const auto it = inputs_.find(ack.step);
    if (it != inputs_.end()) it->second.acked = true;
    return;
  }
  if (!transfer_ || transfer_->step != ack.step || ack.chunk < 0 ||
      static_cast<size_t>(ack.chunk) >= transfer_->chunks.size()) {
    return;
  }
  transfer_->chunks[static_cast<size_t>(ack.chunk)].acked = true;
  const bool whole = std::all_of(transfer_->chunks.begin(), transfer_->chunks.end(),
                                 [](const Item& i) { return i.acked; });
  if (!whole) return;
  whole_step_ = transfer_->step;
  inputs_.erase(inputs_.begin(), inputs_.upper_bound(whole_step_));
  transfer_.reset();
}

bool MirrorClient::holds(int64_t step) const {
  if (mirror_ == kNone || !guards_.mirror_before_vote) return true;
  if (!guards_.earlier_inputs) {
    const auto it = inputs_.find(step);
    return it != inputs_.end() && it->second.acked;
  }
  if (whole_step_ == kNone) return false;
  for (int64_t s = whole_step_ + 1; s <= step; ++s) {
    const auto it = inputs_.find(s);
    if (it == inputs_.end() || !it->second.acked) return false;
  }
  return true;
}

void MirrorClient::hurry(int64_t now_us) {
  const auto wake = [&](Item& item) {
    if (item.acked) return;
    item.due_us = now_us;
    item.interval_us = resend_.first_us;
    next_due_us_ = std::min(next_due_us_, now_us);
  };
  for (auto& [step, item] : inputs_) wake(item);
  if (!transfer_) return;
  for (Item& item : transfer_->chunks) wake(item);
}

bool MirrorClient::take(Item& item, int64_t now_us) {
  if (item.acked) return false;
  const bool due = item.due_us <= now_us;
  if (due) {
    item.due_us = now_us + item.interval_us;
    item.interval_us = std::min(item.interval_us * 2, resend_.longest_us);
  }
  next_due_us_ = std::min(next_due_us_, item.due_us);
  return due;
}

void MirrorClient::take_due(int64_t now_us, int64_t generation, Outbox& out) {
  if (now_us < next_due_us_) return;
  next_due_us_ = kNever;
  const Address to = node_address(mirror_);
  for (auto& [step, item] : inputs_) {
    if (!take(item, now_us)) continue;
    out.push_back({to, PutInputs{rank_, incarnation_, generation, step, item.payload}});
  }
  if (!transfer_) return;
  const auto num_chunks = static_cast<int32_t>(transfer_->chunks.size());
  for (int32_t c = 0; c < num_chunks; ++c) {
    Item& item = transfer_->chunks[static_cast<size_t>(c)];
    if (!take(item, now_us)) continue;
    out.push_back({to, PutState{rank_, incarnation_, generation, transfer_->step, c, num_chunks,
                                item.payload}});
  }
}

}  // namespace sgactor::supervision
