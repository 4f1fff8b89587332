#include "actors/runtime/tls_hub.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <functional>
#include <mutex>
#include <random>

namespace sgactor::actors {
namespace {

constexpr auto kLong = std::chrono::seconds(20);

/// Records what a hub says; wait() until a condition on it holds.
class Log final : public HubSink {
 public:
  /// A frame, or a closed link with the reason.
  struct Frame {
    LinkId link;
    std::string bytes;
  };
  void on_open(LinkId link, const std::string&, bool accepted) override {
    const std::lock_guard lock(mutex);
    opened.push_back(link);
    if (accepted && hub != nullptr && admits) hub->admit(link);
    changed.notify_all();
  }
  void on_frame(LinkId link, std::string bytes) override {
    const std::lock_guard lock(mutex);
    frames.push_back({link, std::move(bytes)});
    changed.notify_all();
  }
  void on_closed(LinkId link, const Status& why) override {
    const std::lock_guard lock(mutex);
    closed.push_back({link, why.to_string()});
    changed.notify_all();
  }
  bool wait(const std::function<bool()>& condition) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, kLong, condition);
  }

  /// Whether anything is said within the time.
  bool changed_within(int64_t ms) {
    std::unique_lock lock(mutex);
    const size_t before = opened.size() + frames.size() + closed.size();
    return changed.wait_for(lock, std::chrono::milliseconds(ms), [&] {
      return opened.size() + frames.size() + closed.size() != before;
    });
  }

  std::mutex mutex;
  std::condition_variable changed;
  std::vector<LinkId> opened;
  std::vector<Frame> frames, closed;
  TlsHub* hub = nullptr;
  bool admits = true;
};

class TlsHubTest : public testing::Test {
 protected:
  void SetUp() override {
    authority_ = *TlsAuthority::create();
    server_ = *TlsHub::create(*authority_->issue_server(), limits(), server_log_);
    server_log_.hub = server_.get();
    port_ = *server_->listen("127.0.0.1", 0);
  }
  virtual HubLimits limits() { return {}; }

  std::unique_ptr<TlsHub> client(Log& log) {
    return *TlsHub::create(*authority_->issue_member(), {}, log);
  }
  int raw_connection() const {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in to = {};
    to.sin_family = AF_INET;
    to.sin_port = htons(port_);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
    return fd;
  }
  /// A member's frame comes through, whatever else is going on.
  void expect_serving() {
    Log log;
    const auto hub = client(log);
    const LinkId link = *hub->connect("127.0.0.1", port_, 10000);
    hub->send(link, "still here");
    EXPECT_TRUE(server_log_.wait([&] {
      for (const auto& f : server_log_.frames) {
        if (f.bytes == "still here") return true;
      }
      return false;
    }));
    const std::lock_guard lock(server_log_.mutex);
    server_log_.frames.clear();
  }
  /// Waits until the hub's counters say so.
  bool stats_reach(const std::function<bool(const HubStats&)>& condition) const {
    const auto deadline = std::chrono::steady_clock::now() + kLong;
    while (!condition(server_->stats())) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      ::poll(nullptr, 0, 5);
    }
    return true;
  }

  Log server_log_;
  std::unique_ptr<TlsAuthority> authority_;
  std::unique_ptr<TlsHub> server_;
  uint16_t port_ = 0;
};

TEST_F(TlsHubTest, FramesOfEverySizeGoBothWaysInOrder) {
  Log log;
  const auto hub = client(log);
  const LinkId link = *hub->connect("127.0.0.1", port_, 10000);
  std::vector<std::string> sent;
  for (const size_t size : {1UL, 7UL, 16383UL, 16384UL, 16385UL, 300000UL, 5000000UL}) {
    sent.emplace_back(size, static_cast<char>('a' + sent.size()));
    hub->send(link, sent.back());
  }
  ASSERT_TRUE(server_log_.wait([&] { return server_log_.frames.size() == sent.size(); }));
  for (size_t i = 0; i < sent.size(); ++i) {
    EXPECT_TRUE(server_log_.frames[i].bytes == sent[i]) << i;
    server_->send(server_log_.frames[i].link, sent[i]);
  }
  ASSERT_TRUE(log.wait([&] { return log.frames.size() == sent.size(); }));
  for (size_t i = 0; i < sent.size(); ++i) EXPECT_TRUE(log.frames[i].bytes == sent[i]) << i;
  hub->flush(1000);
  EXPECT_EQ(server_->stats().links, 1);
}

