// The HTTP page of a run (log.status_page), and `top` that reads it.
#include "tests/e2e/cluster/cluster_program.h"

#include <arpa/inet.h>
#include <httplib.h>
#include <netinet/in.h>
#include <nlohmann/json.hpp>
#include <sys/socket.h>

namespace sgactor::tests {
namespace {

using nlohmann::json;

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

class StatusPageTest : public ClusterTest {
 protected:
  /// Starts a run that goes on until it is stopped, with a page on a free port of loopback.
  [[nodiscard]] int start_run(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> args = {"--log.status_page=127.0.0.1:0", "--training.steps=1000000",
                                     "--optimizer.decay_steps=1000", "--log.interval=1000000",
                                     "--checkpoint.interval=0"};
    args.insert(args.end(), more.begin(), more.end());
    return start(train("run", args));
  }
  /// "HOST:PORT" that the run has written down; "" if there is none.
  [[nodiscard]] std::string address() const {
    const std::string text = read("run/status_page");
    return text.substr(0, text.find('\n'));
  }
  [[nodiscard]] int page_port() const {
    const std::string text = address();
    return text.starts_with("127.0.0.1:") ? std::stoi(text.substr(10)) : 0;
  }
  /// Until steps are done and the page is there.
  [[nodiscard]] bool wait_until_running() const {
    return wait_for([&] { return num_steps("run") > 5 && page_port() != 0; });
  }
  [[nodiscard]] httplib::Client client() const {
    httplib::Client out("127.0.0.1", page_port());
    out.set_connection_timeout(5);
    out.set_read_timeout(5);
    return out;
  }
  /// What `/status` tells; null if it does not answer.
  [[nodiscard]] json status() const {
    auto http = client();
    const auto answer = http.Get("/status");
    return answer && answer->status == 200 ? json::parse(answer->body) : json();
  }
  /// A connection to the page, or -1.
  [[nodiscard]] int connect() const {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_port = htons(static_cast<uint16_t>(page_port()));
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(fd, reinterpret_cast<sockaddr*>(&at), sizeof at) == 0) return fd;
    ::close(fd);
    return -1;
  }
  void stop(int pid) const {
    kill(pid, SIGINT);
    const ProgramResult ended = wait(pid);
    EXPECT_EQ(ended.exit_code, 130) << ended.err;
    EXPECT_EQ(count_of(ended.out, "page      http://127.0.0.1:"), 1U) << ended.out;
    EXPECT_FALSE(exists("run/status_page"));
  }
};

TEST_F(StatusPageTest, AnswersFourPathsAndOnlyGet) {
  const int going = start_run();
  ASSERT_TRUE(wait_until_running()) << read(".err");
  auto http = client();
  const auto root = http.Get("/");
  ASSERT_TRUE(root);
  EXPECT_EQ(root->status, 200);
  EXPECT_EQ(root->get_header_value("Content-Type"), "text/html; charset=utf-8");
  EXPECT_NE(root->body.find(" of 1000000</td>"), std::string::npos) << root->body;
  const auto health = http.Get("/healthz");
  ASSERT_TRUE(health);
  EXPECT_EQ(health->status, 200) << health->body;
  const auto metrics = http.Get("/metrics");
  ASSERT_TRUE(metrics);
  EXPECT_EQ(metrics->get_header_value("Content-Type"), "text/plain; version=0.0.4; charset=utf-8");
  EXPECT_NE(metrics->body.find("\nsgactor_training_state{state=\"running\"} 1\n"),
            std::string::npos);
  EXPECT_NE(metrics->body.find("\nsgactor_training_loss "), std::string::npos) << metrics->body;
  for (const char* path : {"/nope", "/status/", "/../run/job.resolved.toml", "/control/token"}) {
    const auto none = http.Get(path);
    ASSERT_TRUE(none) << path;
    EXPECT_EQ(none->status, 404) << path;
  }
  for (const auto& answer :
       {http.Post("/status", "step=7", "text/plain"), http.Put("/metrics", "", "text/plain"),
        http.Delete("/"), http.Head("/status"), http.Options("/status"), http.Post("/nope")}) {
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->status, 405);
    EXPECT_EQ(answer->get_header_value("Allow"), "GET");
  }
  stop(going);
}

