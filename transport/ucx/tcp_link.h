#pragma once
#include "transport/core/event_loop.h"
#include "transport/core/link.h"
#include "transport/ucx/owned_fd.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace sgactor::transport {

/// Frames over a TCP connection, in plain text behind the handshake's proof.
///
/// Large payloads are written by the system straight from the sender's memory and read straight
/// into the posted receive; small ones gather in a buffer. Until set_proved() a link takes no
/// payload above Handshake::kMaxPayload and holds a few hundred bytes of its own; then at most two
/// frames of kMaxPayload. A peer's host that is silent for kSilentHostMs counts as gone.
class TcpLink final : public Link {
 public:
  static constexpr size_t kMaxPayload = size_t{256} << 10;
  static constexpr int kSilentHostMs = 15'000;

  /// `socket`: non-blocking, connected or on the way to it. Errors: kInternal.
  static Result<std::unique_ptr<TcpLink>> create(OwnedFd socket, EventLoop& loop);
  ~TcpLink() override;

  [[nodiscard]] size_t max_payload() const override { return kMaxPayload; }
  bool try_send(const FrameHeader& header, std::span<const std::byte> payload) override;
  bool try_lend(const FrameHeader& header, std::span<const std::byte> payload) override;
  [[nodiscard]] bool is_lent() const override { return !lent_.empty(); }
  void keep_lent() override;
  void forget_place() override;
  void set_proved() override;
  void flush() override;
  void close() override;

 private:
  TcpLink(OwnedFd socket, EventLoop& loop);
  void on_events(uint32_t events);
  void read_some();
  void take_payload(size_t bytes);
  void parse();
  bool begin_large(const FrameHeader& header);
  void write_some();
  void on_room();
  void drop_written(size_t bytes);
  void watch();
  bool refuse();
  void fail_later(int error);
  void end(const Status& why);
  [[nodiscard]] size_t unsent_bytes() const { return out_.size() - out_begin_; }

  OwnedFd socket_;
  EventLoop& loop_;
  uint32_t watched_;  // epoll events
  bool proved_ = false;
  bool refused_ = false;
  bool broken_ = false;  // writing has failed: the end is posted
  bool closed_ = false;

  std::vector<std::byte> out_;  // frames taken and not written, from out_begin_ on
  size_t out_begin_ = 0;
  std::span<const std::byte> lent_;  // follows out_

  std::vector<std::byte> in_;  // read and not parsed: [in_begin_, in_end_)
  size_t in_begin_ = 0;
  size_t in_end_ = 0;
  FrameHeader large_;             // the frame whose payload is being read
  std::span<std::byte> payload_;  // of it, whole; empty: none
  size_t missing_ = 0;            // bytes of it
  bool placed_ = false;           // it lies in the receiver's memory
  std::vector<std::byte> own_;    // payloads that have no such place

  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

/// "10.0.0.1:41234", "[::1]:41234": an address in numbers and a port.
/// A socket that listens there, non-blocking. Port 0: any. Errors: kInvalidArgument: not numbers;
/// kUnsupported naming the place: in use, or not this host's.
Result<OwnedFd> listen_tcp(const std::string& place);
/// Where it listens, in the same form.
Result<std::string> place_of(const OwnedFd& listener);
/// A socket on its way to `place`, non-blocking. Errors: kInvalidArgument: not numbers;
/// kDisconnected.
Result<OwnedFd> connect_tcp(const std::string& place);

}  // namespace sgactor::transport
