#include "supervision/recovery/mirror_core.h"

#include <algorithm>

namespace sgactor::supervision {

void MirrorCore::on_world(const WorldRef& world) {
  if (world_ && guards_.monotone_world && !world->newer_than(*world_)) return;
  world_ = world;
  std::erase_if(contents_, [&](const auto& item) {
    const auto r = static_cast<size_t>(item.first);
    if (r >= world->ranks.size()) return true;
    return world->ranks[r].mirror != node_ && world->ranks[r].source != node_;
  });
}

MirrorCore::Content* MirrorCore::admit(RankId rank, int64_t incarnation, int64_t generation) {
  if (!world_ || rank < 0 || static_cast<size_t>(rank) >= world_->ranks.size()) return nullptr;
  if (guards_.fencing && generation != world_->generation) return nullptr;
  Content& content = contents_[rank];
  if (guards_.fencing && incarnation < content.incarnation) return nullptr;
  content.incarnation = std::max(content.incarnation, incarnation);
  return &content;
}

void MirrorCore::on_put_state(const PutState& put, Outbox& out) {
  if (put.num_chunks <= 0 || put.chunk < 0 || put.chunk >= put.num_chunks) return;
  Content* content = admit(put.rank, put.incarnation, put.generation);
  if (content == nullptr) return;
  if (put.step > content->state_step) {
    std::optional<Building>& building = content->building;
    if (!building || building->step < put.step) {
      building.emplace();
      building->step = put.step;
      building->chunks.resize(static_cast<size_t>(put.num_chunks));
      if (!guards_.whole_state) {
        content->state_step = kNone;
        content->state.clear();
      }
    }
    if (building->step != put.step ||
        building->chunks.size() != static_cast<size_t>(put.num_chunks)) {
      return;  // overtaken by a newer state
    }
    building->chunks[static_cast<size_t>(put.chunk)] = put.payload;
    finish(*content);
  }
  out.push_back(
      {worker_address(world_->ranks[static_cast<size_t>(put.rank)].worker),
       MirrorAck{put.rank, put.incarnation, world_->generation, node_, put.step, put.chunk}});
}

void MirrorCore::finish(Content& content) {
  const Building& b = *content.building;
  const bool whole = std::all_of(b.chunks.begin(), b.chunks.end(),
                                 [](const auto& chunk) { return chunk.has_value(); });
  if (!whole) return;
  content.state.clear();
  for (const auto& chunk : b.chunks) content.state.push_back(*chunk);
  content.state_step = b.step;
  content.inputs.erase(content.inputs.begin(), content.inputs.upper_bound(b.step));
  content.building.reset();
}

void MirrorCore::on_put_inputs(const PutInputs& put, Outbox& out) {
  Content* content = admit(put.rank, put.incarnation, put.generation);
  if (content == nullptr) return;
  if (put.step > content->state_step) content->inputs.try_emplace(put.step, put.payload);
  out.push_back({worker_address(world_->ranks[static_cast<size_t>(put.rank)].worker),
                 MirrorAck{put.rank, put.incarnation, world_->generation, node_, put.step, kNone}});
}

bool MirrorCore::holds(RankId rank, int64_t step) const {
  const auto it = contents_.find(rank);
  if (it == contents_.end() || it->second.state_step == kNone || it->second.state_step > step) {
    return false;
  }
  for (int64_t s = it->second.state_step + 1; s <= step; ++s) {
    if (!it->second.inputs.contains(s)) return false;
  }
  return true;
}

int64_t MirrorCore::whole_step(RankId rank) const {
  const auto it = contents_.find(rank);
  return it == contents_.end() ? kNone : it->second.state_step;
}

void MirrorCore::on_fetch(const Fetch& fetch, Outbox& out) {
  Content* content = admit(fetch.rank, fetch.incarnation, fetch.generation);
  if (content == nullptr) return;
  Fetched reply{fetch.rank, fetch.incarnation, world_->generation, node_, false, kNone, {}, {}};
  int64_t step = fetch.step;
  if (!guards_.committed_restore) {
    while (holds(fetch.rank, step + 1)) ++step;
  }
  if (holds(fetch.rank, step)) {
    reply.found = true;
    reply.state_step = content->state_step;
    reply.state = content->state;
    for (int64_t s = content->state_step + 1; s <= step; ++s) {
      reply.inputs.push_back(content->inputs.at(s));
    }
  }
  out.push_back({worker_address(fetch.reply_to), std::move(reply)});
}

int64_t MirrorCore::bytes() const {
  int64_t n = 0;
  for (const auto& [rank, content] : contents_) {
    for (const Payload& p : content.state) n += p.bytes;
    for (const auto& [step, p] : content.inputs) n += p.bytes;
    if (!content.building) continue;
    for (const auto& chunk : content.building->chunks) n += chunk ? chunk->bytes : 0;
  }
  return n;
}

}  // namespace sgactor::supervision