TEST_F(TlsHubTest, CloseSendsWhatWasQueuedAndTheOtherSideHears) {
  Log log;
  const auto hub = client(log);
  const LinkId link = *hub->connect("127.0.0.1", port_, 10000);
  hub->send(link, "first");  // before it is admitted a link may send one small frame
  const std::string last(1 << 20, 'z');
  hub->send(link, last);
  hub->close(link);
  ASSERT_TRUE(server_log_.wait([&] { return server_log_.closed.size() == 1; }));
  ASSERT_EQ(server_log_.frames.size(), 2U);
  EXPECT_TRUE(server_log_.frames[1].bytes == last);
  const std::lock_guard lock(log.mutex);
  EXPECT_TRUE(log.closed.empty());
}

TEST_F(TlsHubTest, CloseWhileHandsAreShakenSendsWhatWasQueued) {
  constexpr size_t kLinks = 20;
  Log log;
  const auto hub = client(log);
  for (size_t i = 0; i < kLinks; ++i) {
    const LinkId link = *hub->connect("127.0.0.1", port_, 10000);
    hub->send(link, "only");
    hub->close(link);
  }
  EXPECT_TRUE(server_log_.wait([&] { return server_log_.frames.size() == kLinks; }));
}

TEST_F(TlsHubTest, ALostProcessIsHeardOfAtOnce) {
  Log log;
  auto hub = client(log);
  const LinkId link = *hub->connect("127.0.0.1", port_, 10000);
  hub->send(link, "x");
  ASSERT_TRUE(server_log_.wait([&] { return server_log_.frames.size() == 1; }));
  const auto start = std::chrono::steady_clock::now();
  hub.reset();
  ASSERT_TRUE(server_log_.wait([&] { return server_log_.closed.size() == 1; }));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2));
}

TEST_F(TlsHubTest, AnotherJobsCertificateIsRefusedOnBothSides) {
  const auto other = *TlsAuthority::create();
  Log log;
  const auto hub = *TlsHub::create(*other->issue_member(), {}, log);
  (void)*hub->connect("127.0.0.1", port_, 10000);
  ASSERT_TRUE(log.wait([&] { return log.closed.size() == 1; }));
  EXPECT_NE(log.closed[0].bytes.find("not of this job"), std::string::npos) << log.closed[0].bytes;
  EXPECT_TRUE(stats_reach([](const HubStats& s) { return s.strangers == 1; }));
  EXPECT_TRUE(server_log_.opened.empty());
  expect_serving();
}

TEST_F(TlsHubTest, AMembersCertificateIsNoServers) {
  Log impostor_log;
  const auto impostor = *TlsHub::create(*authority_->issue_member(), {}, impostor_log);
  const uint16_t port = *impostor->listen("127.0.0.1", 0);
  Log log;
  const auto hub = client(log);
  (void)*hub->connect("127.0.0.1", port, 10000);
  ASSERT_TRUE(log.wait([&] { return log.closed.size() == 1; }));
  EXPECT_TRUE(log.opened.empty());
}

TEST_F(TlsHubTest, NobodyListens) {
  Log log;
  const auto hub = client(log);
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at = {};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(::bind(fd, reinterpret_cast<const sockaddr*>(&at), sizeof(at)), 0);
  socklen_t size = sizeof(at);
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&at), &size);
  (void)*hub->connect("127.0.0.1", ntohs(at.sin_port), 10000);
  ASSERT_TRUE(log.wait([&] { return log.closed.size() == 1; }));
  EXPECT_NE(log.closed[0].bytes.find("refused"), std::string::npos) << log.closed[0].bytes;
  ::close(fd);
}

