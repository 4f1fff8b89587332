#pragma once
#include "transport/core/event_loop.h"
#include "transport/core/link.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace sgactor::transport {

struct UcxOptions {
  /// UCX_TLS of this worker: "tcp"; "rc,tcp" and the like where there is RDMA.
  std::string transports = "tcp";
  /// UCX_NET_DEVICES: loopback unless told otherwise.
  std::string devices = "lo";
};

/// A UCP worker in wake-up mode, driven by an event loop, and the links over it.
///
/// Frames are eager active messages: the bytes of a frame lie in UCX's own memory when it comes and
/// are copied from there, and are copied into ours before they are sent. UCX never knows the memory
/// of a message, so that an abort leaves nothing behind that could still be written (a posted tag
/// receive of UCX, once matched, can neither be cancelled nor ends when its peer dies).
///
/// Over TCP a UCX worker listens on a port of its own, and what comes there reaches UCX's parser
/// before our handshake. UCX 1.13.1 is not safe from it: random bytes behind a word of its protocol
/// made libucp read a wild pointer within a hundred connections, and the process died. So UCX over
/// TCP is off unless asked for, and only for a network that strangers cannot reach; addresses go
/// over the authenticated control plane only. Progress thread only, but for address().
class UcxWorker final : private Poller {
 public:
  /// A link that a peer has opened and that nobody has asked for here.
  using Accept = std::function<void(std::unique_ptr<Link>)>;

  /// Before the loop starts, or inside. Errors: kUnsupported: UCX cannot do `options` here.
  static Result<std::unique_ptr<UcxWorker>> create(const UcxOptions& options, uint64_t self,
                                                   EventLoop& loop, Accept accept);
  /// After every link is destroyed, with the loop stopped or inside.
  ~UcxWorker() override;
  /// Opaque; for open() of others.
  [[nodiscard]] const std::string& address() const { return address_; }
  /// Errors: kDisconnected.
  Result<std::unique_ptr<Link>> open(std::string_view address);
  /// Version and transports, for listings: "UCX 1.13.1, tcp".
  [[nodiscard]] std::string description() const;

 private:
  friend class UcxLink;
  struct Rep;
  explicit UcxWorker(std::unique_ptr<Rep> rep);
  bool poll() override;
  bool arm() override;

  std::unique_ptr<Rep> rep_;
  std::string address_;
};

}  // namespace sgactor::transport
