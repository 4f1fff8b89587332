#pragma once
#include "actors/protocol/wire.h"
#include "actors/runtime/tls_hub.h"
#include "graph/base/status.h"

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

namespace sgactor::actors {

/// Another process of the job, as it introduced itself.
struct Peer {
  wire::PeerId id = wire::kNobody;
  wire::Hello hello;  ///< empty for the coordinator
  std::string address;
  /// "worker 1 (pid 4711 on host a)", for messages.
  [[nodiscard]] std::string name() const;
};

/// Who the process is to others.
struct GatewaySelf {
  bool is_coordinator = false;
  wire::Hello hello;      ///< of a joining process: what it says
  std::string build;      ///< must be equal everywhere
  uint64_t job_hash = 0;  ///< of the coordinator; a joining one with another, not 0, is refused
};

struct GatewayCounts {
  int64_t refused = 0;    ///< introduced itself wrongly
  int64_t stale = 0;      ///< messages of another generation, dropped
  int64_t relayed = 0;    ///< from one peer to another, by the coordinator
  int64_t num_peers = 0;  ///< now
};

/// What a gateway knows and decides: which link is which process, what it may say, what is asked of
/// whom. All processes talk to the coordinator; what one of them says to another goes through it.
/// No CAF, no thread, no socket, no clock: every call returns what is to be done, in order. Safe on
/// whatever bytes come. One caller at a time.
class GatewayCore {
 public:
  struct SendFrame {
    LinkId link;
    std::string bytes;
  };
  struct Admit {
    LinkId link;
  };
  struct CloseLink {
    LinkId link;
  };
  struct Joined {
    Peer peer;
  };
  /// A peer is gone; said once a peer. Questions to it have been answered before.
  struct Left {
    Peer peer;
    Status why;
  };
  struct Deliver {
    wire::Envelope envelope;
  };
  /// The end of an ask(): the answer, or the Status of Failed, of the loss or of the time-out.
  struct Answered {
    uint64_t token;
    Result<wire::Body> answer;
  };
  /// A connection was not taken, or a message not understood: for the log.
  struct Note {
    std::string line;
  };
  using Effect = std::variant<SendFrame, Admit, CloseLink, Joined, Left, Deliver, Answered, Note>;
  using Effects = std::vector<Effect>;

  explicit GatewayCore(GatewaySelf self) : self_(std::move(self)) {
    id_ = self_.is_coordinator ? wire::kCoordinatorPeer : wire::kNobody;
  }

  Effects on_opened(LinkId link, const std::string& address, bool accepted);
  Effects on_frame(LinkId link, std::string_view bytes);
  Effects on_closed(LinkId link, const Status& why);

  /// Nothing if the peer is gone: Left has been said.
  Effects send(wire::PeerId to, wire::Body body, uint64_t answers = 0);
  /// Asks; exactly one Answered with this token follows.
  Effects ask(wire::PeerId to, wire::Body body, uint64_t token, int64_t deadline_ms);
  /// Answers what is overdue.
  Effects tick(int64_t now_ms);
  /// Closes the link of a peer, behind a Shutdown that says why; Left follows here.
  Effects expel(wire::PeerId peer, const Status& why);

  /// Step messages of other generations are dropped from here on. A joined process follows the
  /// Routes that it gets.
  void set_generation(int64_t generation) { generation_ = generation; }
  /// Logical ranks a peer may speak for; a message of another rank breaks its link.
  void set_ranks(wire::PeerId peer, const std::vector<int32_t>& ranks);

  [[nodiscard]] bool knows(wire::PeerId peer) const { return peers_.contains(peer); }
  [[nodiscard]] wire::PeerId id() const { return id_; }
  [[nodiscard]] int64_t generation() const { return generation_; }
  [[nodiscard]] size_t num_pending() const { return pending_.size(); }
  [[nodiscard]] const GatewayCounts& counts() const { return counts_; }

 private:
  struct LinkState {
    std::string address;
    bool accepted = false;
    wire::PeerId peer = wire::kNobody;  ///< nobody: has not introduced itself
  };
  struct PeerState {
    Peer peer;
    LinkId link = 0;
    std::set<int32_t> ranks;
  };
  struct Pending {
    wire::PeerId peer;
    uint64_t token;
    int64_t deadline_ms;
    std::string_view what;
  };

  Status check_hello(const wire::Hello& hello) const;
  void on_hello(LinkId link, const wire::Envelope& envelope, Effects& out);
  void on_welcome(LinkId link, const wire::Envelope& envelope, Effects& out);
  void on_peer_message(LinkId link, const LinkState& state, wire::Envelope envelope, Effects& out);
  void refuse(LinkId link, const Status& why, Effects& out);
  void lose(wire::PeerId peer, const Status& why, Effects& out);
  void push(LinkId link, const wire::Envelope& envelope, Effects& out);
  [[nodiscard]] bool may_speak(const PeerState& peer, const wire::Body& body) const;
  wire::Envelope make(wire::PeerId to, wire::Body body) const;

  GatewaySelf self_;
  wire::PeerId id_;
  wire::PeerId next_peer_ = wire::kCoordinatorPeer + 1;
  int64_t generation_ = 1;
  uint64_t next_request_ = 1;
  std::map<LinkId, LinkState> links_;
  std::map<wire::PeerId, PeerState> peers_;
  std::map<uint64_t, Pending> pending_;
  GatewayCounts counts_;
};

}  // namespace sgactor::actors
