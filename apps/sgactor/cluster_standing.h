#pragma once
#include "actors/protocol/wire.h"
#include "actors/runtime/remote_session.h"
#include "graph/base/status.h"

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace sgactor::apps {

/// What the processes of a run say to each other so that they outlive their coordinator: payloads
/// of wire::Opaque, JSON.
inline constexpr uint32_t kTerms = 16;  ///< coordinator -> node, worker: Terms
inline constexpr uint32_t kStanding =
    17;  ///< node, worker -> a coordinator that takes the run over
/// coordinator -> worker: by what does it compute? Answered by kArithmetic, of which the payload is
/// no JSON but the fingerprint itself; empty: its device does not open.
inline constexpr uint32_t kAskArithmetic = 18;
inline constexpr uint32_t kArithmetic = 19;

/// The name of a worker's process on the data plane. Unlike the control plane's it outlives the
/// coordinator. `worker` is the process's index, until its actors have failed: then it begins again
/// under another number of that row. None is ever used again in a run.
inline actors::wire::PeerId data_peer(int32_t worker) {
  return static_cast<actors::wire::PeerId>(worker) + 2;
}

/// What whoever loses the coordinator does.
struct Terms {
  int64_t orphan_ms = 0;  ///< waits as long for another one, then ends; 0: ends at once
  std::string mirror;     ///< directory that a node holds meanwhile; empty: none
};
actors::wire::Opaque to_wire(const Terms& terms);
/// Errors: kCorruption.
Result<Terms> parse_terms(std::string_view json);

/// Where a worker stands that has lost its coordinator. Of a node only `alive` and `devices` count;
/// it says them whenever it has joined.
struct Standing {
  int32_t worker = -1;         ///< index; -1: a node says it
  int32_t life = -1;           ///< what names it on the data plane (data_peer)
  int64_t node_pid = 0;        ///< of the process that started it
  std::vector<int32_t> alive;  ///< indices of the node's workers
  std::vector<int32_t> ranks;  ///< none: a spare
  std::vector<int64_t> incarnations;
  bool runs = false;        ///< has heard of others and can vote; else it has but loaded
  int64_t loaded_step = 0;  ///< state after it is what it began with
  int64_t begun = 0;        ///< newest step that was begun; 0: none
  std::string address;      ///< of its data plane
  bool failed = false;      ///< an actor of it has failed: of no use any more
  /// The one that a worker runs on; all that a node deals to its workers.
  std::vector<std::string> devices;
};
actors::wire::Opaque to_wire(const Standing& standing);
/// Errors: kCorruption.
Result<Standing> parse_standing(std::string_view json);

/// A process that has lost its coordinator looks for the one that takes the run over: at `address`
/// and at those of the token file, which is read again each time, until `timeout_ms` is over or
/// `give_up` says so. `address` becomes where it was found. False: nobody came, or whoever came
/// refused it.
bool join_again(actors::RemoteSession& session, std::string& address, const std::string& token,
                int64_t timeout_ms, const std::function<bool()>& give_up);

/// Bytes as hexadecimal digits, and back (empty if they are none).
std::string to_hex(std::string_view bytes);
std::string from_hex(std::string_view digits);

}  // namespace sgactor::apps
