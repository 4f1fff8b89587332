#include "transport/core/handshake.h"

#include <cstring>

namespace sgactor::transport {
namespace {

struct Hello {
  uint64_t magic = 0;
  uint32_t version = 0;
  PeerId peer = 0;
  std::array<std::byte, 32> nonce{};
};
static_assert(sizeof(Hello) == 48 && sizeof(Hello) <= Handshake::kMaxPayload);

// Reads differently on a machine of another byte order, so that one is refused.
constexpr uint64_t kMagic = 0x31524F5443414753ULL;  // "SGACTOR1"
constexpr uint32_t kVersion = 1;

Status stranger(const char* what) { return corruption(what); }

// Takes the same time wherever the digests differ.
bool equal_digests(std::span<const std::byte> a, const Digest& b) {
  if (a.size() != b.size()) return false;
  std::byte difference{0};
  for (size_t i = 0; i < b.size(); ++i) difference |= a[i] ^ b[i];
  return difference == std::byte{0};
}

}  // namespace

Handshake::Handshake(Role role, PeerId self, std::optional<PeerId> expected,
                     const JobSecret& secret, const KeyedHash& hash)
    : role_(role), self_(self), expected_(expected), secret_(secret), hash_(hash) {
  hash_.random(nonce_);
}

Handshake::Frame Handshake::hello() const {
  Hello hello;
  hello.magic = kMagic;
  hello.version = kVersion;
  hello.peer = self_;
  hello.nonce = nonce_;
  Frame frame{FrameKind::kHello, std::vector<std::byte>(sizeof(Hello))};
  std::memcpy(frame.payload.data(), &hello, sizeof(Hello));
  return frame;
}

Digest Handshake::proof_of(Role role) const {
  const bool mine = role == role_;
  std::array<std::byte, 16 + 4 + 4 + 4 + 32 + 32> message{};
  std::byte* out = message.data();
  const auto put = [&out](const void* bytes, size_t n) {
    std::memcpy(out, bytes, n);
    out += n;
  };
  const auto role_word = static_cast<uint32_t>(role);
  put("sgactor link 001", 16);
  put(&role_word, 4);
  put(mine ? &self_ : &peer_, 4);
  put(mine ? &peer_ : &self_, 4);
  put(mine ? &nonce_ : &peer_nonce_, 32);
  put(mine ? &peer_nonce_ : &nonce_, 32);
  return hash_.hash(secret_, message);
}

Result<std::optional<Handshake::Frame>> Handshake::on_frame(FrameKind kind,
                                                            std::span<const std::byte> payload) {
  const auto proof = [this] {
    const Digest digest = proof_of(role_);
    return std::optional<Frame>(
        Frame{FrameKind::kProof, std::vector<std::byte>(digest.begin(), digest.end())});
  };
  if (kind == FrameKind::kHello && !has_hello_) {
    SGA_TRY(take_hello(payload));
    // The acceptor has said hello already, on opening; it proves itself only to whom has done so.
    return role_ == Role::kInitiator ? proof() : std::optional<Frame>();
  }
  if (kind == FrameKind::kProof && has_hello_ && !done_) {
    SGA_TRY(take_proof(payload));
    done_ = true;
    return role_ == Role::kAcceptor ? proof() : std::optional<Frame>();
  }
  return stranger("a frame out of turn before the proof");
}

Status Handshake::take_hello(std::span<const std::byte> payload) {
  Hello hello;
  if (payload.size() != sizeof(hello)) return stranger("a hello of another size");
  std::memcpy(&hello, payload.data(), sizeof(hello));
  if (hello.magic != kMagic || hello.version != kVersion) {
    return stranger("a hello of another program or version");
  }
  if (hello.peer == self_) return stranger("a hello with this process' own id");
  if (expected_ && *expected_ != hello.peer) return stranger("a hello of another peer");
  peer_ = hello.peer;
  peer_nonce_ = hello.nonce;
  has_hello_ = true;
  return {};
}

Status Handshake::take_proof(std::span<const std::byte> payload) {
  const Role other = role_ == Role::kInitiator ? Role::kAcceptor : Role::kInitiator;
  if (!equal_digests(payload, proof_of(other)))
    return stranger("a wrong proof of the job's secret");
  return {};
}

}  // namespace sgactor::transport
