#pragma once
#include "actors/runtime/tls_identity.h"
#include "graph/base/status.h"

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>

struct ssl_ctx_st;
struct ssl_st;

namespace sgactor::actors {

/// What all TLS links of a process share: identity and rules. TLS 1.3 alone, the other side must
/// show a certificate of the job's CA; of the side that listens, one issued for that.
class TlsContext {
 public:
  /// Errors: kInvalidArgument if CA, certificate or key is missing, malformed or does not match:
  /// there is no TLS without all three.
  static Result<std::shared_ptr<TlsContext>> create(const TlsIdentity& identity);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;
  [[nodiscard]] ssl_ctx_st* get() const { return context_; }

 private:
  explicit TlsContext(ssl_ctx_st* context) : context_(context) {}
  ssl_ctx_st* context_;
};

/// One connection: handshake, frames in and out over a socket that never blocks. No thread, no
/// callback; one caller at a time. Owns the socket.
class TlsLink {
 public:
  TlsLink(const TlsContext& context, int fd, bool accepts, std::string address, int64_t now_ms);
  ~TlsLink();
  TlsLink(const TlsLink&) = delete;
  TlsLink& operator=(const TlsLink&) = delete;

  /// Goes on with the handshake and with writing as far as the socket lets it. Errors:
  /// kDisconnected, kCorruption (the other side is not of the job, or speaks no TLS).
  Status pump();
  /// True and the frame if a whole one has come. Errors: kCorruption for one longer than `limit`;
  /// kDisconnected.
  Result<bool> read_frame(size_t limit, std::string& out);
  void queue_frame(std::string_view bytes);

  [[nodiscard]] size_t queued_bytes() const { return queued_bytes_; }
  /// The handshake is over.
  [[nodiscard]] bool open() const { return open_; }
  /// True once, after the handshake.
  bool just_opened();
  [[nodiscard]] bool told_open() const { return told_open_; }
  [[nodiscard]] bool wants_write() const { return wants_write_; }
  [[nodiscard]] bool accepts() const { return accepts_; }
  [[nodiscard]] const std::string& address() const { return address_; }
  [[nodiscard]] int fd() const { return fd_; }

  // Kept here for the hub.
  bool admitted = false;
  bool closing = false;
  int64_t deadline_ms = 0;  ///< 0: none
  int64_t last_heard_ms = 0;
  int64_t last_sent_ms = 0;
  int64_t num_frames = 0;
  uint32_t watched = 0;  ///< events that epoll watches

 private:
  Status failed(int rc, const char* when);
  Status shake_hands();
  Status write_some();

  ssl_st* ssl_;
  int fd_;
  bool accepts_;
  std::string address_;
  bool open_ = false;
  bool told_open_ = false;
  bool wants_write_ = false;
  std::string incoming_;  // of the frame under way, its length first
  std::deque<std::string> outgoing_;
  size_t sent_of_first_ = 0;
  size_t queued_bytes_ = 0;
};

}  // namespace sgactor::actors
