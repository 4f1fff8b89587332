#pragma once
#include "transport/core/endpoint.h"
#include "transport/core/fabric.h"
#include "transport/core/link.h"
#include "transport/core/progress.h"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace sgactor::transport {

/// Which links carry a checksum with every frame; a wrong one breaks the link. The same at both
/// ends.
enum class FrameCheck : uint8_t {
  kOff = 0,
  kWires,  ///< those that are not in memory: headers, and payloads of up to 64 KiB
  kAll,    ///< every link, and all of each frame: reads large payloads twice
};

struct MessageOptions {
  /// Messages up to this many bytes travel at once; larger ones wait for the receiver's memory.
  size_t eager_bytes = 8192;
  /// A link serves another large send after this many bytes of one.
  size_t turn_bytes = size_t{1} << 20;
  /// Bytes of small messages that may wait for their receiver, a peer. More breaks the link.
  size_t max_unexpected_bytes = size_t{256} << 20;
  FrameCheck check_frames = FrameCheck::kWires;
  /// Of MessageTable::beat(): after that much time without a frame a mark is sent, and a peer that
  /// owes something is given up.
  int64_t mark_after_ns = 500'000'000;
  int64_t silent_after_ns = 5'000'000'000;
};

/// What the message tables of one fabric share. Completions are queued and delivered by a task, so
/// that nobody is called back from inside his own call.
class MessageContext {
 public:
  MessageContext(Progress& progress, const MessageOptions& options)
      : options(options), progress_(progress) {}

  /// Queues a completion.
  void complete(TransferSink* sink, uint64_t token, Status status);
  /// Delivers what is queued, now; what that queues in turn as well.
  void deliver();

  const MessageOptions options;
  Generation fence = 0;
  TransferId next_id = 1;
  FabricStats stats;

 private:
  struct Completion {
    TransferSink* sink;
    uint64_t token;
    Status status;
  };
  Progress& progress_;
  std::deque<Completion> completions_;
  bool scheduled_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

/// The messages with one peer: matches sends with receives and cuts them into frames. No thread, no
/// socket; the fabric hands frames in. Progress thread only.
///
/// Protocol. A small message goes as one kEager. For a large one the receiver sends kReady when its
/// memory is posted, the sender answers with kData frames in order; a sender that comes first says
/// kAnnounce, so that a receive of another size is refused rather than waited for. Data names the
/// receive by an id used once: what a cancelled receive has asked for never lands in another.
class MessageTable final : public Endpoint {
 public:
  /// `is_self`: both ends are here, and messages are copied from memory to memory.
  MessageTable(PeerId peer, bool is_self, MessageContext& context)
      : peer_(peer), is_self_(is_self), context_(context) {}

  [[nodiscard]] PeerId peer() const override { return peer_; }
  TransferId post_send(const Tag& tag, std::span<const std::byte> bytes, uint64_t token,
                       TransferSink& sink) override;
  TransferId post_recv(const Tag& tag, std::span<std::byte> bytes, uint64_t token,
                       TransferSink& sink) override;
  TransferId post_recv_to(const Tag& tag, size_t bytes, uint64_t token, TransferSink& sink,
                          PayloadSink& payload) override;
  void cancel(TransferId id) override;

  /// Frames go through `link` from now on.
  void open(Link* link);
  /// A frame that came. Errors: the peer broke the protocol (kCorruption, kOverloaded); the caller
  /// fails the peer.
  Status on_frame(const FrameHeader& header, std::span<const std::byte> payload);
  /// Memory of the posted receive whose next bytes are this frame's payload; empty if there is
  /// none. See LinkHandler::place_for.
  std::span<std::byte> place_for(const FrameHeader& header);
  /// Call every tenth of a second. A frame that was lost, with none behind it that would show it,
  /// is shown by a mark. Errors: kTimeout: the peer owes something and is silent; the caller fails
  /// the peer.
  Status beat(int64_t now_ns);
  /// Sends as much as the link takes.
  void pump();
  /// Ends everything with `why`, for ever; the link is not touched again.
  void fail(const Status& why);
  /// Ends what is older than the context's fence.
  void drop_stale();
  [[nodiscard]] size_t num_pending() const { return transfers_.size(); }

