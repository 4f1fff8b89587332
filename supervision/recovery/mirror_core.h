#pragma once
#include "supervision/membership/guards.h"
#include "supervision/recovery/messages.h"

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace sgactor::supervision {

/// A node's mirror: of each rank assigned to it one whole state S(j) and the inputs R(j + 1 ...) of
/// the updates since. The whole one is dropped only when a newer one is whole. Pure.
class MirrorCore {
 public:
  explicit MirrorCore(NodeId node, ProtocolGuards guards = {}) : node_(node), guards_(guards) {}

  /// Takes a newer world and forgets ranks that it neither mirrors nor is the source of.
  void on_world(const WorldRef& world);
  void on_put_state(const PutState& put, Outbox& out);
  void on_put_inputs(const PutInputs& put, Outbox& out);
  /// Answers with what leads to exactly S(step), or that it cannot; from then on refuses what
  /// earlier lives of the rank still send.
  void on_fetch(const Fetch& fetch, Outbox& out);

  /// It can bring `rank` to S(step).
  [[nodiscard]] bool holds(RankId rank, int64_t step) const;
  /// Step of the rank's whole state; kNone if there is none.
  [[nodiscard]] int64_t whole_step(RankId rank) const;
  [[nodiscard]] int64_t bytes() const;

 private:
  struct Building {
    int64_t step = 0;
    std::vector<std::optional<Payload>> chunks;
  };
  struct Content {
    int64_t incarnation = 0;
    int64_t state_step = kNone;
    State state;
    std::optional<Building> building;
    std::map<int64_t, Payload> inputs;
  };
  /// The content that a message of this life may change; null if the message is fenced off.
  Content* admit(RankId rank, int64_t incarnation, int64_t generation);
  void finish(Content& content);

  NodeId node_;
  ProtocolGuards guards_;
  WorldRef world_;
  std::map<RankId, Content> contents_;
};

}  // namespace sgactor::supervision
