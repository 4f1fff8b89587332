#pragma once
#include "transport/core/link.h"
#include "transport/core/progress.h"

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace sgactor::transport {

class LinkFaults;

/// Faults of the links of one fabric. The handshake passes untouched.
struct FaultScript {
  enum class Action : uint8_t { kDrop = 0, kDuplicate, kCorrupt, kDelay, kDisconnect };
  struct Rule {
    PeerId peer = 0;     ///< of frames to this peer
    uint64_t frame = 0;  ///< that one, counted from 0
    Action action = Action::kDrop;
    int64_t delay_ns = 0;  ///< of kDelay: this frame and so those behind it
  };
  std::vector<Rule> rules;
  /// Each frame is held back for a random time below this; frames of a link stay in order.
  int64_t max_random_delay_ns = 0;
  uint64_t seed = 0;
  /// Those that are asked for while the links are up; null: none.
  std::shared_ptr<LinkFaults> live;
  [[nodiscard]] bool empty() const {
    return rules.empty() && max_random_delay_ns == 0 && live == nullptr;
  }
};

/// Faults to come, of a fabric that runs. Thread-safe.
class LinkFaults {
 public:
  struct Fault {
    FaultScript::Action action = FaultScript::Action::kDrop;
    int64_t delay_ns = 0;  ///< of kDelay
    int64_t skip = 0;      ///< frames with a payload that pass before it
  };
  /// Befalls the next frame with a payload that goes to `peer`, or one behind it. Those that are
  /// armed for one peer befall one after the other.
  void arm(PeerId peer, const Fault& fault);
  /// Nothing passes between this process and `peer` until then, in either direction.
  void cut(PeerId peer, int64_t until_ns);

  /// Whether there may be something for `peer`. Cheap where there is nothing for anybody.
  [[nodiscard]] bool any(PeerId peer) const;
  std::optional<Fault> take(PeerId peer);
  [[nodiscard]] bool is_cut(PeerId peer, int64_t now_ns) const;

 private:
  std::atomic<bool> used_{false};
  mutable std::mutex mutex_;
  std::map<PeerId, std::deque<Fault>> armed_;
  std::map<PeerId, int64_t> cut_until_ns_;
};

/// Decorates a link with the faults of `script` on what is sent. Owns `inner`.
class FaultyLink final : public Link, private LinkHandler {
 public:
  FaultyLink(std::unique_ptr<Link> inner, PeerId self, PeerId peer, FaultScript script,
             Progress& progress);
  ~FaultyLink() override;

  [[nodiscard]] bool in_memory() const override { return inner_->in_memory(); }
  [[nodiscard]] size_t max_payload() const override { return inner_->max_payload(); }
  bool try_send(const FrameHeader& header, std::span<const std::byte> payload) override;
  bool try_lend(const FrameHeader& header, std::span<const std::byte> payload) override;
  [[nodiscard]] bool is_lent() const override { return inner_->is_lent(); }
  void keep_lent() override { inner_->keep_lent(); }
  void forget_place() override { inner_->forget_place(); }
  void flush() override { inner_->flush(); }
  void close() override;

 private:
  struct Held {
    int64_t due_ns;
    FrameHeader header;
    std::vector<std::byte> payload;
  };
  void on_frame(Link& link, const FrameHeader& header, std::span<const std::byte> payload) override;
  std::span<std::byte> place_for(Link& link, const FrameHeader& header) override;
  void on_writable(Link& link) override;
  void on_closed(Link& link, const Status& why) override;
  /// Nothing is to befall the next frame, and none waits before it.
  [[nodiscard]] bool passes() const;
  [[nodiscard]] bool is_cut() const;
  void hold(const FrameHeader& header, std::span<const std::byte> payload, int64_t due_ns);
  void release();
  void disconnect();

  std::unique_ptr<Link> inner_;
  const PeerId self_;
  const PeerId peer_;
  const FaultScript script_;
  Progress& progress_;
  uint64_t num_frames_ = 0;
  std::deque<Held> held_;
  size_t held_bytes_ = 0;
  int64_t last_due_ns_ = 0;
  bool refused_ = false;
  bool closed_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace sgactor::transport
