#pragma once
#include "supervision/membership/guards.h"
#include "supervision/recovery/messages.h"

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace sgactor::supervision {

/// A rank's side of its mirror: what has been put there and what it has acknowledged. Pure.
class MirrorClient {
 public:
  MirrorClient(RankId rank, int64_t incarnation, ResendPolicy resend, ProtocolGuards guards)
      : rank_(rank), incarnation_(incarnation), resend_(resend), guards_(guards) {}

  /// Another node (kNone: no mirror) takes over: it has nothing. The caller puts a state next.
  void retarget(NodeId mirror);
  /// The rank was restored from its mirror: it has S(state_step) and every R up to `step`.
  void assume(int64_t state_step, int64_t step);
  /// Puts S(step), beside the work. While an earlier state is still under way, nothing: inputs
  /// since that one bridge the gap until the next state is due.
  void put_state(int64_t step, const State& state, int64_t now_us);
  void put_inputs(int64_t step, const Payload& inputs, int64_t now_us);
  /// Pre: the acknowledgement is of this incarnation and the current mirror.
  void on_ack(const MirrorAck& ack);
  /// The mirror can bring the rank to S(step): it has a whole S(j) and R(j + 1 ... step).
  [[nodiscard]] bool holds(int64_t step) const;
  /// See ReplayLog::hurry.
  void hurry(int64_t now_us);
  void take_due(int64_t now_us, int64_t generation, Outbox& out);
  [[nodiscard]] int64_t next_due_us() const { return next_due_us_; }
  [[nodiscard]] NodeId mirror() const { return mirror_; }
  [[nodiscard]] bool state_under_way() const { return transfer_.has_value(); }

  static constexpr int64_t kNever = INT64_MAX;

 private:
  struct Item {
    Payload payload;
    bool acked = false;
    int64_t due_us = 0;
    int64_t interval_us = 0;
  };
  struct Transfer {
    int64_t step = 0;
    std::vector<Item> chunks;
  };
  Item make_item(const Payload& payload, int64_t now_us);
  bool take(Item& item, int64_t now_us);

  RankId rank_;
  int64_t incarnation_;
  ResendPolicy resend_;
  ProtocolGuards guards_;
  NodeId mirror_ = kNone;
  int64_t whole_step_ = kNone;  ///< of the newest state that is whole there
  std::optional<Transfer> transfer_;
  std::map<int64_t, Item> inputs_;  ///< by step; those the mirror still needs
  int64_t next_due_us_ = kNever;
};

}  // namespace sgactor::supervision
