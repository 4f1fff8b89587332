#include "transport/ucx/tcp_link.h"

#include "transport/core/handshake.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

namespace sgactor::transport {
namespace {

constexpr size_t kHeaderBytes = sizeof(FrameHeader);
// Of a link that has not proved itself: a hello and a proof.
constexpr size_t kGuestBuffer = 2 * (kHeaderBytes + Handshake::kMaxPayload);
constexpr size_t kBuffer = size_t{16} << 10;
// Smaller payloads are gathered rather than lent.
constexpr size_t kLendBytes = size_t{16} << 10;
constexpr size_t kMaxUnsent = size_t{128} << 10;
// Bytes read before other links and tasks have their turn.
constexpr size_t kBytesPerTurn = size_t{1} << 20;
// Of the socket, each way; the system doubles it. Left to itself it grows to several MiB, which no
// longer fit a core's cache and cost a tenth of the processor time of a large all-reduce; this much
// keeps 40 Gb/s under way over 0.1 ms.
constexpr int kSocketBytes = 512 << 10;

Status system_error(const char* what) {
  return internal_error(fmt::format("{}: {}", what, std::strerror(errno)));
}

Status gone(int error) {
  return make_status(Code::kDisconnected, fmt::format("connection: {}", std::strerror(error)));
}

bool set_option(int fd, int level, int name, int value) {
  return setsockopt(fd, level, name, &value, sizeof(value)) == 0;
}

bool set_options(int fd) {
  return set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1) &&
         set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1) &&
         set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 5) &&
         set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 2) &&
         set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 5) &&
         set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, TcpLink::kSilentHostMs);
}

}  // namespace

Result<std::unique_ptr<TcpLink>> TcpLink::create(OwnedFd socket, EventLoop& loop) {
  if (!set_options(socket.get())) return system_error("setsockopt");
  std::unique_ptr<TcpLink> link(new TcpLink(std::move(socket), loop));
  TcpLink* raw = link.get();
  SGA_TRY(loop.add_fd(raw->socket_.get(), raw->watched_,
                      [raw](uint32_t events) { raw->on_events(events); }));
  return link;
}

TcpLink::TcpLink(OwnedFd socket, EventLoop& loop)
    : socket_(std::move(socket)), loop_(loop), watched_(EPOLLIN), in_(kGuestBuffer) {}

TcpLink::~TcpLink() { close(); }

void TcpLink::close() {
  if (std::exchange(closed_, true)) return;
  alive_.reset();
  loop_.remove_fd(socket_.get());
  socket_ = OwnedFd();
  lent_ = {};
  payload_ = {};
}

void TcpLink::end(const Status& why) {
  close();
  handler_->on_closed(*this, why);
}

void TcpLink::set_proved() {
  proved_ = true;
  in_.resize(kBuffer);
  // If the system refuses, the link is slower and no less right.
  (void)set_option(socket_.get(), SOL_SOCKET, SO_SNDBUF, kSocketBytes);
  (void)set_option(socket_.get(), SOL_SOCKET, SO_RCVBUF, kSocketBytes);
}

void TcpLink::on_events(uint32_t events) {
  // Reading first: it tells why a connection has failed.
  if ((events & ~static_cast<uint32_t>(EPOLLOUT)) != 0) read_some();
  if (!closed_ && (events & EPOLLOUT) != 0) on_room();
}

// Reading.

void TcpLink::read_some() {
  for (size_t total = 0; !closed_ && total < kBytesPerTurn;) {
    std::array<iovec, 2> parts{
        iovec{payload_.data() + (payload_.size() - missing_), missing_},
        iovec{in_.data() + in_end_, in_.size() - in_end_},
    };
    const bool large = !payload_.empty();
    const size_t asked = (large ? missing_ : 0) + parts[1].iov_len;
    const ssize_t n =
        large ? readv(socket_.get(), parts.data(), 2) : readv(socket_.get(), parts.data() + 1, 1);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (n == 0)
      return end(make_status(Code::kDisconnected, "the other side has closed the connection"));
    if (n < 0) return end(gone(errno));
    const auto got = static_cast<size_t>(n);
    const size_t of_payload = large ? std::min(got, missing_) : 0;
    in_end_ += got - of_payload;
    if (large) take_payload(of_payload);
    if (!closed_) parse();
    if (got < asked) return;
    total += got;
  }
}

void TcpLink::take_payload(size_t bytes) {
  missing_ -= bytes;
  if (missing_ > 0) return;
  handler_->on_frame(*this, large_, std::exchange(payload_, {}));
}

