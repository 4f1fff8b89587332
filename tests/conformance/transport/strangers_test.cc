// Strangers at the port of a fabric: garbage, floods, links that say nothing, wrong proofs. They
// change a counter, and nothing else.
#include "graph/base/philox.h"
#include "tests/conformance/transport/world.h"
#include "transport/core/handshake.h"
#include "transport/ucx/address.h"
#include "transport/ucx/process_fabric.h"
#include "transport/ucx/tcp_link.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <string>
#include <vector>

namespace sgactor::transport {
namespace {

constexpr size_t kMaxStrangers = 16;
constexpr int kDeadlineMs = 20'000;
#ifdef __SANITIZE_ADDRESS__
constexpr bool kFreedMemoryIsKept = true;  // in the sanitizer's quarantine
#else
constexpr bool kFreedMemoryIsKept = false;
#endif

FabricOptions small_limits() {
  FabricOptions options;
  options.max_unproved_links = kMaxStrangers;
  options.handshake_timeout_ns = 300'000'000;
  return options;
}

// A blocking socket to the port of `fabric`.
OwnedFd stranger_at(const Fabric& fabric) {
  const auto address = decode_address(fabric.address());
  EXPECT_TRUE(address.ok());
  auto fd = connect_tcp(address->tcp_place);
  EXPECT_TRUE(fd.ok()) << fd.status().to_string();
  pollfd ready{fd->get(), POLLOUT, 0};
  EXPECT_EQ(poll(&ready, 1, kDeadlineMs), 1);
  return std::move(fd).value();
}

void say(const OwnedFd& fd, std::span<const std::byte> bytes) {
  (void)!send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

// Reads until the other side closes. False after the deadline.
bool is_closed(const OwnedFd& fd) {
  std::array<std::byte, 4096> bytes;
  while (true) {
    pollfd ready{fd.get(), POLLIN, 0};
    if (poll(&ready, 1, kDeadlineMs) != 1) return false;
    const ssize_t n = recv(fd.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return true;
  }
}

std::vector<std::byte> frame_of(FrameKind kind, std::span<const std::byte> payload,
                                uint32_t payload_bytes) {
  FrameHeader header;
  header.kind = kind;
  header.payload_bytes = payload_bytes;
  const auto* head = reinterpret_cast<const std::byte*>(&header);
  std::vector<std::byte> bytes(head, head + sizeof(header));
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  return bytes;
}

std::vector<std::byte> random_message(uint64_t seed) {
  const PhiloxStream random{seed, 3};
  std::vector<std::byte> noise(1 + random.below(0, 2000));
  for (size_t i = 0; i < noise.size(); ++i) {
    noise[i] = static_cast<std::byte>(random.bits64(i + 1));
  }
  const FrameKind kind = random.below(1, 2) == 0 ? FrameKind::kHello : FrameKind::kData;
  switch (seed % 4) {
    case 0:
      return noise;
    case 1:
      return frame_of(kind, noise, 0xFFFFFFFFU);
    case 2:
      return frame_of(kind, noise, static_cast<uint32_t>(random.below(2, 65)));
    default:
      noise.resize(noise.size() % sizeof(FrameHeader));  // a header that is cut
      return noise;
  }
}

int64_t resident_pages() {
  std::ifstream file("/proc/self/statm");
  int64_t total = 0;
  int64_t resident = 0;
  file >> total >> resident;
  return resident;
}

int64_t refused(World& world, PeerId peer) {
  int64_t count = 0;
  world.inside(peer, [&] { count = world.fabric(peer).stats().refused_links; });
  return count;
}

// A message of 1 MiB from 0 to 1.
void exchange(World& world, uint64_t key) {
  std::vector<std::byte> sent(1 << 20, static_cast<std::byte>(key));
  std::vector<std::byte> received(sent.size());
  Tag tag;
  tag.key = key;
  tag.generation = 1;
  Waiter waiter;
  world.inside(0, [&] { world.fabric(0).endpoint(1).post_send(tag, sent, 0, waiter); });
  world.inside(1, [&] { world.fabric(1).endpoint(0).post_recv(tag, received, 1, waiter); });
  ASSERT_TRUE(waiter.wait(2));
  ASSERT_TRUE(waiter.first_error().ok()) << waiter.first_error().to_string();
  EXPECT_TRUE(received == sent);
}

FabricKind tcp_kind() {
  for (const FabricKind& kind : fabric_kinds()) {
    if (kind.name == "tcp") return kind;
  }
  ADD_FAILURE() << "no row for TCP";
  return {};
}

TEST(StrangersTest, GarbageIsCountedAndNothingElseChanges) {
  World world(tcp_kind(), {0, 1}, small_limits());
  exchange(world, 1);
  const int64_t pages_before = resident_pages();
  constexpr uint64_t kStrangers = 1000;
  for (uint64_t i = 0; i < kStrangers; ++i) {
    const OwnedFd fd = stranger_at(world.fabric(1));
    say(fd, random_message(i));
    if (i % 100 == 0) exchange(world, 2 + i);
  }
  const OwnedFd last = stranger_at(world.fabric(1));
  say(last, frame_of(FrameKind::kData, {}, 0));
  EXPECT_TRUE(is_closed(last));
  exchange(world, 2 + kStrangers);
  world.inside(1, [&] { EXPECT_EQ(world.fabric(1).stats().open_peers, 1); });
  EXPECT_GE(refused(world, 1), static_cast<int64_t>(kStrangers - kMaxStrangers));
  const int64_t grown = (resident_pages() - pages_before) * sysconf(_SC_PAGESIZE);
  EXPECT_TRUE(kFreedMemoryIsKept || grown < int64_t{16} << 20) << grown;
}

TEST(StrangersTest, AFloodIsTurnedAwayAtTheFirstHeader) {
  World world(tcp_kind(), {0, 1}, small_limits());
  const OwnedFd fd = stranger_at(world.fabric(1));
  const std::vector<std::byte> noise(1 << 20, std::byte{0x5A});
  say(fd, noise);
  EXPECT_TRUE(is_closed(fd));
  EXPECT_EQ(refused(world, 1), 1);
  exchange(world, 1);
}

TEST(StrangersTest, LinksThatSayNothingAreBoundedInNumberAndTime) {
  World world(tcp_kind(), {0, 1}, small_limits());
  constexpr size_t kIdle = 200;
  std::vector<OwnedFd> idle;
  idle.reserve(kIdle);
  for (size_t i = 0; i < kIdle; ++i) idle.push_back(stranger_at(world.fabric(1)));
  exchange(world, 1);
  for (const OwnedFd& fd : idle) EXPECT_TRUE(is_closed(fd));
  EXPECT_EQ(refused(world, 1), static_cast<int64_t>(kIdle));
}

TEST(StrangersTest, APeerEntersPastAFloodOfIdleLinks) {
  const TestKeyedHash hash;
  FabricOptions options = small_limits();
  options.keyed_hash = &hash;
  options.secret.fill(std::byte{3});
  const FabricKind kind = tcp_kind();
  auto a = kind.create(nullptr, 0, options);
  auto b = kind.create(nullptr, 1, options);
  ASSERT_TRUE(a.ok() && b.ok());
  std::vector<OwnedFd> idle;
  for (size_t i = 0; i < 2 * kMaxStrangers; ++i) idle.push_back(stranger_at(**b));
  Waiter connected;
  (*a)->connect(1, (*b)->address(), [&](const Status& s) { connected.on_transfer(0, s); });
  (*b)->connect(0, (*a)->address(), [&](const Status& s) { connected.on_transfer(1, s); });
  for (size_t i = 0; i < 2 * kMaxStrangers; ++i) idle.push_back(stranger_at(**b));
  ASSERT_TRUE(connected.wait(2));
  EXPECT_TRUE(connected.first_error().ok()) << connected.first_error().to_string();
}

TEST(StrangersTest, AnotherSecretOpensNothing) {
  World world(tcp_kind(), {0, 1}, small_limits());
  const TestKeyedHash hash;
  FabricOptions options = small_limits();
  options.keyed_hash = &hash;
  options.secret.fill(std::byte{8});  // the world's is 7
  options.connect_timeout_ns = 500'000'000;
  auto intruder = tcp_kind().create(nullptr, 0, options);
  ASSERT_TRUE(intruder.ok());
  Waiter connected;
  (*intruder)->connect(1, world.fabric(1).address(),
                       [&](const Status& s) { connected.on_transfer(0, s); });
  ASSERT_TRUE(connected.wait(1));
  EXPECT_EQ(connected.first_error().code(), Code::kTimeout);
  EXPECT_GE(refused(world, 1), 1);
  exchange(world, 1);
}

TEST(StrangersTest, AWrongPlaceIsAClearError) {
  const TestKeyedHash hash;
  for (const char* place : {"localhost:0", "127.0.0.1", "127.0.0.1:70000", "192.0.2.1:0", "::1"}) {
    ProcessFabricOptions options;
    options.fabric.keyed_hash = &hash;
    options.tcp = place;
    const auto fabric = ProcessFabric::create(0, options);
    ASSERT_FALSE(fabric.ok()) << place;
    EXPECT_NE(fabric.status().message().find(place), std::string::npos);
  }
}

}  // namespace
}  // namespace sgactor::transport