TEST_F(StatusPageTest, TellsWhatMetricsRecord) {
  const int going = start_run();
  ASSERT_TRUE(wait_until_running()) << read(".err");
  const json told = status();
  ASSERT_FALSE(told.is_null());
  EXPECT_EQ(told["state"], "running");
  EXPECT_EQ(told["steps"], 1000000);
  EXPECT_EQ(told["mesh"]["dp"], 2);
  EXPECT_EQ(told["run"], std::filesystem::canonical(path("run")).string());
  ASSERT_EQ(told["workers"].size(), 1U);
  EXPECT_EQ(told["workers"][0]["pid"], going);
  EXPECT_EQ(told["workers"][0]["ranks"], json({0, 1}));
  EXPECT_TRUE(told["workers"][0]["heartbeat_age_ms"].is_null()) << "it speaks for itself";
  stop(going);
  const int64_t step = told["step"];
  ASSERT_GE(step, 5);
  const auto bits = loss_bits("run");
  ASSERT_LE(static_cast<size_t>(step), bits.size());
  EXPECT_EQ(told["loss_bits"], bits[static_cast<size_t>(step) - 1]);
}

TEST_F(StatusPageTest, TopReadsItByAddressAndByRun) {
  const int going = start_run();
  ASSERT_TRUE(wait_until_running()) << read(".err");
  const std::string where = address();
  for (const std::string& name : {where, "http://" + where + "/", path("run")}) {
    const ProgramResult r = run_beside({"top", name, "--once"});
    EXPECT_EQ(r.exit_code, 0) << r.err;
    EXPECT_NE(r.out.find("page        http://" + where), std::string::npos) << r.out;
    EXPECT_NE(r.out.find(" of 1000000, "), std::string::npos) << r.out;
    EXPECT_NE(r.out.find(": running"), std::string::npos) << r.out;
  }
  // Another run's directory may name this page, long after its own has gone.
  const ProgramResult other = run_beside(train("other"));
  ASSERT_EQ(other.exit_code, 0) << other.err;
  write("other/status_page", where + "\n");
  const ProgramResult ended = run_beside({"top", path("other")});
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_NE(ended.out.find("ended: done"), std::string::npos) << ended.out;
  // A watcher ends with the run.
  const int watching = start_beside({"top", where});
  ASSERT_TRUE(wait_for([&] { return !read(".out2").empty(); }));
  stop(going);
  const ProgramResult watched = wait_beside(watching);
  EXPECT_EQ(watched.exit_code, 0) << watched.err;
  // Nothing is there any more.
  const ProgramResult gone = run({"top", where});
  EXPECT_EQ(gone.exit_code, 3);
  EXPECT_EQ(gone.out, "");
  EXPECT_EQ(count_of(gone.err, "\n"), 1U) << gone.err;
  EXPECT_NE(gone.err.find(where + " does not answer"), std::string::npos) << gone.err;
}

TEST_F(StatusPageTest, ListsWorkersWithTheirHeartbeats) {
  const int going = start_run({"--workers", "2"});
  ASSERT_TRUE(wait_until_running()) << read(".err");
  json told;
  ASSERT_TRUE(wait_for([&] {
    told = status();
    return told["state"] == "running";
  })) << told;
  ASSERT_EQ(told["workers"].size(), 2U) << told;
  for (const json& w : told["workers"]) {
    EXPECT_EQ(w["state"], "running") << w;
    EXPECT_EQ(w["ranks"].size(), 1U) << w;
    EXPECT_EQ(w["device"], "cpu") << w;
    EXPECT_GE(w["heartbeat_age_ms"].get<int64_t>(), 0) << w;
    EXPECT_LT(w["heartbeat_age_ms"].get<int64_t>(), 5000) << w;
  }
  auto http = client();
  const auto metrics = http.Get("/metrics");
  ASSERT_TRUE(metrics);
  for (const char* part : {"\nsgactor_training_workers{state=\"running\"} 2\n",
                           "\nsgactor_training_last_heartbeat_age_seconds{worker=\"0\",host=",
                           "\nsgactor_training_last_heartbeat_age_seconds{worker=\"1\",host="}) {
    EXPECT_NE(metrics->body.find(part), std::string::npos) << metrics->body;
  }
  const ProgramResult top = run_beside({"top", address(), "--once"});
  EXPECT_EQ(top.exit_code, 0) << top.err;
  EXPECT_GE(count_of(top.out, " ago  "), 2U) << top.out;
  // What happens to one of them shows.
  kill(told["workers"][1]["pid"].get<int>(), SIGKILL);
  ASSERT_TRUE(wait_for([&] {
    told = status();
    return told["num_recoveries"] == 1 && told["state"] == "running";
  })) << told;
  EXPECT_GE(told["num_faults"].get<int>(), 1);
  EXPECT_GE(told["generation"].get<int>(), 2);
  EXPECT_EQ(told["recoveries"][0]["fault"], "worker exit");
  for (const char* phase : {"fenced_ms", "placed_ms", "restored_ms", "first_new_step_ms"}) {
    EXPECT_GE(told["recoveries"][0][phase].get<double>(), 0) << told;
  }
  stop(going);
}

