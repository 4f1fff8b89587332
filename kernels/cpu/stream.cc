#include "kernels/cpu/stream.h"

#include "graph/base/units.h"
#include "kernels/cpu/executable.h"

#include <immintrin.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace sgactor::kernels::cpu {
namespace {

constexpr int64_t kCopyBlock = kMiB;
constexpr int64_t kIdleSpinNs = 20'000;
constexpr size_t kRingSize = 64;
constexpr size_t kUsualPointers = 64;

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

struct EventState {
  std::mutex mutex;
  std::condition_variable changed;
  std::atomic<bool> done{false};

  void set() {
    {
      const std::lock_guard lock(mutex);
      done.store(true, std::memory_order_release);
    }
    changed.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return done.load(); });
  }
};

class CpuEvent final : public Event {
 public:
  explicit CpuEvent(std::shared_ptr<EventState> state) : state_(std::move(state)) {}
  [[nodiscard]] bool done() const override { return state_->done.load(std::memory_order_acquire); }
  [[nodiscard]] const std::shared_ptr<EventState>& state() const { return state_; }

 private:
  std::shared_ptr<EventState> state_;
};

struct Command {
  enum class Kind : uint8_t { kLaunch, kCopy, kFillZero, kRecord, kWait } kind = Kind::kLaunch;
  const CpuExecutable* executable = nullptr;
  // Room for most bodies from the start, kept when commands are swapped through the ring.
  std::vector<std::byte*> inputs;
  std::vector<std::byte*> outputs;
  std::byte* workspace = nullptr;
  std::byte* scratch = nullptr;
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  int64_t bytes = 0;
  uint64_t token = 0;
  CompletionSink* sink = nullptr;
  std::shared_ptr<EventState> event;

  Command() {
    inputs.reserve(kUsualPointers);
    outputs.reserve(kUsualPointers);
  }
};

