#include "actors/runtime/services.h"

#include <pthread.h>

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

namespace sgactor::actors {
namespace {

Status run_guarded(const BlockingService::Work& work) {
  try {
    return work();
  } catch (const std::exception& e) {
    return internal_error(std::string("exception in a service: ") + e.what());
  } catch (...) {
    return internal_error("exception of unknown type in a service");
  }
}

class InlineService final : public BlockingService {
 public:
  void submit(Work work, Done done) override { done(run_guarded(work)); }
};

class ThreadService final : public BlockingService {
 public:
  explicit ThreadService(const std::string& name) : thread_([this] { run(); }) {
    pthread_setname_np(thread_.native_handle(), name.substr(0, 15).c_str());
  }
  ~ThreadService() override {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }
  ThreadService(const ThreadService&) = delete;
  ThreadService& operator=(const ThreadService&) = delete;

  void submit(Work work, Done done) override {
    {
      const std::lock_guard lock(mutex_);
      jobs_.push_back({std::move(work), std::move(done)});
    }
    wake_.notify_one();
  }

 private:
  struct Job {
    Work work;
    Done done;
  };
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [this] { return ending_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      {
        // Job and what it captured end outside the lock: its last reference may send a message.
        const Job job = std::move(jobs_.front());
        jobs_.pop_front();
        lock.unlock();
        job.done(run_guarded(job.work));
      }
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Job> jobs_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<BlockingService> create_thread_service(const std::string& name) {
  return std::make_unique<ThreadService>(name);
}

std::unique_ptr<BlockingService> create_inline_service() {
  return std::make_unique<InlineService>();
}

}  // namespace sgactor::actors
