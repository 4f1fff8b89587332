#include "tests/e2e/cluster/cluster_program.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

namespace sgactor::tests {
namespace {

class ClusterBadInput : public ClusterTest {
 protected:
  /// A port that is taken until the test ends.
  int taken_port() {
    fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in at = {};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::bind(fd_, reinterpret_cast<const sockaddr*>(&at), sizeof(at)), 0);
    EXPECT_EQ(::listen(fd_, 1), 0);
    socklen_t size = sizeof(at);
    ::getsockname(fd_, reinterpret_cast<sockaddr*>(&at), &size);
    return ntohs(at.sin_port);
  }
  /// A run whose token can be used; ends with TearDown.
  void start_run() {
    pid_ = start(train("run", {"--workers", "2", "--training.steps=100000"}));
    ASSERT_TRUE(wait_for([&] { return num_steps("run") >= 1; })) << read(".err");
  }
  void TearDown() override {
    if (fd_ >= 0) ::close(fd_);
    if (pid_ > 0) {
      kill(pid_, SIGINT);
      // Whatever the test did to it, the run is well.
      EXPECT_EQ(wait(pid_).exit_code, 130);
    }
    ClusterTest::TearDown();
  }
  void expect_line(const ProgramResult& result, int exit_code,
                   const std::vector<std::string>& parts) {
    EXPECT_EQ(result.exit_code, exit_code) << result.err;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    for (const std::string& part : parts) {
      EXPECT_NE(result.err.find(part), std::string::npos) << result.err << part;
    }
  }

  int fd_ = -1;
  int pid_ = 0;
};

TEST_F(ClusterBadInput, AMeshThatDoesNotFit) {
  expect_refused(train("run", {"--workers", "3"}),
                 {"--workers 3", "2 logical ranks", "parallelism.data_parallel_degree",
                  "parallelism.tensor_parallel_degree", "parallelism.pipeline_parallel_degree"});
  expect_refused({"train", "job.toml", "--run-dir", path("run"), "--workers", "2"},
                 {"--workers 2", "1 logical rank"});
  expect_refused(train("run", {"--workers", "0"}), {"--workers"});
}

TEST_F(ClusterBadInput, APortInUse) {
  const int port = taken_port();
  expect_refused(train("run", {"--workers", "2", "--port", std::to_string(port)}),
                 {"127.0.0.1:" + std::to_string(port), "port in use"});
}

TEST_F(ClusterBadInput, AnAddressThatIsNotOurs) {
  expect_refused(train("run", {"--workers", "2", "--bind", "203.0.113.7"}),
                 {"--bind", "203.0.113.7"});
  expect_refused(train("run", {"--bind", "127.0.0.1"}), {"--bind", "--workers"});
}

TEST_F(ClusterBadInput, OptionsOfANode) {
  write("token", "hello");
  chmod(path("token").c_str(), 0600);
  expect_refused({"node"}, {"--token"});
  expect_refused({"node", "--token", "token"}, {"token", "not a token"});
  expect_refused({"node", "--token", "missing"}, {"missing", "No such file"});
  expect_refused({"node", "--token", "token", "--join", "somewhere"},
                 {"--join", "somewhere", "HOST:PORT"});
  expect_refused({"node", "--token", "token", "--join", ":80"}, {"--join", "HOST:PORT"});
  expect_refused({"node", "--token", "token", "--devices", "abacus:x"}, {"--devices"});
  chmod(path("token").c_str(), 0644);
  expect_refused({"node", "--token", "token"}, {"0644", "0600"});
}

TEST_F(ClusterBadInput, NodesAndHosts) {
  expect_refused(train("run", {"--workers", "2", "--nodes", "3:2"}), {"--nodes 3:2", "MIN:MAX"});
  expect_refused(train("run", {"--workers", "2", "--hosts", "missing"}), {"missing"});
  write("hosts", "a workers=2\nb workers=x\n");
  expect_refused(train("run", {"--workers", "2", "--hosts", "hosts"}), {"hosts:2", "workers=x"});
}

TEST_F(ClusterBadInput, NodesThatDoNotCome) {
  const ProgramResult result =
      run(train("run", {"--workers", "2", "--nodes", "2:2", "--join-timeout", "1"}));
  expect_line(result, 3, {"1 of 2 nodes"});
}

TEST_F(ClusterBadInput, AHostThatCannotBeReached) {
  start_run();
  const int port = taken_port();
  ::close(fd_);
  fd_ = -1;
  expect_line(run_beside({"node", "--token", path("run/control/token"), "--join",
                          "127.0.0.1:" + std::to_string(port), "--join-timeout", "1"}),
              3, {"127.0.0.1:" + std::to_string(port), "refused"});
  expect_line(run_beside({"node", "--token", path("run/control/token"), "--join",
                          "no-such-host.invalid:80", "--join-timeout", "1"}),
              2, {"no-such-host.invalid"});
}

TEST_F(ClusterBadInput, ATokenOfAnotherJob) {
  start_run();
  const int other = start_beside({"train", "job.toml", "--run-dir", path("other"),
                                  "--parallelism.data_parallel_degree=2", "--workers", "2",
                                  "--data.validation_fraction=0", "--training.steps=100000"});
  ASSERT_TRUE(wait_for([&] { return num_steps("other") >= 1; })) << read(".err2");
  std::filesystem::copy_file(path("other/control/token"), path("token"));
  chmod(path("token").c_str(), 0600);
  kill(other, SIGINT);
  EXPECT_EQ(wait_beside(other).exit_code, 130);
  expect_line(run_beside({"node", "--token", "token", "--join",
                          "127.0.0.1:" + std::to_string(port("run"))}),
              2, {"not of this job"});
}

TEST_F(ClusterBadInput, AnotherBuild) {
  start_run();
  // The same program but for a byte behind its end.
  std::ostringstream program;
  program << std::ifstream(SGA_PROGRAM, std::ios::binary).rdbuf();
  write("other_build", program.str() + "x");
  chmod(path("other_build").c_str(), 0755);
  expect_line(run_beside({"node", "--token", path("run/control/token")}, path("other_build")), 2,
              {"runs build"});
}

TEST_F(ClusterBadInput, AnotherJobFile) {
  start_run();
  setenv("RANK", "1", 1);
  setenv("WORLD_SIZE", "2", 1);
  const ProgramResult result = run_beside(train("run", {"--training.seed=2"}));
  unsetenv("RANK");
  unsetenv("WORLD_SIZE");
  expect_line(result, 2, {"another job file"});
}

}  // namespace
}  // namespace sgactor::tests
