#pragma once
#include "supervision/membership/votes.h"
#include "supervision/membership/world.h"

#include <compare>
#include <cstdint>
#include <memory>
#include <variant>
#include <vector>

/// Messages of the recovery protocol as plain structs: what crosses processes, in any encoding. All
/// are sent again until they are superseded, so that losing, repeating or reordering any of them
/// only costs time. Each carries the generation its sender knows.

namespace sgactor::supervision {

using WorldRef = std::shared_ptr<const World>;

/// A name for bytes that somebody else keeps: a slot of the host arena, or in simulation the value
/// itself.
struct Payload {
  uint64_t word = 0;
  int64_t bytes = 0;
  friend bool operator==(const Payload&, const Payload&) = default;
};
/// A rank's state, cut as it travels.
using State = std::vector<Payload>;

/// What a message is, whoever sends it and however often. Ordered by step first.
struct LogicalKey {
  int64_t step = 0;
  uint8_t kind = 0;  ///< of the plan's channels
  int32_t micro_batch = 0;
  int32_t edge = 0;
  RankId from = 0;
  RankId to = 0;
  friend auto operator<=>(const LogicalKey&, const LogicalKey&) = default;
};

/// How a channel operation comes back for the one that lacks it (the plan says which).
enum class Retain : uint8_t {
  kRegather = 0,  ///< nothing is kept: the member serves its shard of the state again
  kInput,         ///< the posted input is kept, the operation runs again
  kResult,        ///< its one keeper (the sender) hands the result over
};

// --- between ranks ---
struct Data {
  LogicalKey key;
  int64_t generation = 0;
  Payload payload;
};
/// "Lies in my inbox": stops re-sending, frees nothing.
struct DataAck {
  LogicalKey key;
  int64_t generation = 0;
  int64_t incarnation = 0;  ///< of key.to
};

// --- rank <-> mirror ---
struct PutState {
  RankId rank = 0;
  int64_t incarnation = 0;
  int64_t generation = 0;
  int64_t step = 0;  ///< S(step)
  int32_t chunk = 0;
  int32_t num_chunks = 1;
  Payload payload;
};
struct PutInputs {
  RankId rank = 0;
  int64_t incarnation = 0;
  int64_t generation = 0;
  int64_t step = 0;  ///< R(step)
  Payload payload;
};
struct MirrorAck {
  RankId rank = 0;
  int64_t incarnation = 0;
  int64_t generation = 0;
  NodeId mirror = kNone;
  int64_t step = 0;
  int32_t chunk = 0;  ///< kNone: R(step)
};
/// adopter -> mirror: what leads to exactly S(step).
struct Fetch {
  RankId rank = 0;
  int64_t incarnation = 0;
  int64_t generation = 0;
  int64_t step = 0;
  WorkerId reply_to = kNone;
};
struct Fetched {
  RankId rank = 0;
  int64_t incarnation = 0;
  int64_t generation = 0;
  NodeId mirror = kNone;
  bool found = false;  ///< false: this node cannot bring the rank to that step
  int64_t state_step = 0;
  State state;                  ///< S(state_step)
  std::vector<Payload> inputs;  ///< R(state_step + 1 ...)
};

// --- to the coordinator ---
/// adopter: no node that could hold the rank's state does.
struct Lost {
  RankId rank = 0;
  int64_t incarnation = 0;
  int64_t generation = 0;
};
struct Heartbeat {
  WorkerId worker = kNone;
  int64_t sequence = 0;
};
/// The workers of a node that are alive: a death and a birth are seen by what is in the list, so
/// that losing a message loses neither.
struct NodeHeartbeat {
  NodeId node = kNone;
  int64_t sequence = 0;
  std::vector<Member> workers;
};

using Message = std::variant<WorldRef, Data, DataAck, PutState, PutInputs, MirrorAck, Fetch,
                             Fetched, Vote, Lost, Heartbeat, NodeHeartbeat>;

struct Address {
  enum class Kind : uint8_t { kCoordinator = 0, kNode, kWorker };
  Kind kind = Kind::kCoordinator;
  int32_t id = 0;
  friend auto operator<=>(const Address&, const Address&) = default;
};
inline Address coordinator_address() { return {}; }
inline Address node_address(NodeId node) { return {Address::Kind::kNode, node}; }
inline Address worker_address(WorkerId worker) { return {Address::Kind::kWorker, worker}; }

struct Envelope {
  Address to;
  Message message;
};
using Outbox = std::vector<Envelope>;

/// When to send again what nobody has acknowledged.
struct ResendPolicy {
  int64_t first_us = 4'000;
  int64_t longest_us = 64'000;  ///< doubles up to here
};

}  // namespace sgactor::supervision
