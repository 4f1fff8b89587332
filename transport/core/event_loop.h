#pragma once
#include "graph/base/status.h"
#include "transport/core/progress.h"

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

namespace sgactor::transport {

/// Something without a file descriptor that the loop looks at while it is awake: rings in shared
/// memory, a communication library.
class Poller {
 public:
  virtual ~Poller() = default;
  /// Does what is there to do. Returns whether there was anything.
  virtual bool poll() = 0;
  /// The loop is about to sleep: makes a descriptor of the loop wake it from now on. False if
  /// something has come meanwhile; the loop then polls again.
  virtual bool arm() = 0;
};

/// Progress on a thread of its own, with descriptors, timers and pollers. Sleeps in epoll when
/// nothing has happened for `spin_ns`; until then it looks without sleeping, so that a busy lane
/// pays no wake-up and an idle process burns no core.
class EventLoop final : public Progress {
 public:
  struct Options {
    /// Long enough that two processes that exchange a large tensor do not sleep in turns. Each look
    /// yields: where other threads want the core, they have it.
    int64_t spin_ns = 200'000;
    std::string name = "sga-progress";  ///< of the thread; at most 15 characters
  };
  using FdCallback = std::function<void(uint32_t epoll_events)>;

  /// Errors: kInternal if the system grants no descriptor.
  static Result<std::unique_ptr<EventLoop>> create(const Options& options);
  /// As stop().
  ~EventLoop() override;

  void post(Task task) override;
  void post_after(int64_t delay_ns, Task task) override;
  [[nodiscard]] int64_t now_ns() const override;
  [[nodiscard]] bool inside() const override;

  /// Starts the thread. Descriptors and pollers may be added before.
  void start();
  /// Runs what is posted already, then ends the thread and drops timers. From any other thread;
  /// idempotent.
  void stop();

  /// Before start() or from inside. `events` as for epoll. The descriptor stays the caller's.
  Status add_fd(int fd, uint32_t events, FdCallback callback);
  Status change_fd(int fd, uint32_t events);
  /// The callback is not called again, also if an event was read already.
  void remove_fd(int fd);
  void add_poller(Poller* poller);
  void remove_poller(Poller* poller);

 private:
  struct Watch {
    FdCallback callback;
    bool removed = false;
  };

  explicit EventLoop(Options options) : options_(std::move(options)) {}
  void run();
  bool run_tasks();
  bool run_timers();
  bool run_pollers();
  bool arm_pollers();
  bool wait_fds(int timeout_ms);
  [[nodiscard]] int sleep_ms() const;

  Options options_;
  int epoll_fd_ = -1;
  int wake_fd_ = -1;
  std::thread thread_;
  std::atomic<std::thread::id> thread_id_{};

  mutable std::mutex mutex_;
  std::vector<Task> tasks_;                              // guarded by mutex_
  std::map<std::pair<int64_t, uint64_t>, Task> timers_;  // guarded by mutex_
  uint64_t num_timers_posted_ = 0;                       // guarded by mutex_
  std::atomic<bool> has_tasks_{false};
  std::atomic<bool> sleeping_{false};
  std::atomic<bool> stopping_{false};

  std::vector<Task> batch_;
  std::vector<Poller*> pollers_;
  std::unordered_map<int, std::shared_ptr<Watch>> watches_;
};

}  // namespace sgactor::transport