void TcpLink::parse() {
  while (!closed_ && payload_.empty() && in_end_ - in_begin_ >= kHeaderBytes) {
    FrameHeader header;
    std::memcpy(&header, in_.data() + in_begin_, kHeaderBytes);
    const size_t bytes = header.payload_bytes;
    if (bytes > (proved_ ? kMaxPayload : Handshake::kMaxPayload)) {
      return end(corruption(proved_ ? "a frame larger than any" : "garbage in place of a hello"));
    }
    if (kHeaderBytes + bytes > in_.size()) {
      in_begin_ += kHeaderBytes;
      if (!begin_large(header)) return;
      continue;
    }
    if (in_end_ - in_begin_ < kHeaderBytes + bytes) break;
    const std::span<const std::byte> payload(in_.data() + in_begin_ + kHeaderBytes, bytes);
    in_begin_ += kHeaderBytes + bytes;
    handler_->on_frame(*this, header, payload);
  }
  if (in_begin_ == 0) return;
  std::memmove(in_.data(), in_.data() + in_begin_, in_end_ - in_begin_);
  in_end_ -= in_begin_;
  in_begin_ = 0;
}

// Reads on into the place of the payload. False if the link has been closed meanwhile.
bool TcpLink::begin_large(const FrameHeader& header) {
  large_ = header;
  payload_ = handler_->place_for(*this, header);
  placed_ = !payload_.empty();
  if (!placed_) {
    own_.resize(std::max<size_t>(own_.size(), header.payload_bytes));
    payload_ = std::span(own_).first(header.payload_bytes);
  }
  missing_ = payload_.size();
  const size_t here = std::min(in_end_ - in_begin_, missing_);
  std::memcpy(payload_.data(), in_.data() + in_begin_, here);
  in_begin_ += here;
  take_payload(here);
  return !closed_;
}

void TcpLink::forget_place() {
  if (payload_.empty() || !std::exchange(placed_, false)) return;
  own_.resize(std::max(own_.size(), payload_.size()));
  // The frame stays whole: its checksum is of all of it.
  std::memcpy(own_.data(), payload_.data(), payload_.size() - missing_);
  payload_ = std::span(own_).first(payload_.size());
}

// Writing.

bool TcpLink::refuse() {
  refused_ = true;
  watch();
  return false;
}

bool TcpLink::try_send(const FrameHeader& header, std::span<const std::byte> payload) {
  if (closed_ || broken_) return true;
  if (is_lent() || unsent_bytes() >= kMaxUnsent) return refuse();
  if (out_begin_ >= kMaxUnsent) {
    out_.erase(out_.begin(), out_.begin() + static_cast<ptrdiff_t>(std::exchange(out_begin_, 0)));
  }
  const auto* head = reinterpret_cast<const std::byte*>(&header);
  out_.insert(out_.end(), head, head + kHeaderBytes);
  out_.insert(out_.end(), payload.begin(), payload.end());
  return true;
}

bool TcpLink::try_lend(const FrameHeader& header, std::span<const std::byte> payload) {
  if (payload.size() < kLendBytes) return try_send(header, payload);
  if (!try_send(header, {})) return false;
  if (closed_ || broken_) return true;
  lent_ = payload;
  write_some();
  return true;
}

void TcpLink::keep_lent() {
  out_.insert(out_.end(), lent_.begin(), lent_.end());
  lent_ = {};
}

void TcpLink::flush() {
  if (!closed_ && !broken_ && unsent_bytes() > 0 && (watched_ & EPOLLOUT) == 0) write_some();
}

void TcpLink::write_some() {
  while (unsent_bytes() > 0 || is_lent()) {
    std::array<iovec, 2> parts{
        iovec{out_.data() + out_begin_, unsent_bytes()},
        iovec{const_cast<std::byte*>(lent_.data()), lent_.size()},  // NOLINT: only read
    };
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = parts.size();
    const ssize_t n = sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOTCONN)) break;
    if (n < 0) return fail_later(errno);
    drop_written(static_cast<size_t>(n));
  }
  watch();
}

void TcpLink::drop_written(size_t bytes) {
  const size_t of_out = std::min(bytes, unsent_bytes());
  out_begin_ += of_out;
  lent_ = lent_.subspan(bytes - of_out);
  if (unsent_bytes() > 0) return;
  out_.clear();
  out_begin_ = 0;
}

void TcpLink::watch() {
  const bool waits = refused_ || unsent_bytes() > 0 || is_lent();
  const uint32_t events = EPOLLIN | (waits ? static_cast<uint32_t>(EPOLLOUT) : 0U);
  if (events == watched_) return;
  if (loop_.change_fd(socket_.get(), events).ok()) watched_ = events;
}

void TcpLink::on_room() {
  const bool was_waited_for = refused_ || is_lent();
  write_some();
  if (broken_ || !was_waited_for || is_lent() || unsent_bytes() >= kMaxUnsent) return;
  refused_ = false;
  watch();
  handler_->on_writable(*this);
}

// A caller of try_send is not called back from inside it.
void TcpLink::fail_later(int error) {
  broken_ = true;
  out_.clear();
  out_begin_ = 0;
  lent_ = {};
  loop_.post([this, error, alive = std::weak_ptr<bool>(alive_)] {
    if (alive.lock()) end(gone(error));
  });
}

}  // namespace sgactor::transport
