#pragma once
#include "graph/base/status.h"
#include "transport/core/keyed_hash.h"
#include "transport/core/link.h"
#include "transport/core/tag.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace sgactor::transport {

/// Mutual proof that both ends of a new link know the job's secret. A pure state machine:
///
///   initiator -> hello(id, nonce)     acceptor -> hello(id, nonce)
///   initiator -> proof = H(secret, role, both ids, both nonces)
///   acceptor  -> proof, only after it has verified the initiator's
///
/// A stranger therefore learns nothing but a nonce, and a proof fits one link, one direction and
/// one role. It does not encrypt: whoever can change bytes on the way afterwards is not kept out.
class Handshake {
 public:
  enum class Role : uint8_t { kInitiator = 0, kAcceptor };
  /// Largest payload of a frame of the handshake.
  static constexpr size_t kMaxPayload = 64;

  struct Frame {
    FrameKind kind;
    std::vector<std::byte> payload;
  };

  /// `expected`: the peer that the initiator means to reach. `hash` must outlive it.
  Handshake(Role role, PeerId self, std::optional<PeerId> expected, const JobSecret& secret,
            const KeyedHash& hash);

  /// The first frame to send.
  [[nodiscard]] Frame hello() const;
  /// Takes a frame; returns the one to answer with, if any. Errors: kCorruption: not a process of
  /// this job, or not in its turn; the link must be closed.
  Result<std::optional<Frame>> on_frame(FrameKind kind, std::span<const std::byte> payload);
  /// The other end has proved itself (and we have sent our proof).
  [[nodiscard]] bool done() const { return done_; }
  /// Pre: done().
  [[nodiscard]] PeerId peer() const { return peer_; }

 private:
  using Nonce = std::array<std::byte, 32>;
  [[nodiscard]] Digest proof_of(Role role) const;
  Status take_hello(std::span<const std::byte> payload);
  Status take_proof(std::span<const std::byte> payload);

  Role role_;
  PeerId self_;
  std::optional<PeerId> expected_;
  JobSecret secret_;
  const KeyedHash& hash_;
  Nonce nonce_{};
  Nonce peer_nonce_{};
  PeerId peer_ = 0;
  bool has_hello_ = false;
  bool done_ = false;
};

}  // namespace sgactor::transport
