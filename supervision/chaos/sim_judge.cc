#include "supervision/chaos/sim_judge.h"

#include "graph/base/hash.h"

#include <fmt/format.h>

#include <algorithm>

namespace sgactor::supervision {

SimJudge::SimJudge(const SimScenario& scenario)
    : scenario_(scenario),
      expected_(expected_hashes(scenario.mesh, scenario.steps)),
      final_(static_cast<size_t>(scenario.mesh.num_ranks()), 0),
      exposed_(final_.size(), false),
      moved_(final_.size(), 0) {}

void SimJudge::fail(SimOutcome outcome, std::string message) {
  if (over_) return;
  over_ = true;
  outcome_ = outcome;
  message_ = std::move(message);
}

void SimJudge::on_work(RankId rank, int64_t incarnation, Work work, int64_t step,
                       int32_t micro_batch) {
  const auto [it, fresh] =
      executed_.try_emplace(std::tuple(rank, step, micro_batch, work), incarnation);
  if (fresh) return;
  ++reexecuted_;
  const bool same_life = it->second == incarnation;
  if (same_life || moved_[static_cast<size_t>(rank)] == incarnation) ++survivors_reexecuted_;
  it->second = std::max(it->second, incarnation);
}

void SimJudge::on_state(RankId rank, int64_t step, const State& state, int64_t now_us) {
  last_progress_us_ = now_us;
  const auto r = static_cast<size_t>(rank);
  const uint64_t hash = hash_state(state);
  if (step > scenario_.steps || hash != expected_[static_cast<size_t>(step)][r]) {
    return fail(
        SimOutcome::kDiverged,
        fmt::format("rank {}: state after step {} is {}, not {}", rank, step, hex64(hash),
                    hex64(expected_[static_cast<size_t>(std::min(step, scenario_.steps))][r])));
  }
  if (step < scenario_.steps) return;
  final_[r] = hash;
  if (std::none_of(final_.begin(), final_.end(), [](uint64_t h) { return h == 0; })) over_ = true;
}

uint64_t SimJudge::state_hash() const {
  uint64_t h = 0;
  for (const uint64_t f : final_) h = mix64(h, f);
  return h;
}

void SimJudge::take_world(const World& next) {
  for (size_t r = 0; r < next.ranks.size() && r < world_.ranks.size(); ++r) {
    const RankPlace& old = world_.ranks[r];
    for (const NodeId node : {old.mirror, old.source}) {
      if (node != kNone && !next.has_node(node)) exposed_[r] = true;
    }
    if (next.ranks[r].incarnation <= old.incarnation) continue;
    ++adoptions_;
    if (next.find(old.worker) != nullptr) moved_[r] = next.ranks[r].incarnation;
  }
  if (next.generation > world_.generation) {
    const bool loss = std::any_of(world_.workers.begin(), world_.workers.end(),
                                  [&](const Member& m) { return next.find(m.worker) == nullptr; });
    recoveries_ += loss ? 1 : 0;
  }
  world_ = next;
}

void SimJudge::on_decided(const CoordinatorCore& core, const Holds& holds, int64_t room,
                          int64_t now_us) {
  if (over_) return;
  if (core.decided() != world_) {
    take_world(core.decided());
    last_progress_us_ = now_us;
  }
  if (core.announced()->committed > announced_commit_) {
    announced_commit_ = core.announced()->committed;
    last_progress_us_ = now_us;
    for (size_t r = 0; r < exposed_.size(); ++r) {
      if (!exposed_[r]) continue;
      const RankPlace& place = core.announced()->ranks[r];
      exposed_[r] =
          place.source == kNone || !holds(static_cast<RankId>(r), announced_commit_, place.source);
    }
  }
  // Often enough: a copy that is gone does not come back by itself.
  if (world_.ranks.size() <= 8 || sources_checked_++ % 64 == 0) check_sources(holds);
  if (!core.failure().ok()) judge_failure(core, room);
}

/// The mirror's contract, looked at from outside: whoever is named as a rank's source can bring it
/// to the last commit, unless faults have taken its copies since.
void SimJudge::check_sources(const Holds& holds) {
  for (size_t r = 0; r < world_.ranks.size() && world_.committed > 0; ++r) {
    const RankPlace& place = world_.ranks[r];
    if (exposed_[r] || place.source == kNone) continue;
    if (holds(static_cast<RankId>(r), world_.committed, place.source)) continue;
    return fail(SimOutcome::kLost,
                fmt::format("node {} should hold the state of rank {} after step "
                            "{}, and does not",
                            place.source, r, world_.committed));
  }
}

void SimJudge::judge_failure(const CoordinatorCore& core, int64_t room) {
  const Status& failure = core.failure();
  bool excused = false;
  if (failure.code() == Code::kCorruption && core.lost_rank() != kNone) {
    excused = exposed_[static_cast<size_t>(core.lost_rank())];
  } else if (failure.code() == Code::kOverloaded) {
    excused = room < scenario_.mesh.num_ranks();
  } else {
    return fail(SimOutcome::kBroken, failure.to_string());
  }
  fail(excused ? SimOutcome::kUnsurvivable : SimOutcome::kLost, failure.to_string());
}

void SimJudge::check_progress(int64_t now_us, int64_t events) {
  constexpr int64_t kPatienceUs = 8'000'000;
  const int64_t max_events = 200'000 + scenario_.mesh.num_ranks() * 20'000;
  if (now_us - last_progress_us_ <= kPatienceUs && events <= max_events) return;
  fail(SimOutcome::kStuck, fmt::format("step {} does not commit: {} us without progress, {} events",
                                       world_.committed + 1, now_us - last_progress_us_, events));
}

// --- event logs ---

namespace {

std::string describe_key(const LogicalKey& k) {
  constexpr std::array<std::string_view, 6> kNames = {"shard",    "forward",   "backward",
                                                      "gradient", "norm part", "norm"};
  return fmt::format("{} {}->{} step {} mb {}", k.kind < 6 ? kNames[k.kind] : "?", k.from, k.to,
                     k.step, k.micro_batch);
}

struct Describe {
  std::string operator()(const WorldRef& m) const {
    std::string out = fmt::format("world g{} commit {}:", m->generation, m->committed);
    for (size_t r = 0; r < m->ranks.size() && r < 8; ++r) {
      const RankPlace& p = m->ranks[r];
      out += fmt::format(" {}@w{}.{}/m{}/s{}", r, p.worker, p.incarnation, p.mirror, p.source);
    }
    return out;
  }
  std::string operator()(const Data& m) const {
    return fmt::format("{} g{} = {}", describe_key(m.key), m.generation, hex64(m.payload.word));
  }
  std::string operator()(const DataAck& m) const {
    return fmt::format("ack of {} g{} i{}", describe_key(m.key), m.generation, m.incarnation);
  }
  std::string operator()(const PutState& m) const {
    return fmt::format("put S({}) of {}.{} chunk {}/{} g{}", m.step, m.rank, m.incarnation, m.chunk,
                       m.num_chunks, m.generation);
  }
  std::string operator()(const PutInputs& m) const {
    return fmt::format("put R({}) of {}.{} g{}", m.step, m.rank, m.incarnation, m.generation);
  }
  std::string operator()(const MirrorAck& m) const {
    return fmt::format("node {} has {}({}) of {}.{} chunk {} g{}", m.mirror,
                       m.chunk == kNone ? "R" : "S", m.step, m.rank, m.incarnation, m.chunk,
                       m.generation);
  }
  std::string operator()(const Fetch& m) const {
    return fmt::format("fetch S({}) of {}.{} g{}", m.step, m.rank, m.incarnation, m.generation);
  }
  std::string operator()(const Fetched& m) const {
    return fmt::format("node {} {} {}.{}: S({}) and {} inputs g{}", m.mirror,
                       m.found ? "serves" : "lacks", m.rank, m.incarnation, m.state_step,
                       m.inputs.size(), m.generation);
  }
  std::string operator()(const Vote& m) const {
    return fmt::format("vote of {}.{} for step {} g{}", m.rank, m.incarnation, m.step,
                       m.generation);
  }
  std::string operator()(const Lost& m) const {
    return fmt::format("state of {}.{} is lost g{}", m.rank, m.incarnation, m.generation);
  }
  std::string operator()(const Heartbeat& m) const {
    return fmt::format("heartbeat {} of worker {}", m.sequence, m.worker);
  }
  std::string operator()(const NodeHeartbeat& m) const {
    std::string out = fmt::format("heartbeat {} of node {}: workers", m.sequence, m.node);
    for (const Member& w : m.workers) out += fmt::format(" {}", w.worker);
    return out;
  }
};

template <class... W>
uint64_t mix(W... words) {
  uint64_t h = 0;
  ((h = mix64(h, static_cast<uint64_t>(words))), ...);
  return h;
}

struct HashFields {
  uint64_t operator()(const WorldRef& m) const { return mix(m->generation, m->committed); }
  uint64_t operator()(const Data& m) const {
    return mix(m.key.step, m.key.kind, m.key.micro_batch, m.key.from, m.key.to, m.generation,
               m.payload.word);
  }
  uint64_t operator()(const DataAck& m) const {
    return mix(m.key.step, m.key.kind, m.key.micro_batch, m.key.from, m.key.to, m.generation,
               m.incarnation);
  }
  uint64_t operator()(const PutState& m) const {
    return mix(m.rank, m.incarnation, m.generation, m.step, m.chunk, m.payload.word);
  }
  uint64_t operator()(const PutInputs& m) const {
    return mix(m.rank, m.incarnation, m.generation, m.step, m.payload.word);
  }
  uint64_t operator()(const MirrorAck& m) const {
    return mix(m.rank, m.incarnation, m.generation, m.step, m.chunk, m.mirror);
  }
  uint64_t operator()(const Fetch& m) const {
    return mix(m.rank, m.incarnation, m.generation, m.step, m.reply_to);
  }
  uint64_t operator()(const Fetched& m) const {
    return mix(m.rank, m.incarnation, m.generation, m.mirror, m.found, m.state_step);
  }
  uint64_t operator()(const Vote& m) const {
    return mix(m.rank, m.incarnation, m.generation, m.step);
  }
  uint64_t operator()(const Lost& m) const { return mix(m.rank, m.incarnation, m.generation); }
  uint64_t operator()(const Heartbeat& m) const { return mix(m.worker, m.sequence); }
  uint64_t operator()(const NodeHeartbeat& m) const {
    return mix(m.node, m.sequence, m.workers.size());
  }
};

}  // namespace

std::string describe_address(const Address& address) {
  if (address.kind == Address::Kind::kNode) return fmt::format("node {}", address.id);
  if (address.kind == Address::Kind::kWorker) return fmt::format("worker {}", address.id);
  return address.id < 0 ? "world" : "coordinator";
}

std::string describe_message(const Message& message) { return std::visit(Describe{}, message); }

uint64_t hash_message(const Message& message) {
  return mix64(message.index(), std::visit(HashFields{}, message));
}

}  // namespace sgactor::supervision
