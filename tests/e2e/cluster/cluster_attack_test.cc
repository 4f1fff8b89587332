// Strangers at the port of a run: it goes on, bit for bit.
#include "tests/e2e/cluster/cluster_program.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <random>

namespace sgactor::tests {
namespace {

/// Messages of the attack: SGA_ATTACK_MESSAGES, or few enough for every build.
int num_messages() {
  const char* given = std::getenv("SGA_ATTACK_MESSAGES");
  return given == nullptr ? 1000 : std::atoi(given);
}

/// The start of a real TLS 1.3 conversation: a client hello with the usual extensions.
std::string client_hello(std::mt19937_64& random) {
  std::string body("\x03\x03", 2);
  for (int i = 0; i < 32; ++i) body.push_back(static_cast<char>(random()));
  body += std::string("\x00\x00\x02\x13\x01\x01\x00", 7);
  const std::string extensions(
      "\x00\x2b\x00\x03\x02\x03\x04"       // TLS 1.3
      "\x00\x0a\x00\x04\x00\x02\x00\x1d"   // x25519
      "\x00\x0d\x00\x04\x00\x02\x08\x07",  // ed25519
      23);
  body.push_back(static_cast<char>(extensions.size() >> 8));
  body.push_back(static_cast<char>(extensions.size() & 0xFF));
  body += extensions;
  std::string handshake("\x01\x00", 2);
  handshake.push_back(static_cast<char>(body.size() >> 8));
  handshake.push_back(static_cast<char>(body.size() & 0xFF));
  handshake += body;
  std::string record("\x16\x03\x01", 3);
  record.push_back(static_cast<char>(handshake.size() >> 8));
  record.push_back(static_cast<char>(handshake.size() & 0xFF));
  return record + handshake;
}

std::string message(std::mt19937_64& random) {
  if (random() % 3 == 0) {
    std::string bytes(1 + random() % 600, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    return bytes;
  }
  std::string bytes = client_hello(random);
  for (uint64_t n = random() % 4; n > 0; --n) {
    bytes[random() % bytes.size()] = static_cast<char>(random());
  }
  if (random() % 4 == 0) bytes.resize(1 + random() % bytes.size());
  return bytes;
}

class ClusterAttack : public ClusterTest {
 protected:
  static int connect_to(int port) {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in to = {};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(port));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
    return fd;
  }
  /// TCP ports on which processes of the run listen.
  [[nodiscard]] std::set<int> listening_ports() const {
    std::set<std::string> sockets;
    for (const int pid : processes("")) {
      std::error_code error;
      for (const auto& fd :
           std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd", error)) {
        sockets.insert(std::filesystem::read_symlink(fd.path(), error).string());
      }
    }
    std::set<int> ports;
    for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
      std::ifstream lines(table);
      std::string line;
      while (std::getline(lines, line)) {
        std::istringstream words(line);
        std::vector<std::string> word(std::istream_iterator<std::string>(words), {});
        constexpr const char* kListen = "0A";
        if (word.size() < 10 || word[3] != kListen) continue;
        if (!sockets.contains("socket:[" + word[9] + "]")) continue;
        ports.insert(std::stoi(word[1].substr(word[1].rfind(':') + 1), nullptr, 16));
      }
    }
    return ports;
  }
  [[nodiscard]] int64_t resident_kib(int pid) const {
    std::ifstream lines("/proc/" + std::to_string(pid) + "/status");
    std::string line;
    while (std::getline(lines, line)) {
      if (line.rfind("VmRSS:", 0) == 0) return std::stoll(line.substr(6));
    }
    return 0;
  }
};

TEST_F(ClusterAttack, StrangersChangeNoBitAndCostLittle) {
  const int pid = start(train(
      "run", {"--workers", "2", "--training.steps=1000000", "--checkpoint.interval=1000000"}));
  ASSERT_TRUE(wait_for([&] { return num_steps("run") >= 3; })) << read(".err");
  // One port, and no other, on which anybody can knock.
  const int port = this->port("run");
  EXPECT_EQ(listening_ports(), std::set<int>{port});
  const int64_t before_kib = resident_kib(pid);
  const int before_steps = num_steps("run");

  std::mt19937_64 random(20240601);
  for (int i = 0; i < num_messages(); ++i) {
    const int fd = connect_to(port);
    const std::string bytes = message(random);
    (void)::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    ::close(fd);
  }
  std::vector<int> idle;
  for (int i = 0; i < 1000; ++i) {
    idle.push_back(connect_to(port));
    // The run has closed all but the youngest: their descriptors are of no use here either.
    if (idle.size() > 300) {
      ::close(idle.front());
      idle.erase(idle.begin());
    }
  }
  // Steps go on while they hold on.
  const int during = num_steps("run");
  EXPECT_TRUE(wait_for([&] { return num_steps("run") >= during + 3; }));
  EXPECT_LT(resident_kib(pid) - before_kib, 64 * 1024);
  for (const int fd : idle) ::close(fd);
  EXPECT_GT(during, before_steps);
  kill(pid, SIGINT);
  const ProgramResult result = wait(pid);
  EXPECT_EQ(result.exit_code, 130) << result.err;
  EXPECT_NE(result.err.find("connections were not taken"), std::string::npos) << result.err;
  EXPECT_LT(std::count(result.err.begin(), result.err.end(), '\n'), 40) << result.err;

  const std::vector<std::string> attacked = loss_bits("run");
  const ProgramResult calm =
      run(train("calm", {"--training.steps=" + std::to_string(attacked.size()),
                         "--checkpoint.interval=1000000"}));
  ASSERT_EQ(calm.exit_code, 0) << calm.err;
  EXPECT_EQ(loss_bits("calm"), attacked);
}

}  // namespace
}  // namespace sgactor::tests
