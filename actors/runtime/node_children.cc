#include "actors/runtime/node_children.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <string>

namespace sgactor::actors {
namespace {

int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::string describe(int status) {
  if (WIFEXITED(status)) return fmt::format("exit code {}", WEXITSTATUS(status));
  return fmt::format("killed by signal {} ({})", WTERMSIG(status), ::strsignal(WTERMSIG(status)));
}

/// Whether a signal or a debugger has stopped the process.
bool is_stopped(pid_t pid) {
  std::ifstream in(fmt::format("/proc/{}/stat", pid));
  std::string text;
  std::getline(in, text);
  const size_t at = text.rfind(')');  // the name before it may hold anything
  return at != std::string::npos && at + 2 < text.size() &&
         (text[at + 2] == 'T' || text[at + 2] == 't');
}

/// Only calls that are safe between fork and exec.
[[noreturn]] void run_child(char* const* argv, pid_t parent, bool outlives) {
  ::setpgid(0, 0);
  if (!outlives) ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // The parent may have died before prctl: then nobody would ever send the signal.
  if (!outlives && ::getppid() != parent) ::_exit(127);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) ::signal(signal, SIG_DFL);
  ::execv(argv[0], argv);
  ::_exit(127);
}

}  // namespace

NodeChildren::~NodeChildren() { end(0); }

Result<pid_t> NodeChildren::start(const std::vector<std::string>& words, int32_t tag,
                                  bool outlives) {
  std::vector<std::string> copy = words;
  std::vector<char*> argv;
  for (std::string& word : copy) argv.push_back(word.data());
  argv.push_back(nullptr);
  if (::access(argv[0], X_OK) != 0) {
    return internal_error(fmt::format("{}: {}", words[0], std::strerror(errno)));
  }
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) return internal_error(fmt::format("fork: {}", std::strerror(errno)));
  if (pid == 0) run_child(argv.data(), parent, outlives);
  ::setpgid(pid, pid);  // both sides, so that it holds whoever runs first
  const int fd = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
  if (fd < 0) {
    const Status status = internal_error(fmt::format("pidfd_open: {}", std::strerror(errno)));
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    return status;
  }
  children_.push_back({pid, fd, tag});
  return pid;
}

std::vector<NodeChildren::Exit> NodeChildren::take_exits() {
  std::vector<Exit> out;
  for (auto it = children_.begin(); it != children_.end();) {
    int status = 0;
    if (::waitpid(it->pid, &status, WNOHANG) != it->pid) {
      ++it;
      continue;
    }
    out.push_back({it->pid, it->tag, status, describe(status)});
    ::close(it->pidfd);
    it = children_.erase(it);
  }
  return out;
}

std::vector<int> NodeChildren::fds() const {
  std::vector<int> out;
  for (const Child& c : children_) out.push_back(c.pidfd);
  return out;
}

std::vector<int32_t> NodeChildren::tags() const {
  std::vector<int32_t> out;
  for (const Child& c : children_) out.push_back(c.tag);
  return out;
}

void NodeChildren::signal_all(int signal) const {
  for (const Child& c : children_) ::kill(c.pid, signal);
}

bool NodeChildren::kill(int32_t tag, bool only_if_stopped) const {
  for (const Child& c : children_) {
    if (c.tag != tag || (only_if_stopped && !is_stopped(c.pid))) continue;
    ::kill(-c.pid, SIGKILL);
    return ::kill(c.pid, SIGKILL) == 0;
  }
  return false;
}

bool NodeChildren::end(int64_t grace_ms) {
  const int64_t deadline = now_ms() + grace_ms;
  while (!children_.empty() && now_ms() < deadline) {
    std::vector<pollfd> fds;
    for (int fd : this->fds()) fds.push_back({fd, POLLIN, 0});
    ::poll(fds.data(), fds.size(), static_cast<int>(std::max<int64_t>(0, deadline - now_ms())));
    take_exits();
  }
  const bool clean = children_.empty();
  for (const Child& c : children_) {
    ::kill(-c.pid, SIGKILL);
    ::kill(c.pid, SIGKILL);
    ::waitpid(c.pid, nullptr, 0);
    ::close(c.pidfd);
  }
  children_.clear();
  return clean;
}

}  // namespace sgactor::actors
