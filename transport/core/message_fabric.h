#pragma once
#include "transport/core/fabric.h"
#include "transport/core/faulty_link.h"
#include "transport/core/handshake.h"
#include "transport/core/link.h"
#include "transport/core/message_table.h"

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace sgactor::transport {

struct FabricOptions {
  JobSecret secret{};
  /// Must outlive the fabric. Null: no proof is asked for; only between fabrics of one process.
  const KeyedHash* keyed_hash = nullptr;
  int64_t connect_timeout_ns = 10'000'000'000;
  /// A link that has not proved itself by then is closed.
  int64_t handshake_timeout_ns = 2'000'000'000;
  /// Links that have not proved themselves; one more pushes the oldest out. Bounds the memory that
  /// strangers take.
  size_t max_unproved_links = 64;
  MessageOptions messages;
  /// How often MessageTable::beat() is called; 0: never.
  int64_t beat_ns = 0;
  FaultScript faults;
};

/// A fabric over links: peers, handshakes, completions, everything but how a link is made, which a
/// derived class says. The process of the lower id opens the link, the other one waits for it. A
/// link that is lost is made again by the next connect(), with nothing of the old one in it.
class MessageFabric : public Fabric, protected LinkHandler {
 public:
  ~MessageFabric() override;
  [[nodiscard]] PeerId self() const override { return self_; }
  [[nodiscard]] Progress& progress() override { return *progress_; }
  void connect(PeerId peer, std::string address, ConnectDone done) override;
  [[nodiscard]] Endpoint& endpoint(PeerId peer) override;
  void abort_peer(PeerId peer, const Status& why) override;
  void fence(Generation generation) override;
  void add_peer_lost(PeerLost observer) override;
  [[nodiscard]] FabricStats stats() const override { return context_.stats; }

 protected:
  MessageFabric(PeerId self, Progress* progress, FabricOptions options);

  /// Begins to open a link; link_opened or open_failed follows, now or later. Progress thread.
  virtual void open_link(PeerId peer, const std::string& address) = 0;
  /// A link is there: `expected` where this process opened it, none where a stranger came.
  /// Progress thread.
  void link_opened(std::unique_ptr<Link> link, std::optional<PeerId> expected);
  /// Tried again until the connect's time is over, unless the peer's process is `gone`.
  void open_failed(PeerId peer, const Status& why, bool gone);
  /// As link_opened without a proof, for links of one process.
  void link_trusted(PeerId peer, std::unique_ptr<Link> link);
  /// A derived class calls it first in its destructor, after its thread has stopped: closes all
  /// links and ends all transfers.
  void shut_down();
  /// A stranger was turned away.
  void count_refused(const Status& why);
  /// Runs `task` on the progress thread if this object lives then.
  void run_inside(Progress::Task task);

  // LinkHandler
  void on_frame(Link& link, const FrameHeader& header, std::span<const std::byte> payload) override;
  std::span<std::byte> place_for(Link& link, const FrameHeader& header) override;
  void on_writable(Link& link) override;
  void on_closed(Link& link, const Status& why) override;

 private:
  enum class State : uint8_t { kIdle = 0, kConnecting, kOpen, kGone };
  struct Peer {
    State state = State::kIdle;
    std::unique_ptr<MessageTable> messages;
    std::unique_ptr<Link> link;
    std::string address;
    std::vector<ConnectDone> waiting;
    uint64_t attempt = 0;  // of connect: a time-out ends only its own
    bool barred = false;   // by abort_peer
  };
  /// A link that has not proved itself.
  struct Guest {
    std::unique_ptr<Link> link;
    Handshake handshake;
    std::optional<PeerId> expected;
    uint64_t number = 0;  // order of arrival
    int64_t due_ns = 0;   // of its proof
    std::optional<Handshake::Frame> unsent;
  };

  Peer& peer_of(PeerId peer);
  void connect_inside(PeerId peer, std::string address, ConnectDone done);
  void time_out_connect(PeerId peer, uint64_t attempt);
  void open_again_later(PeerId peer);
  void guest_frame(Guest& guest, const FrameHeader& header, std::span<const std::byte> payload);
  void send_to_guest(Guest& guest, const Handshake::Frame& frame);
  void refuse_guest(Link& link, const Status& why);
  void evict_oldest_guest();
  void sweep_guests_later();
  void sweep_guests();
  void admit(PeerId peer, std::unique_ptr<Link> link);
  void lose(PeerId peer, const Status& why, bool tell);
  void begin_again(PeerId id, Peer& peer);
  void beat_later();
  void beat();
  void retire(std::unique_ptr<Link> link);

  const PeerId self_;
  Progress* progress_;
  const FabricOptions options_;
  MessageContext context_;
  std::map<PeerId, Peer> peers_;
  std::unordered_map<Link*, PeerId> peer_of_link_;
  std::unordered_map<Link*, Guest> guests_;
  std::vector<std::unique_ptr<Link>> retired_;  // closed; one may be in a callback
  uint64_t num_guests_ever_ = 0;
  bool sweep_posted_ = false;
  bool beat_posted_ = false;
  std::vector<PeerLost> peer_lost_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace sgactor::transport
