#include "transport/ucx/shm_link.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

namespace sgactor::transport {
namespace {

constexpr size_t kMemoryBytes = 2 * sizeof(ShmRingMemory);
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
// Frames read before other links and tasks have their turn.
constexpr int kFramesPerTurn = 16;

Status system_error(const char* what) {
  return internal_error(fmt::format("{}: {}", what, std::strerror(errno)));
}

}  // namespace

Result<OwnedFd> ShmLink::create_memory() {
  OwnedFd memory(memfd_create("sgactor-link", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (memory.get() < 0) return system_error("memfd_create");
  if (ftruncate(memory.get(), kMemoryBytes) != 0) return system_error("ftruncate");
  if (fcntl(memory.get(), F_ADD_SEALS, kSeals) != 0) return system_error("sealing");
  return memory;
}

Result<std::unique_ptr<ShmLink>> ShmLink::create(Side side, OwnedFd socket, OwnedFd memory,
                                                 EventLoop& loop) {
  struct stat info {};
  if (fstat(memory.get(), &info) != 0 || info.st_size != static_cast<off_t>(kMemoryBytes)) {
    return corruption("shared memory of another size");
  }
  if (fcntl(memory.get(), F_GET_SEALS) != kSeals) {
    return corruption("shared memory that can change its size");
  }
  void* at = mmap(nullptr, kMemoryBytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
  if (at == MAP_FAILED) return system_error("mmap");
  const int fd = socket.get();
  std::unique_ptr<ShmLink> link(
      new ShmLink(side, std::move(socket), static_cast<ShmRingMemory*>(at), loop));
  ShmLink* raw = link.get();
  SGA_TRY(loop.add_fd(fd, EPOLLIN, [raw](uint32_t) { raw->on_socket(); }));
  loop.add_poller(raw);
  return link;
}

ShmLink::ShmLink(Side side, OwnedFd socket, ShmRingMemory* rings, EventLoop& loop)
    : socket_(std::move(socket)),
      rings_(rings),
      writer_(rings + static_cast<int>(side)),
      reader_(rings + 1 - static_cast<int>(side)),
      loop_(loop) {}

ShmLink::~ShmLink() {
  close();
  munmap(rings_, kMemoryBytes);
}

void ShmLink::close() {
  if (std::exchange(closed_, true)) return;
  loop_.remove_fd(socket_.get());
  loop_.remove_poller(this);
  socket_ = OwnedFd();  // the other side learns of it at once
}

void ShmLink::ring_bell() {
  // A full socket has bells enough in it, and a broken one is told by the loop.
  (void)!send(socket_.get(), "!", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

bool ShmLink::try_send(const FrameHeader& header, std::span<const std::byte> payload) {
  if (closed_) return true;
  if (!writer_.try_write(header, payload)) {
    refused_ = true;
    return false;
  }
  if (writer_.take_reader_sleeps()) ring_bell();
  return true;
}

bool ShmLink::read_frames(int limit) {
  bool any = false;
  for (int i = 0; i < limit && !closed_; ++i) {
    auto frame = reader_.next();
    if (!frame.ok()) {
      end(frame.status());
      return true;
    }
    if (!*frame) break;
    any = true;
    handler_->on_frame(*this, (*frame)->header, (*frame)->payload);
    if (closed_) break;
    if (reader_.release()) ring_bell();
  }
  return any;
}

bool ShmLink::poll() {
  reader_.wake();
  writer_.wake();
  bool any = read_frames(kFramesPerTurn);
  if (!closed_ && refused_ && writer_.has_wanted_room()) {
    refused_ = false;
    any = true;
    handler_->on_writable(*this);
  }
  return any;
}

bool ShmLink::arm() {
  if (closed_) return true;
  if (refused_ && !writer_.sleep()) return false;
  return reader_.sleep();
}

void ShmLink::on_socket() {
  std::array<char, 256> bells;
  while (!closed_) {
    const ssize_t n = recv(socket_.get(), bells.data(), bells.size(), MSG_DONTWAIT);
    if (n > 0) continue;
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    // What it had written before it went still counts.
    while (read_frames(kFramesPerTurn)) {
    }
    if (!closed_) end(make_status(Code::kDisconnected, "the peer's process is gone"));
  }
}

void ShmLink::end(const Status& why) {
  close();
  handler_->on_closed(*this, why);
}

}  // namespace sgactor::transport
