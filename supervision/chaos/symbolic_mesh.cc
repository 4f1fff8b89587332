#include "supervision/chaos/symbolic_mesh.h"

#include "graph/base/hash.h"

#include <algorithm>
#include <utility>

namespace sgactor::supervision {
namespace {

constexpr int64_t kBytes = 8;

template <class... W>
uint64_t mix(uint64_t state, W... words) {
  ((state = mix64(state, static_cast<uint64_t>(words))), ...);
  return state;
}

/// The fixed binary tree: neighbours first. A sum that depends on its order, as floats do.
uint64_t tree(std::vector<uint64_t> values) {
  while (values.size() > 1) {
    std::vector<uint64_t> next;
    for (size_t i = 0; i < values.size(); i += 2) {
      next.push_back(i + 1 < values.size() ? mix(values[i], values[i + 1]) : values[i]);
    }
    values = std::move(next);
  }
  return values[0];
}

uint64_t fold(const std::vector<uint64_t>& values) {
  uint64_t sum = 1;
  for (const uint64_t v : values) sum = mix(sum, v);
  return sum;
}

uint64_t tokens(const SymbolicMesh& mesh, int64_t step, int32_t m, int32_t replica) {
  return mix(mesh.seed, 11, step, m, replica);
}
uint64_t forward(uint64_t weights, uint64_t in, int64_t step, int32_t m) {
  return mix(weights, 12, in, step, m);
}
uint64_t loss_gradient(uint64_t out) { return mix(out, 13); }
uint64_t input_gradient(uint64_t weights, uint64_t in, uint64_t grad) {
  return mix(weights, 14, in, grad);
}
uint64_t weight_gradient(uint64_t in, uint64_t grad) { return mix(in, 15, grad); }
uint64_t piece(uint64_t gradient, int32_t replica) { return mix(gradient, 16, replica); }
uint64_t norm_part(uint64_t reduced) { return mix(reduced, 17); }
uint64_t update_inputs(uint64_t reduced, uint64_t norm) { return mix(reduced, 18, norm); }

}  // namespace

State initial_state(const SymbolicMesh& mesh, RankId rank) {
  State state;
  for (int32_t c = 0; c < mesh.chunks; ++c) state.push_back({mix(mesh.seed, 19, rank, c), kBytes});
  return state;
}

Payload shard_of(const State& state) { return {mix(hash_state(state), 20), kBytes}; }

void apply_update(State& state, const Payload& inputs) {
  for (size_t c = 0; c < state.size(); ++c) state[c].word = mix(state[c].word, 21, inputs.word, c);
}

uint64_t hash_state(const State& state) {
  uint64_t h = 22;
  for (const Payload& chunk : state) h = mix(h, chunk.word);
  return h;
}

int64_t planned_log_bytes(const SymbolicMesh& mesh, RankId rank) {
  const int32_t stage = mesh.stage(rank);
  int64_t messages = mesh.dp - 1;                            // gradient pieces
  messages += stage + 1 < mesh.pp ? mesh.micro_batches : 0;  // forward
  messages += stage > 0 ? mesh.micro_batches : 0;            // backward
  messages += rank == 0 ? mesh.num_ranks() - 1 : 1;          // norm, or its part
  return messages * kBytes;
}

namespace {

/// Gradients of all micro-batches, by rank.
std::vector<std::vector<uint64_t>> expected_gradients(const SymbolicMesh& mesh, int64_t step,
                                                      const std::vector<uint64_t>& weights) {
  std::vector<std::vector<uint64_t>> grads(static_cast<size_t>(mesh.num_ranks()));
  for (int32_t d = 0; d < mesh.dp; ++d) {
    for (int32_t m = 0; m < mesh.micro_batches; ++m) {
      std::vector<uint64_t> in{tokens(mesh, step, m, d)};
      for (const uint64_t w : weights) in.push_back(forward(w, in.back(), step, m));
      uint64_t grad = loss_gradient(in.back());
      for (int32_t s = mesh.pp - 1; s >= 0; --s) {
        const auto i = static_cast<size_t>(s);
        grads[static_cast<size_t>(mesh.rank(s, d))].push_back(weight_gradient(in[i], grad));
        grad = input_gradient(weights[i], in[i], grad);
      }
    }
  }
  return grads;
}

void expected_step(const SymbolicMesh& mesh, int64_t step, std::vector<State>& states) {
  std::vector<uint64_t> weights;
  for (int32_t s = 0; s < mesh.pp; ++s) {
    std::vector<uint64_t> shards;
    for (int32_t d = 0; d < mesh.dp; ++d) {
      shards.push_back(shard_of(states[static_cast<size_t>(mesh.rank(s, d))]).word);
    }
    weights.push_back(tree(std::move(shards)));
  }
  const auto grads = expected_gradients(mesh, step, weights);
  std::vector<uint64_t> reduced, parts;
  for (RankId r = 0; r < mesh.num_ranks(); ++r) {
    std::vector<uint64_t> pieces;
    for (int32_t d = 0; d < mesh.dp; ++d) {
      const auto peer = static_cast<size_t>(mesh.rank(mesh.stage(r), d));
      pieces.push_back(piece(fold(grads[peer]), mesh.replica(r)));
    }
    reduced.push_back(tree(std::move(pieces)));
    parts.push_back(norm_part(reduced.back()));
  }
  const uint64_t norm = tree(std::move(parts));
  for (size_t r = 0; r < states.size(); ++r) {
    apply_update(states[r], {update_inputs(reduced[r], norm), kBytes});
  }
}

}  // namespace

std::vector<std::vector<uint64_t>> expected_hashes(const SymbolicMesh& mesh, int64_t steps) {
  std::vector<State> states;
  for (RankId r = 0; r < mesh.num_ranks(); ++r) states.push_back(initial_state(mesh, r));
  std::vector<std::vector<uint64_t>> out;
  for (int64_t step = 0; step <= steps; ++step) {
    if (step > 0) expected_step(mesh, step, states);
    std::vector<uint64_t>& hashes = out.emplace_back();
    for (const State& s : states) hashes.push_back(hash_state(s));
  }
  return out;
}

LogicalKey SymbolicRank::key(Edge edge, int64_t step, int32_t micro_batch, RankId from,
                             RankId to) const {
  return {step, static_cast<uint8_t>(edge), micro_batch, 0, from, to};
}

void SymbolicRank::begin(int64_t step) {
  step_ = step;
  shards_sent_ = gathered_ = pieces_sent_ = reduced_ = false;
  micro_batches_.assign(static_cast<size_t>(mesh_.micro_batches), {});
  grads_in_order_.clear();
}

Status SymbolicRank::pump(RankCore& core, int64_t now_us, Outbox& out, const OnWork& on_work) {
  if (core.phase() == RankCore::Phase::kRedoing) {
    State state = core.fetched().state;
    for (const Payload& inputs : core.fetched().inputs) apply_update(state, inputs);
    const Payload shard = shard_of(state);
    core.restored(std::move(state), shard, now_us, out);
  }
  if (core.phase() == RankCore::Phase::kUpdating) {
    on_work(Work::kUpdate, step_, 0);
    State state = core.state();
    apply_update(state, core.update_inputs());
    const Payload shard = shard_of(state);
    core.updated(std::move(state), shard, now_us, out);
  }
  if (core.phase() != RankCore::Phase::kExecuting) return {};
  if (step_ != core.open_step()) begin(core.open_step());
  SGA_TRY(execute(core, now_us, out, on_work));
  // Without the gate an update runs as soon as its inputs are there.
  if (core.phase() == RankCore::Phase::kUpdating) return pump(core, now_us, out, on_work);
  return {};
}

Status SymbolicRank::execute(RankCore& core, int64_t now_us, Outbox& out, const OnWork& on_work) {
  if (!gathered_) SGA_TRY(gather(core, now_us, out, on_work));
  if (!gathered_) return {};
  for (int32_t m = 0; m < mesh_.micro_batches; ++m) {
    SGA_TRY(run_micro_batch(core, m, now_us, out, on_work));
  }
  if (grads_in_order_.size() < micro_batches_.size()) return {};
  if (!pieces_sent_) SGA_TRY(send_pieces(core, now_us, out));
  if (!reduced_) SGA_TRY(reduce(core, now_us, out, on_work));
  if (!reduced_) return {};
  return sum_norm(core, now_us, out);
}

Status SymbolicRank::gather(RankCore& core, int64_t now_us, Outbox& out, const OnWork& on_work) {
  const int32_t stage = mesh_.stage(rank_);
  std::vector<uint64_t> shards;
  for (int32_t d = 0; d < mesh_.dp; ++d) {
    const RankId peer = mesh_.rank(stage, d);
    if (peer == rank_) {
      shards.push_back(shard_of(core.state()).word);
      continue;
    }
    if (!shards_sent_) {
      SGA_TRY(
          core.post(key(Edge::kShard, step_, 0, rank_, peer), Retain::kRegather, {}, now_us, out));
    }
    const auto* shard = core.received(key(Edge::kShard, step_, 0, peer, rank_));
    if (shard != nullptr) shards.push_back(shard->payload.word);
  }
  shards_sent_ = true;
  if (static_cast<int32_t>(shards.size()) < mesh_.dp) return {};
  on_work(Work::kGather, step_, 0);
  weights_ = tree(std::move(shards));
  gathered_ = true;
  return {};
}

Status SymbolicRank::run_micro_batch(RankCore& core, int32_t m, int64_t now_us, Outbox& out,
                                     const OnWork& on_work) {
  MicroBatch& mb = micro_batches_[static_cast<size_t>(m)];
  const int32_t stage = mesh_.stage(rank_);
  const int32_t d = mesh_.replica(rank_);
  const bool last = stage + 1 == mesh_.pp;
  if (!mb.forward) {
    const auto* in = stage == 0
                         ? nullptr
                         : core.received(key(Edge::kForward, step_, m, rank_ - mesh_.dp, rank_));
    if (stage > 0 && in == nullptr) return {};
    on_work(Work::kForward, step_, m);
    mb.in = stage == 0 ? tokens(mesh_, step_, m, d) : in->payload.word;
    mb.out = forward(weights_, mb.in, step_, m);
    mb.forward = true;
    if (!last) {
      SGA_TRY(core.post(key(Edge::kForward, step_, m, rank_, rank_ + mesh_.dp), Retain::kResult,
                        {mb.out, kBytes}, now_us, out));
    }
  }
  if (mb.backward) return {};
  const auto* grad =
      last ? nullptr : core.received(key(Edge::kBackward, step_, m, rank_ + mesh_.dp, rank_));
  if (!last && grad == nullptr) return {};
  on_work(Work::kBackward, step_, m);
  const uint64_t g = last ? loss_gradient(mb.out) : grad->payload.word;
  mb.grad = weight_gradient(mb.in, g);
  mb.backward = true;
  grads_in_order_.push_back(mb.grad);
  if (stage == 0) return {};
  return core.post(key(Edge::kBackward, step_, m, rank_, rank_ - mesh_.dp), Retain::kResult,
                   {input_gradient(weights_, mb.in, g), kBytes}, now_us, out);
}

Status SymbolicRank::send_pieces(RankCore& core, int64_t now_us, Outbox& out) {
  std::vector<uint64_t> grads;
  for (const MicroBatch& mb : micro_batches_) grads.push_back(mb.grad);
  gradient_ = fold(guards_.canonical_order ? grads : grads_in_order_);
  for (int32_t d = 0; d < mesh_.dp; ++d) {
    const RankId peer = mesh_.rank(mesh_.stage(rank_), d);
    if (peer == rank_) continue;
    SGA_TRY(core.post(key(Edge::kGradient, step_, 0, rank_, peer), Retain::kInput,
                      {piece(gradient_, d), kBytes}, now_us, out));
  }
  pieces_sent_ = true;
  return {};
}

Status SymbolicRank::reduce(RankCore& core, int64_t now_us, Outbox& out, const OnWork& on_work) {
  std::vector<std::pair<int64_t, uint64_t>> pieces;
  for (int32_t d = 0; d < mesh_.dp; ++d) {
    const RankId peer = mesh_.rank(mesh_.stage(rank_), d);
    if (peer == rank_) {
      pieces.emplace_back(-1, piece(gradient_, d));
      continue;
    }
    const auto* arrived = core.received(key(Edge::kGradient, step_, 0, peer, rank_));
    if (arrived == nullptr) return {};
    pieces.emplace_back(arrived->order, arrived->payload.word);
  }
  if (!guards_.canonical_order) std::sort(pieces.begin(), pieces.end());
  std::vector<uint64_t> values;
  for (const auto& [order, value] : pieces) values.push_back(value);
  on_work(Work::kReduce, step_, 0);
  reduced_value_ = tree(std::move(values));
  reduced_ = true;
  if (rank_ == 0) return {};
  return core.post(key(Edge::kNormPart, step_, 0, rank_, 0), Retain::kInput,
                   {norm_part(reduced_value_), kBytes}, now_us, out);
}

Status SymbolicRank::sum_norm(RankCore& core, int64_t now_us, Outbox& out) {
  uint64_t norm = 0;
  if (rank_ == 0) {
    std::vector<uint64_t> parts{norm_part(reduced_value_)};
    for (RankId r = 1; r < mesh_.num_ranks(); ++r) {
      const auto* part = core.received(key(Edge::kNormPart, step_, 0, r, 0));
      if (part == nullptr) return {};
      parts.push_back(part->payload.word);
    }
    norm = tree(std::move(parts));
    for (RankId r = 1; r < mesh_.num_ranks(); ++r) {
      SGA_TRY(core.post(key(Edge::kNorm, step_, 0, 0, r), Retain::kResult, {norm, kBytes}, now_us,
                        out));
    }
  } else {
    const auto* arrived = core.received(key(Edge::kNorm, step_, 0, 0, rank_));
    if (arrived == nullptr) return {};
    norm = arrived->payload.word;
  }
  return core.inputs_ready({update_inputs(reduced_value_, norm), kBytes}, now_us, out);
}

}  // namespace sgactor::supervision
