#include "transport/core/event_loop.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>

namespace sgactor::transport {
namespace {

Status system_error(const char* what) {
  return internal_error(fmt::format("{}: {}", what, std::strerror(errno)));
}

}  // namespace

Result<std::unique_ptr<EventLoop>> EventLoop::create(const Options& options) {
  std::unique_ptr<EventLoop> loop(new EventLoop(options));
  loop->epoll_fd_ = epoll_create1(EPOLL_CLOEXEC);
  if (loop->epoll_fd_ < 0) return system_error("epoll_create1");
  loop->wake_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (loop->wake_fd_ < 0) return system_error("eventfd");
  EventLoop* raw = loop.get();
  SGA_TRY(loop->add_fd(loop->wake_fd_, EPOLLIN, [raw](uint32_t) {
    uint64_t count = 0;
    (void)!read(raw->wake_fd_, &count, sizeof(count));
  }));
  return loop;
}

EventLoop::~EventLoop() {
  stop();
  if (wake_fd_ >= 0) close(wake_fd_);
  if (epoll_fd_ >= 0) close(epoll_fd_);
}

void EventLoop::post(Task task) {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_.load(std::memory_order_relaxed)) return;
    tasks_.push_back(std::move(task));
    has_tasks_.store(true);
  }
  // Sequentially consistent with the loop's store of sleeping_ and its second look at has_tasks_:
  // one of the two sees the other.
  if (sleeping_.load()) {
    const uint64_t one = 1;
    (void)!write(wake_fd_, &one, sizeof(one));
  }
}

void EventLoop::post_after(int64_t delay_ns, Task task) {
  const int64_t due = now_ns() + std::max<int64_t>(delay_ns, 0);
  {
    const std::lock_guard lock(mutex_);
    if (stopping_.load(std::memory_order_relaxed)) return;
    timers_.emplace(std::pair(due, num_timers_posted_++), std::move(task));
  }
  if (!inside()) post([] {});  // so that a sleeping loop computes its time-out again
}

int64_t EventLoop::now_ns() const {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

bool EventLoop::inside() const {
  return thread_id_.load(std::memory_order_relaxed) == std::this_thread::get_id();
}

void EventLoop::start() {
  SGA_CHECK(!thread_.joinable(), "the loop runs already");
  thread_ = std::thread([this] { run(); });
}

void EventLoop::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_.store(true);
    has_tasks_.store(true);
    timers_.clear();
  }
  const uint64_t one = 1;
  if (wake_fd_ >= 0) (void)!write(wake_fd_, &one, sizeof(one));
  if (thread_.joinable()) thread_.join();
}

Status EventLoop::add_fd(int fd, uint32_t events, FdCallback callback) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  if (epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &event) != 0) return system_error("epoll_ctl");
  watches_[fd] = std::make_shared<Watch>(Watch{std::move(callback)});
  return {};
}

Status EventLoop::change_fd(int fd, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  if (epoll_ctl(epoll_fd_, EPOLL_CTL_MOD, fd, &event) != 0) return system_error("epoll_ctl");
  return {};
}

void EventLoop::remove_fd(int fd) {
  const auto it = watches_.find(fd);
  if (it == watches_.end()) return;
  it->second->removed = true;
  watches_.erase(it);
  epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, fd, nullptr);
}

void EventLoop::add_poller(Poller* poller) { pollers_.push_back(poller); }

void EventLoop::remove_poller(Poller* poller) {
  // Set to null rather than erased: the loop may be walking the list.
  std::replace(pollers_.begin(), pollers_.end(), poller, static_cast<Poller*>(nullptr));
}

void EventLoop::run() {
  thread_id_.store(std::this_thread::get_id());
  pthread_setname_np(pthread_self(), options_.name.c_str());
  int64_t last_work_ns = now_ns();
  int64_t last_fds_ns = 0;
  while (true) {
    bool worked = run_tasks();
    if (stopping_.load() && !worked) break;
    worked |= run_pollers();
    worked |= run_timers();
    const int64_t now = now_ns();
    // A look at the descriptors is a system call: while other work goes on, take one now and then.
    if (now - last_fds_ns > 10'000) {
      worked |= wait_fds(0);
      last_fds_ns = now;
    }
    if (worked) last_work_ns = now;
    if (now - last_work_ns < options_.spin_ns) {
      std::this_thread::yield();
      continue;
    }
    sleeping_.store(true);
    if (!has_tasks_.load() && arm_pollers()) wait_fds(sleep_ms());
    sleeping_.store(false);
    last_work_ns = now_ns();
  }
  thread_id_.store({});
}

bool EventLoop::run_tasks() {
  if (!has_tasks_.load(std::memory_order_relaxed)) return false;
  {
    const std::lock_guard lock(mutex_);
    batch_.swap(tasks_);
    has_tasks_.store(false);
  }
  const bool any = !batch_.empty();
  for (Task& task : batch_) task();
  batch_.clear();
  return any;
}

bool EventLoop::run_timers() {
  bool any = false;
  while (true) {
    Task task;
    {
      const std::lock_guard lock(mutex_);
      if (timers_.empty() || timers_.begin()->first.first > now_ns()) break;
      task = std::move(timers_.begin()->second);
      timers_.erase(timers_.begin());
    }
    task();
    any = true;
  }
  return any;
}

bool EventLoop::run_pollers() {
  bool any = false;
  for (size_t i = 0; i < pollers_.size(); ++i) {
    if (pollers_[i] != nullptr) any |= pollers_[i]->poll();
  }
  std::erase(pollers_, nullptr);
  return any;
}

bool EventLoop::arm_pollers() {
  return std::all_of(pollers_.begin(), pollers_.end(),
                     [](Poller* p) { return p == nullptr || p->arm(); });
}

bool EventLoop::wait_fds(int timeout_ms) {
  std::array<epoll_event, 64> events;
  const int n = epoll_wait(epoll_fd_, events.data(), static_cast<int>(events.size()), timeout_ms);
  for (int i = 0; i < n; ++i) {
    const auto it = watches_.find(events[static_cast<size_t>(i)].data.fd);
    if (it == watches_.end()) continue;
    const std::shared_ptr<Watch> watch = it->second;  // a callback may remove itself
    if (!watch->removed) watch->callback(events[static_cast<size_t>(i)].events);
  }
  return n > 0;
}

int EventLoop::sleep_ms() const {
  const std::lock_guard lock(mutex_);
  if (timers_.empty()) return -1;
  const int64_t wait_ns = timers_.begin()->first.first - now_ns();
  // Rounded up, so that the loop does not wake a little early again and again.
  return static_cast<int>(std::clamp<int64_t>((wait_ns + 999'999) / 1'000'000, 0, 60'000));
}

}  // namespace sgactor::transport