 private:
  struct Transfer {
    Tag tag;
    bool is_send = false;
    bool streaming = false;  // a send that waits for the link's turn
    std::byte* data = nullptr;
    size_t bytes = 0;
    size_t offset = 0;
    uint64_t receive_id = 0;  // of a send: the peer's
    uint64_t token = 0;
    TransferSink* sink = nullptr;
    PayloadSink* payload = nullptr;  // in place of `data`
  };
  struct Ready {
    uint64_t receive_id;
    uint64_t bytes;
  };
  struct Control {
    FrameHeader header;
    TransferId eager;  // 0: a frame without payload
  };
  using Transfers = std::unordered_map<TransferId, Transfer>;
  template <class T>
  using ByTag = std::unordered_map<Tag, T, TagHash>;

  Transfers::iterator add(const Tag& tag, bool is_send, const std::byte* data, size_t bytes,
                          uint64_t token, TransferSink& sink);
  Status check_post(const Tag& tag) const;
  TransferId post_recv(Transfers::iterator it);
  void deliver(Transfer& recv, std::span<const std::byte> bytes);
  void stop_streaming(TransferId id);
  void settle_lent();
  void finish(Transfers::iterator it, Status status);
  void start_self_send(Transfers::iterator it);
  void start_self_recv(Transfers::iterator it);
  void join_self(Transfers::iterator send, Transfers::iterator recv);
  void start_send(Transfers::iterator it);
  void start_recv(Transfers::iterator it);
  void begin_streaming(Transfers::iterator it, const Ready& ready);
  void queue_control(FrameKind kind, const Tag& tag, uint64_t value, uint64_t receive_id,
                     TransferId eager = 0);
  bool send_control();
  bool send_chunk();
  bool send_frame(FrameHeader header, std::span<const std::byte> payload);
  /// What of a payload is in the checksum.
  [[nodiscard]] std::span<const std::byte> checked(std::span<const std::byte> payload) const;
  Status on_eager(const FrameHeader& header, std::span<const std::byte> payload);
  Status on_announce(const FrameHeader& header);
  Status on_ready(const FrameHeader& header);
  Status on_data(const FrameHeader& header, std::span<const std::byte> payload);
  Status on_refused(const FrameHeader& header);

  const PeerId peer_;
  const bool is_self_;
  MessageContext& context_;
  Link* link_ = nullptr;
  Status failure_;  // not ok: failed for ever
  uint64_t next_sent_ = 0;
  uint64_t next_received_ = 0;
  bool checks_frames_ = false;
  bool mark_queued_ = false;
  uint64_t marked_ = 0;    // next_sent_ behind the last mark
  int64_t marked_ns_ = 0;  // when it was queued
  uint64_t heard_ = 0;     // next_received_ at the last beat
  int64_t heard_ns_ = 0;   // when it rose last, or nothing was owed

  Transfers transfers_;
  ByTag<TransferId> receives_;  // posted, not begun
  ByTag<TransferId> sends_;     // large (or to self), not begun
  ByTag<Ready> readies_;        // large receives of the peer that no send has met
  ByTag<uint64_t> announced_;   // large sends of the peer that no receive has met
  ByTag<std::vector<std::byte>> unexpected_;
  size_t unexpected_bytes_ = 0;
  std::deque<Control> control_;
  std::deque<TransferId> streaming_;
  size_t turn_bytes_ = 0;
  TransferId lent_ = 0;     // the send whose memory the link reads
  TransferId filling_ = 0;  // the receive whose memory the link writes
  std::vector<std::byte> aligned_;
};

}  // namespace sgactor::transport