class CpuStream final : public Stream {
 public:
  explicit CpuStream(std::shared_ptr<CpuDevice> device)
      : device_(std::move(device)), ring_(kRingSize), thread_([this] { loop(); }) {}
  ~CpuStream() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    pending_.fetch_add(1);
    ready_.notify_one();
    thread_.join();
  }
  CpuStream(const CpuStream&) = delete;
  CpuStream& operator=(const CpuStream&) = delete;

  void launch(const Executable& executable, const LaunchArgs& args, uint64_t token,
              CompletionSink& sink) override {
    push([&](Command& c) {
      c.kind = Command::Kind::kLaunch;
      c.executable = static_cast<const CpuExecutable*>(&executable);
      c.inputs.assign(args.inputs.begin(), args.inputs.end());
      c.outputs.assign(args.outputs.begin(), args.outputs.end());
      c.workspace = args.workspace;
      c.scratch = args.scratch;
      c.token = token;
      c.sink = &sink;
    });
  }
  void copy(std::byte* to, const std::byte* from, int64_t bytes, uint64_t token,
            CompletionSink& sink) override {
    push([&](Command& c) {
      c.kind = Command::Kind::kCopy;
      c.to = to;
      c.from = from;
      c.bytes = bytes;
      c.token = token;
      c.sink = &sink;
    });
  }
  void fill_zero(std::byte* to, int64_t bytes, uint64_t token, CompletionSink& sink) override {
    push([&](Command& c) {
      c.kind = Command::Kind::kFillZero;
      c.to = to;
      c.bytes = bytes;
      c.token = token;
      c.sink = &sink;
    });
  }
  std::unique_ptr<Event> record() override {
    auto state = std::make_shared<EventState>();
    push([&](Command& c) {
      c.kind = Command::Kind::kRecord;
      c.event = state;
    });
    return std::make_unique<CpuEvent>(std::move(state));
  }
  void wait(const Event& event) override {
    push([&](Command& c) {
      c.kind = Command::Kind::kWait;
      c.event = static_cast<const CpuEvent&>(event).state();
    });
  }
  void synchronize() override {
    std::unique_lock lock(mutex_);
    const uint64_t target = num_pushed_;
    idle_.wait(lock, [&] { return num_done_ >= target; });
  }

 private:
  template <class Fill>
  void push(Fill fill) {
    {
      const std::lock_guard lock(mutex_);
      if (num_pushed_ - num_popped_ == ring_.size()) grow();
      fill(ring_[num_pushed_ % ring_.size()]);
      ++num_pushed_;
    }
    pending_.fetch_add(1);
    ready_.notify_one();
  }

  void grow() {
    std::vector<Command> larger(ring_.size() * 2);
    for (uint64_t i = num_popped_; i != num_pushed_; ++i) {
      larger[i % larger.size()] = std::move(ring_[i % ring_.size()]);
    }
    ring_ = std::move(larger);
  }

  /// False when the stream is to end and nothing is left.
  bool pop(Command& command) {
    const int64_t spin_until = now_ns() + kIdleSpinNs;
    // The next launch of a lane usually follows at once; a wake-up would cost more than this spin.
    while (pending_.load(std::memory_order_acquire) == 0 && now_ns() < spin_until) _mm_pause();
    std::unique_lock lock(mutex_);
    ready_.wait(lock, [this] { return num_popped_ != num_pushed_ || stopping_; });
    if (num_popped_ == num_pushed_) return false;
    std::swap(command, ring_[num_popped_ % ring_.size()]);
    ++num_popped_;
    pending_.fetch_sub(1);
    return true;
  }

  void loop() {
    Command command;
    while (pop(command)) {
      execute(command);
      command.event.reset();
      {
        const std::lock_guard lock(mutex_);
        ++num_done_;
      }
      idle_.notify_all();
    }
  }

  void execute(const Command& c) {
    if (c.kind == Command::Kind::kRecord) {
      c.event->set();
      return;
    }
    if (c.kind == Command::Kind::kWait) {
      c.event->wait();
      return;
    }
    LaunchTiming timing{.start_ns = now_ns()};
    if (failure_.ok()) failure_ = work(c);
    timing.end_ns = now_ns();
    c.sink->on_complete(c.token, failure_, timing);
  }

  Status work(const Command& c) {
    if (c.kind == Command::Kind::kLaunch) {
      return c.executable->run(device_->pool, {.inputs = c.inputs,
                                               .outputs = c.outputs,
                                               .workspace = c.workspace,
                                               .scratch = c.scratch});
    }
    ThreadPool::Session session(device_->pool);
    session.parallel_for(ceil_div(c.bytes, kCopyBlock), [&](int64_t block, int32_t) {
      const int64_t begin = block * kCopyBlock;
      const auto size = static_cast<size_t>(std::min(kCopyBlock, c.bytes - begin));
      if (c.kind == Command::Kind::kCopy) {
        std::memcpy(c.to + begin, c.from + begin, size);
      } else {
        std::memset(c.to + begin, 0, size);
      }
    });
    return {};
  }

  std::shared_ptr<CpuDevice> device_;
  std::mutex mutex_;
  std::condition_variable ready_;
  std::condition_variable idle_;
  std::vector<Command> ring_;
  uint64_t num_pushed_ = 0;
  uint64_t num_popped_ = 0;
  uint64_t num_done_ = 0;
  bool stopping_ = false;
  std::atomic<int64_t> pending_{0};
  Status failure_;      // of the stream's thread only
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace

Result<std::unique_ptr<Stream>> create_cpu_stream(std::shared_ptr<CpuDevice> device) {
  try {
    return std::unique_ptr<Stream>(std::make_unique<CpuStream>(std::move(device)));
  } catch (const std::system_error& e) {
    return make_status(Code::kInternal, std::string("cpu: cannot start a stream: ") + e.what(),
                       Scope::kDevice);
  }
}

}  // namespace sgactor::kernels::cpu
