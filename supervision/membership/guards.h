#pragma once
#include <array>
#include <string_view>

namespace sgactor::supervision {

/// The protocol's rules, each of which can be switched off, so that the simulation can show that it
/// would notice. All on everywhere else.
struct ProtocolGuards {
  bool fencing = true;              ///< any check of generation or incarnation on any message
  bool ack_generation = true;       ///< the same, on acknowledgements only
  bool vote_generation = true;      ///< the same, on votes only
  bool forget_votes = true;         ///< a change of membership clears the votes
  bool monotone_world = true;       ///< an older world than the known one is ignored
  bool idempotence = true;          ///< what comes again under the same key changes nothing
  bool log_retention = true;        ///< kept until COMMIT, not until the acknowledgement
  bool unack_on_adopt = true;       ///< a new life of a peer has acknowledged nothing
  bool commit_gate = true;          ///< no update of a step runs before its COMMIT
  bool mirror_before_vote = true;   ///< a vote needs the mirror to hold the update's inputs
  bool earlier_inputs = true;       ///< ... and a whole state, and every input since
  bool whole_state = true;          ///< a mirror drops a state only for a newer whole one
  bool committed_restore = true;    ///< restore the committed step, never a newer one
  bool durable_commit = true;       ///< a commit is on disk before it is told
  bool durable_incarnation = true;  ///< so are generations and incarnations
  bool canonical_order = true;  ///< sums are in rank and micro-batch order, not in order of arrival
};

struct GuardName {
  std::string_view name;
  bool ProtocolGuards::*member;
};

inline constexpr std::array<GuardName, 16> kGuardNames = {{
    {"fencing", &ProtocolGuards::fencing},
    {"ack_generation", &ProtocolGuards::ack_generation},
    {"vote_generation", &ProtocolGuards::vote_generation},
    {"forget_votes", &ProtocolGuards::forget_votes},
    {"monotone_world", &ProtocolGuards::monotone_world},
    {"idempotence", &ProtocolGuards::idempotence},
    {"log_retention", &ProtocolGuards::log_retention},
    {"unack_on_adopt", &ProtocolGuards::unack_on_adopt},
    {"commit_gate", &ProtocolGuards::commit_gate},
    {"mirror_before_vote", &ProtocolGuards::mirror_before_vote},
    {"earlier_inputs", &ProtocolGuards::earlier_inputs},
    {"whole_state", &ProtocolGuards::whole_state},
    {"committed_restore", &ProtocolGuards::committed_restore},
    {"durable_commit", &ProtocolGuards::durable_commit},
    {"durable_incarnation", &ProtocolGuards::durable_incarnation},
    {"canonical_order", &ProtocolGuards::canonical_order},
}};

}  // namespace sgactor::supervision
