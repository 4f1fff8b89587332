#pragma once
#include "graph/base/status.h"

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace sgactor::actors {

/// Child processes that cannot outlive this one, but where the caller says so: each gets a process
/// group of its own (a Ctrl-C at the terminal reaches the parent alone, which decides) and is
/// killed by the kernel when the thread that started it ends. Their deaths are seen at once,
/// through pidfds. One thread uses it: the main thread, which lives as long as the process.
/// Destroying it kills and collects all.
class NodeChildren {
 public:
  struct Exit {
    pid_t pid = 0;
    int32_t tag = 0;
    int status = 0;   ///< as waitpid gives it
    std::string how;  ///< "exit code 1", "killed by signal 9 (Killed)"
    [[nodiscard]] bool clean() const { return status == 0; }
  };

  NodeChildren() = default;
  ~NodeChildren();
  NodeChildren(const NodeChildren&) = delete;
  NodeChildren& operator=(const NodeChildren&) = delete;

  /// Starts a program with these words; the first is its file. `tag` is the caller's name for it.
  /// Standard streams are shared. `outlives`: the child lives on when this process is killed; it
  /// knows by itself when to end. Errors: kInternal naming the file.
  Result<pid_t> start(const std::vector<std::string>& words, int32_t tag, bool outlives = false);
  /// Children that have ended since the last call. Never blocks.
  std::vector<Exit> take_exits();
  /// For poll(): each is readable when its child has ended.
  [[nodiscard]] std::vector<int> fds() const;
  /// Of those that run.
  [[nodiscard]] std::vector<int32_t> tags() const;
  [[nodiscard]] bool empty() const { return children_.empty(); }
  void signal_all(int signal) const;
  /// Kills the child of this tag; with `only_if_stopped` only one that a signal has stopped. Its
  /// exit follows. Returns whether it was killed.
  bool kill(int32_t tag, bool only_if_stopped) const;
  /// Waits at most this long for all to end by themselves, then kills those that are left and
  /// collects them. Returns whether none had to be killed.
  bool end(int64_t grace_ms);

 private:
  struct Child {
    pid_t pid;
    int pidfd;
    int32_t tag;
  };
  std::vector<Child> children_;
};

}  // namespace sgactor::actors
