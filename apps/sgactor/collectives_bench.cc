#include "apps/sgactor/collectives_bench.h"

#include "transport/ucx/process_fabric.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <numeric>

namespace sgactor::apps {
namespace {

using namespace sgactor::transport;  // NOLINT(google-build-using-namespace)

class Done final : public kernels::CompletionSink {
 public:
  void on_complete(uint64_t, const Status& status, kernels::LaunchTiming) noexcept override {
    note(status);
  }
  void note(const Status& status) {
    const std::lock_guard lock(mutex_);
    ++count_;
    if (!status.ok()) status_ = status;
    changed_.notify_one();
  }
  Status wait(size_t count) {
    std::unique_lock lock(mutex_);
    const bool in_time =
        changed_.wait_for(lock, std::chrono::seconds(60), [&] { return count_ >= count; });
    return in_time ? status_ : make_status(Code::kTimeout, "a collective did not end");
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t count_ = 0;
  Status status_;
};

bool write_all(int fd, const std::string& text) {
  const auto n = static_cast<uint32_t>(text.size());
  std::string frame(reinterpret_cast<const char*>(&n), sizeof(n));
  frame += text;
  return write(fd, frame.data(), frame.size()) == static_cast<ssize_t>(frame.size());
}

Result<std::string> read_all(int fd) {
  const auto take = [fd](char* to, size_t n) {
    for (size_t got = 0; got < n;) {
      const ssize_t r = read(fd, to + got, n - got);
      if (r <= 0) return false;
      got += static_cast<size_t>(r);
    }
    return true;
  };
  uint32_t n = 0;
  if (!take(reinterpret_cast<char*>(&n), sizeof(n))) return internal_error("a process has died");
  std::string text(n, '\0');
  if (!take(text.data(), n)) return internal_error("a process has died");
  return text;
}

int64_t repeats_of(int64_t bytes) {
  return std::clamp<int64_t>((int64_t{256} << 20) / std::max<int64_t>(bytes, 1), 8, 200);
}

struct Times {
  double median_s = 0;
  double cpu_s = 0;
};

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

struct Member {
  std::unique_ptr<ProcessFabric> fabric;
  std::unique_ptr<Collectives> collectives;
  int32_t index = 0;
  uint64_t next_key = 0;
};

Result<Times> time_size(const CollectivesBenchOptions& options, Member& member, int64_t bytes) {
  const int64_t size = element_bytes(options.element);
  std::vector<std::byte> input(static_cast<size_t>(bytes));
  CollectiveRequest request;
  request.kind = CollectiveKind::kAllReduce;
  request.element = options.element;
  request.algorithm = options.algorithm;
  request.input = input.data();
  request.output = input.data();  // in place, as gradients are
  request.total = bytes / size;
  request.group.resize(static_cast<size_t>(options.num_processes));
  std::iota(request.group.begin(), request.group.end(), 0);
  request.index = member.index;
  request.generation = 1;
  std::vector<double> seconds;
  const int64_t repeats = repeats_of(bytes);
  constexpr int64_t kWarmUps = 3;
  double cpu_at_start = 0;
  for (int64_t i = 0; i < repeats + kWarmUps; ++i) {
    if (i == kWarmUps) cpu_at_start = cpu_seconds();
    Done done;
    request.key = member.next_key++;
    const auto start = std::chrono::steady_clock::now();
    member.collectives->start(request, 0, done);
    SGA_TRY(done.wait(1));
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    if (i >= kWarmUps) seconds.push_back(took.count());
  }
  const double cpu = (cpu_seconds() - cpu_at_start) / static_cast<double>(repeats);
  std::nth_element(seconds.begin(), seconds.begin() + repeats / 2, seconds.end());
  return Times{seconds[static_cast<size_t>(repeats / 2)], cpu};
}

std::vector<int64_t> sizes_of(const CollectivesBenchOptions& options) {
  if (!options.sizes_bytes.empty()) return options.sizes_bytes;
  std::vector<int64_t> sizes;
  for (int64_t bytes = 8; bytes < int64_t{64} << 20; bytes *= 8) sizes.push_back(bytes);
  sizes.push_back(int64_t{64} << 20);
  return sizes;
}

Status run_member(const CollectivesBenchOptions& options, int32_t index, int fd) {
  ProcessFabricOptions fabric_options;
  fabric_options.fabric.keyed_hash = options.hash;
  fabric_options.fabric.secret.fill(std::byte{1});
  fabric_options.fabric.messages.check_frames = options.check_frames;
  fabric_options.shared_memory = options.transport == "shm";
  if (options.transport == "tcp") fabric_options.tcp = "127.0.0.1:0";
  if (options.transport == "ucx") fabric_options.ucx = UcxOptions();
  Member member;
  member.index = index;
  SGA_ASSIGN(member.fabric, ProcessFabric::create(static_cast<PeerId>(index), fabric_options));
  if (!write_all(fd, member.fabric->address())) return internal_error("the parent has died");
  Done connected;
  RouteTable routes;
  routes.generation = 1;
  for (int32_t i = 0; i < options.num_processes; ++i) {
    SGA_ASSIGN(const std::string address, read_all(fd));
    const auto peer = static_cast<PeerId>(i);
    routes.peer_of_rank[i] = peer;
    member.fabric->connect(peer, address, [&connected](const Status& s) { connected.note(s); });
  }
  SGA_TRY(connected.wait(static_cast<size_t>(options.num_processes)));
  member.collectives = std::make_unique<Collectives>(*member.fabric);
  member.collectives->set_routes(routes);
  std::string times;
  for (const int64_t bytes : sizes_of(options)) {
    SGA_ASSIGN(const Times of_size, time_size(options, member, bytes));
    times.append(reinterpret_cast<const char*>(&of_size), sizeof(of_size));
  }
  // Nobody leaves before the parent has heard from all.
  if (!write_all(fd, times)) return internal_error("the parent has died");
  (void)read_all(fd);
  return {};
}

struct Child {
  pid_t pid = -1;
  int fd = -1;
};

Result<std::string> lead(const std::vector<Child>& children) {
  std::vector<std::string> addresses;
  for (const Child& child : children) {
    SGA_ASSIGN(std::string address, read_all(child.fd));
    addresses.push_back(std::move(address));
  }
  for (const Child& child : children) {
    for (const std::string& address : addresses) {
      if (!write_all(child.fd, address)) return internal_error("a process has died");
    }
  }
  std::string times;
  for (const Child& child : children) {
    SGA_ASSIGN(const std::string of_child, read_all(child.fd));
    if (times.empty()) times = of_child;
  }
  return times;
}

Status check(const CollectivesBenchOptions& options) {
  SGA_CHECK(options.hash != nullptr, "links between processes need a keyed hash");
  if (options.transport != "shm" && options.transport != "tcp" && options.transport != "ucx") {
    return invalid_argument(fmt::format("no transport {}: shm, tcp or ucx", options.transport));
  }
  for (const int64_t bytes : options.sizes_bytes) {
    if (bytes > 0 && bytes % element_bytes(options.element) == 0) continue;
    return invalid_argument(fmt::format("{} bytes are not whole elements", bytes));
  }
  return {};
}

Result<Child> fork_member(const CollectivesBenchOptions& options, int32_t index,
                          const std::vector<Child>& others) {
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) {
    return internal_error("socketpair");
  }
  const pid_t pid = fork();
  if (pid < 0) return internal_error("fork");
  if (pid == 0) {
    close(fds[0]);
    for (const Child& other : others) close(other.fd);
    const Status status = run_member(options, index, fds[1]);
    if (!status.ok()) fmt::print(stderr, "member {}: {}\n", index, status.to_string());
    _exit(status.ok() ? 0 : 1);
  }
  close(fds[1]);
  return Child{pid, fds[0]};
}

}  // namespace

Result<std::vector<CollectivesBenchRow>> run_collectives_bench(
    const CollectivesBenchOptions& options) {
  SGA_TRY(check(options));
  std::vector<Child> children;
  for (int32_t i = 0; i < options.num_processes; ++i) {
    SGA_ASSIGN(const Child child, fork_member(options, i, children));
    children.push_back(child);
  }
  const auto times = lead(children);
  for (const Child& child : children) close(child.fd);
  for (const Child& child : children) waitpid(child.pid, nullptr, 0);
  if (!times.ok()) return times.status();
  const std::vector<int64_t> sizes = sizes_of(options);
  if (times->size() != sizes.size() * sizeof(Times)) return internal_error("times are cut");
  const double n = options.num_processes;
  std::vector<CollectivesBenchRow> rows;
  for (size_t i = 0; i < sizes.size(); ++i) {
    Times t;
    std::memcpy(&t, times->data() + i * sizeof(Times), sizeof(Times));
    const double bus = 2.0 * (n - 1.0) / n * static_cast<double>(sizes[i]) / t.median_s;
    rows.push_back({sizes[i], t.median_s * 1e6, t.cpu_s * 1e6, bus * 1e-9});
  }
  return rows;
}

Result<Algorithm> parse_algorithm(const std::string& name) {
  constexpr std::array<const char*, 4> kNames = {"exact", "ring", "tree", "halving_doubling"};
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (name == kNames[i]) return static_cast<Algorithm>(i);
  }
  return invalid_argument(
      fmt::format("no algorithm {}: exact, ring, tree or halving_doubling", name));
}

}  // namespace sgactor::apps
