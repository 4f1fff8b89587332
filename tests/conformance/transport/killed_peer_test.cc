// A peer that is killed while transfers with it are posted: every transfer ends by itself.
#include "tests/conformance/transport/world.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <string>
#include <vector>

namespace sgactor::transport {
namespace {

constexpr size_t kBytes = size_t{32} << 20;

FabricOptions options_with(const TestKeyedHash& hash) {
  FabricOptions options;
  options.keyed_hash = &hash;
  options.secret.fill(std::byte{9});
  return options;
}

void write_string(int fd, const std::string& text) {
  const auto n = static_cast<uint32_t>(text.size());
  (void)!write(fd, &n, sizeof(n));
  (void)!write(fd, text.data(), text.size());
}

std::string read_string(int fd) {
  uint32_t n = 0;
  if (read(fd, &n, sizeof(n)) != static_cast<ssize_t>(sizeof(n))) return {};
  std::string text(n, '\0');
  size_t got = 0;
  while (got < n) {
    const ssize_t r = read(fd, text.data() + got, n - got);
    if (r <= 0) return {};
    got += static_cast<size_t>(r);
  }
  return text;
}

Tag tag_of(uint64_t key) {
  Tag tag;
  tag.key = key;
  tag.generation = 1;
  return tag;
}

// The process that will be killed: connects, receives message 1 in full, says so, and then waits
// for its end with a send that is never asked for.
[[noreturn]] void doomed(const FabricKind& kind, int fd) {
  const TestKeyedHash hash;
  auto fabric = kind.create(nullptr, 0, options_with(hash));
  if (!fabric.ok()) _exit(2);
  write_string(fd, (*fabric)->address());
  Waiter connected;
  (*fabric)->connect(1, read_string(fd), [&](const Status& s) { connected.on_transfer(0, s); });
  if (!connected.wait(1) || !connected.first_error().ok()) _exit(3);
  std::vector<std::byte> bytes(kBytes);
  Waiter received;
  (*fabric)->progress().post([&] {
    (*fabric)->endpoint(1).post_recv(tag_of(1), bytes, 0, received);
    (*fabric)->endpoint(1).post_send(tag_of(2), bytes, 1, received);
  });
  if (!received.wait(1)) _exit(4);
  write_string(fd, "received");
  while (true) pause();
}

class KilledPeerTest : public testing::TestWithParam<FabricKind> {};

TEST_P(KilledPeerTest, ItsTransfersEndAndItsMemoryIsFree) {
  if (GetParam().name == "inproc") GTEST_SKIP() << "peers of one process die with it";
  int fds[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    close(fds[0]);
    doomed(GetParam(), fds[1]);
  }
  close(fds[1]);
  const TestKeyedHash hash;
  auto fabric = GetParam().create(nullptr, 1, options_with(hash));
  ASSERT_TRUE(fabric.ok()) << fabric.status().to_string();
  Fabric& f = **fabric;
  Waiter connected;
  const std::string peer = read_string(fds[0]);
  write_string(fds[0], f.address());
  f.connect(0, peer, [&](const Status& s) { connected.on_transfer(0, s); });
  ASSERT_TRUE(connected.wait(1));
  ASSERT_TRUE(connected.first_error().ok()) << connected.first_error().to_string();

  std::vector<std::byte> sent(kBytes, std::byte{1});
  std::vector<std::byte> never(kBytes, std::byte{2});
  Waiter first;
  Waiter rest;
  f.progress().post([&] {
    f.endpoint(0).post_send(tag_of(1), sent, 0, first);
    f.endpoint(0).post_recv(tag_of(3), never, 1, rest);
    f.endpoint(0).post_send(tag_of(4), sent, 2, rest);
  });
  ASSERT_TRUE(first.wait(1));
  ASSERT_TRUE(first.first_error().ok()) << first.first_error().to_string();
  ASSERT_EQ(read_string(fds[0]), "received");
  const auto killed = std::chrono::steady_clock::now();
  ASSERT_EQ(kill(child, SIGKILL), 0);
  ASSERT_TRUE(rest.wait(2));
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - killed;
  RecordProperty("end_ms", std::to_string(took.count()));
  std::printf("ended %.2f ms after the kill\n", took.count());
  EXPECT_LT(took.count(), 2000.0);
  for (const auto& [token, status] : rest.completions()) {
    EXPECT_EQ(status.code(), Code::kDisconnected) << token;
  }
  EXPECT_TRUE(
      std::all_of(never.begin(), never.end(), [](std::byte b) { return b == std::byte{2}; }));
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  close(fds[0]);
}

INSTANTIATE_TEST_SUITE_P(Fabrics, KilledPeerTest, testing::ValuesIn(fabric_kinds()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace sgactor::transport