TEST_F(TlsHubTest, APortInUseIsNamed) {
  Log log;
  const auto second = *TlsHub::create(*authority_->issue_server(), {}, log);
  const auto port = second->listen("127.0.0.1", port_);
  ASSERT_FALSE(port.ok());
  EXPECT_EQ(port.status().code(), Code::kInvalidArgument);
  EXPECT_NE(port.status().message().find("port in use"), std::string::npos);
}

TEST_F(TlsHubTest, AnIdentityWithoutAllPartsMakesNoHub) {
  const TlsIdentity whole = *authority_->issue_member();
  const TlsIdentity other = *authority_->issue_member();
  Log log;
  for (int part = 0; part < 3; ++part) {
    TlsIdentity cut = whole;
    (part == 0 ? cut.ca : part == 1 ? cut.certificate : cut.key).clear();
    EXPECT_FALSE(TlsHub::create(cut, {}, log).ok()) << part;
  }
  EXPECT_FALSE(TlsHub::create({whole.ca, whole.certificate, other.key}, {}, log).ok());
}

TEST_F(TlsHubTest, GarbageCostsACounter) {
  std::mt19937_64 random(11);
  constexpr int kRounds = 200;
  for (int i = 0; i < kRounds; ++i) {
    const int fd = raw_connection();
    std::string bytes(1 + random() % 300, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    // Half of them begin like a TLS record.
    if (i % 2 == 0) bytes = std::string("\x16\x03\x01", 3) + bytes;
    (void)::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    ::close(fd);
  }
  EXPECT_TRUE(stats_reach([](const HubStats& s) { return s.strangers == kRounds; }));
  EXPECT_TRUE(server_log_.opened.empty());
  expect_serving();
}

TEST_F(TlsHubTest, IdleConnectionsAreBoundedAndDoNotKeepOthersOut) {
  std::vector<int> idle;
  for (int i = 0; i < 1000; ++i) {
    idle.push_back(raw_connection());
    // Descriptors of the test itself are few: those that the hub has closed are of no use.
    if (idle.size() > 200) {
      ::close(idle.front());
      idle.erase(idle.begin());
    }
  }
  EXPECT_TRUE(stats_reach([](const HubStats& s) { return s.strangers >= 1000 - 64; }));
  EXPECT_LE(server_->stats().half_open, 64);
  expect_serving();
  for (int fd : idle) ::close(fd);
}

class ImpatientHubTest : public TlsHubTest {
 protected:
  HubLimits limits() override {
    HubLimits out;
    out.admit_timeout_ms = 200;
    out.heartbeat_ms = 100;
    out.silence_ms = 1500;
    return out;
  }
};

TEST_F(ImpatientHubTest, WhoDoesNotIntroduceItselfIsClosed) {
  const int fd = raw_connection();
  EXPECT_TRUE(stats_reach([](const HubStats& s) { return s.strangers == 1; }));
  char byte = 0;
  EXPECT_LE(::recv(fd, &byte, 1, 0), 0);
  ::close(fd);
}

TEST_F(ImpatientHubTest, WhoIsNotAdmittedIsClosedToo) {
  server_log_.admits = false;
  Log log;
  const auto hub = client(log);
  (void)*hub->connect("127.0.0.1", port_, 10000);
  ASSERT_TRUE(log.wait([&] { return log.closed.size() == 1; }));
  // The other side hears of it at the same time as the counter moves.
  EXPECT_TRUE(stats_reach([](const HubStats& s) { return s.strangers == 1; }));
}

TEST_F(ImpatientHubTest, HeartbeatsKeepAnIdleLink) {
  Log log;
  HubLimits patient;
  patient.heartbeat_ms = 100;
  const auto hub = *TlsHub::create(*authority_->issue_member(), patient, log);
  const LinkId link = *hub->connect("127.0.0.1", port_, 10000);
  hub->send(link, "a");
  ASSERT_TRUE(server_log_.wait([&] { return server_log_.frames.size() == 1; }));
  // Longer than the silence that would end the link.
  EXPECT_FALSE(server_log_.changed_within(2500));
  hub->send(link, "b");
  EXPECT_TRUE(server_log_.wait([&] { return server_log_.frames.size() == 2; }));
}

TEST_F(ImpatientHubTest, SilenceEndsALink) {
  Log log;
  HubLimits mute;
  mute.heartbeat_ms = 3'600'000;
  const auto hub = *TlsHub::create(*authority_->issue_member(), mute, log);
  const LinkId link = *hub->connect("127.0.0.1", port_, 10000);
  hub->send(link, "a");
  ASSERT_TRUE(server_log_.wait([&] { return server_log_.closed.size() == 1; }));
  EXPECT_NE(server_log_.closed[0].bytes.find("silent"), std::string::npos);
}

TEST_F(TlsHubTest, AFrameThatClaimsTooMuchEndsTheLink) {
  HubLimits wide;
  Log log;
  const auto hub = *TlsHub::create(*authority_->issue_member(), wide, log);
  server_log_.admits = false;
  const LinkId link = *hub->connect("127.0.0.1", port_, 10000);
  // Before it is admitted a link may send one small frame.
  hub->send(link, std::string(100000, 'x'));
  ASSERT_TRUE(log.wait([&] { return log.closed.size() == 1; }));
  EXPECT_TRUE(server_log_.frames.empty());
}

TEST(JoinTokenTest, ComesBackAndIsPrivate) {
  const std::string dir = testing::TempDir() + "sga_token_test";
  std::filesystem::remove_all(dir);
  const auto authority = *TlsAuthority::create();
  const JoinToken token{{"127.0.0.1:80", "[::1]:81"}, *authority->issue_member()};
  const std::string file = dir + "/token";
  ASSERT_TRUE(write_token(file, token).ok());
  struct stat info = {};
  ASSERT_EQ(::stat(file.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0600U);
  ASSERT_EQ(::stat(dir.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0700U);
  const auto back = read_token(file);
  ASSERT_TRUE(back.ok()) << back.status().to_string();
  EXPECT_EQ(back->addresses, token.addresses);
  EXPECT_EQ(back->identity.ca, token.identity.ca);
  EXPECT_EQ(back->identity.certificate, token.identity.certificate);
  EXPECT_EQ(back->identity.key, token.identity.key);
  ::chmod(file.c_str(), 0644);
  EXPECT_NE(read_token(file).status().message().find("0644"), std::string::npos);
  std::filesystem::remove_all(dir);
}

TEST(JoinTokenTest, OtherFilesAreNoTokens) {
  const std::string file = testing::TempDir() + "sga_no_token";
  std::ofstream(file) << "hello\n";
  ::chmod(file.c_str(), 0600);
  EXPECT_NE(read_token(file).status().message().find("not a token"), std::string::npos);
  EXPECT_FALSE(read_token("/dev/zero").ok());
  EXPECT_FALSE(read_token(file + ".missing").ok());
  std::filesystem::remove(file);
}

TEST(JoinTokenTest, HostAndPort) {
  EXPECT_EQ(parse_host_port("a.b:80")->host, "a.b");
  EXPECT_EQ(parse_host_port("[::1]:80")->host, "::1");
  EXPECT_EQ(parse_host_port("[::1]:80")->port, 80);
  for (const char* bad : {"", "a", "a:", ":80", "a:0", "a:65536", "a:8x", "::1:80", "[]:80"}) {
    EXPECT_FALSE(parse_host_port(bad).ok()) << bad;
  }
}

}  // namespace
}  // namespace sgactor::actors