TEST_F(StatusPageTest, IsNoPartOfWhatIsTrained) {
  const ProgramResult without = run(train("without"));
  const ProgramResult with = run(train("with", {"--log.status_page=127.0.0.1:0"}));
  ASSERT_EQ(without.exit_code, 0) << without.err;
  ASSERT_EQ(with.exit_code, 0) << with.err;
  EXPECT_EQ(loss_bits("with"), loss_bits("without"));
  EXPECT_EQ(loss_bits("with").size(), 6U);
  EXPECT_FALSE(exists("with/status_page"));
}

TEST_F(StatusPageTest, ClientsThatLieOrLingerStallNothing) {
  const int going = start_run();
  ASSERT_TRUE(wait_until_running()) << read(".err");
  std::vector<int> clients;
  for (int i = 0; i < 12; ++i) {
    const std::vector<std::string> pieces = {"GET /status HTTP/1.1\r\nHost: half",
                                             "\x16\x03\x01\x02\x01\x01", "no HTTP\r\n\r\n",
                                             "GET /" + std::string(100'000, 'a')};
    const std::string& piece = pieces[static_cast<size_t>(i) % pieces.size()];
    clients.push_back(connect());
    ASSERT_GE(clients.back(), 0);
    (void)!::send(clients.back(), piece.data(), piece.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  const int before = num_steps("run");
  EXPECT_TRUE(wait_for([&] { return num_steps("run") > before + 20; })) << "training stalls";
  // They are closed after their time, though they hold on: others are answered.
  EXPECT_TRUE(wait_for([&] { return !status().is_null(); })) << "the page stalls";
  // Nor does the end wait for them.
  for (int i = 0; i < 8; ++i) clients.push_back(connect());
  stop(going);
  for (const int fd : clients) {
    if (fd >= 0) ::close(fd);
  }
}

TEST_F(StatusPageTest, APortInUseEndsTheRunBeforeItBegins) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof at;
  ASSERT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&at), size), 0);
  ASSERT_EQ(::listen(fd, 1), 0);
  ASSERT_EQ(::getsockname(fd, reinterpret_cast<sockaddr*>(&at), &size), 0);
  const std::string where = "127.0.0.1:" + std::to_string(ntohs(at.sin_port));
  const ProgramResult r = run(train("run", {"--log.status_page=" + where}));
  EXPECT_EQ(r.exit_code, 3) << r.err;
  EXPECT_EQ(r.out, "");
  EXPECT_EQ(count_of(r.err, "\n"), 1U) << r.err;
  EXPECT_NE(r.err.find("log.status_page"), std::string::npos) << r.err;
  EXPECT_NE(r.err.find(where + ": Address already in use"), std::string::npos) << r.err;
  EXPECT_FALSE(exists("run"));
  // What listens there is no page.
  const ProgramResult top = run({"top", where});
  EXPECT_EQ(top.exit_code, 3) << top.err;
  ::close(fd);
}

TEST_F(StatusPageTest, AddressesThatAreNoneAreRefused) {
  for (const char* text : {"nonsense", "127.0.0.1", "127.0.0.1:99999", ":80", "a b:80"}) {
    expect_refused(train("run", {std::string("--log.status_page=") + text}),
                   {"log.status_page", "expected HOST:PORT", text});
  }
}

TEST_F(StatusPageTest, ADirectoryIsNoAddress) {
  std::filesystem::create_directory(path("localhost:80"));
  expect_refused({"top", "localhost:80"}, {"localhost:80", "no run directory"});
}

}  // namespace
}  // namespace sgactor::tests
