#include "kernels/cuda/stream.h"

#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/executable.h"
#include "kernels/cuda/fill_zeros.h"

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

namespace sgactor::kernels::cuda {
namespace {

constexpr size_t kFirstRing = 64;
constexpr size_t kUsualPointers = 64;
// To wake a sleeping thread takes about as long as a small kernel.
constexpr int64_t kSpinNs = 100'000;
/// Of the last work that was asked for, the marker behind it not counted: somebody waits for it,
/// and asks for more only then.
constexpr int64_t kLastSpinNs = 20'000'000;
constexpr uint64_t kLastItems = 2;
/// Between two looks at an event, so that they do not keep the other thread out of the driver.
constexpr int64_t kLookNs = 2'000;

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// Owns a CUDA event. Recorded by a stream's thread; others learn of that through `recorded`, and
/// through `failure` that it could not be: then the event is null and is never reached.
struct EventState {
  cudaEvent_t event = nullptr;
  std::mutex mutex;
  std::condition_variable changed;
  bool recorded = false;
  Status failure;

  EventState() = default;
  EventState(const EventState&) = delete;
  EventState& operator=(const EventState&) = delete;
  ~EventState() {
    if (event != nullptr) cudaEventDestroy(event);
  }
  void set_recorded(Status outcome) {
    {
      const std::lock_guard lock(mutex);
      recorded = true;
      failure = std::move(outcome);
    }
    changed.notify_all();
  }
  Status wait_recorded() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return recorded; });
    return failure;
  }
};

class CudaEvent final : public Event {
 public:
  explicit CudaEvent(std::shared_ptr<EventState> state) : state_(std::move(state)) {}
  [[nodiscard]] bool done() const override {
    {
      const std::lock_guard lock(state_->mutex);
      if (!state_->recorded) return false;
    }
    return state_->event != nullptr && cudaEventQuery(state_->event) == cudaSuccess;
  }
  [[nodiscard]] const std::shared_ptr<EventState>& state() const { return state_; }

 private:
  std::shared_ptr<EventState> state_;
};

/// Items in order, between two threads. Grows; keeps the capacity of what passes through.
template <class T>
class Ring {
 public:
  Ring() : items_(kFirstRing) {}
  template <class Fill>
  void push(Fill fill) {
    {
      const std::lock_guard lock(mutex_);
      if (pushed_ - popped_ == items_.size()) grow();
      fill(items_[pushed_ % items_.size()]);
      ++pushed_;
    }
    ready_.notify_one();
  }
  /// False once closed and empty. Spins for a moment before it sleeps.
  bool pop(T& item) {
    const int64_t until = now_ns() + kSpinNs;
    while (size() == 0 && !closed_.load() && now_ns() < until) std::this_thread::yield();
    std::unique_lock lock(mutex_);
    ready_.wait(lock, [this] { return popped_ != pushed_ || closed_; });
    if (popped_ == pushed_) return false;
    std::swap(item, items_[popped_ % items_.size()]);
    ++popped_;
    return true;
  }
  /// Pops the next item if it is there and `take` takes it.
  template <class Take>
  bool pop_if(Take take) {
    const std::lock_guard lock(mutex_);
    if (popped_ == pushed_ || !take(items_[popped_ % items_.size()])) return false;
    ++popped_;
    return true;
  }
  [[nodiscard]] uint64_t size() const { return pushed_.load() - popped_.load(); }
  void close() {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
    }
    ready_.notify_one();
  }

 private:
  void grow() {
    std::vector<T> larger(items_.size() * 2);
    for (uint64_t i = popped_; i != pushed_; ++i)
      larger[i % larger.size()] = std::move(items_[i % items_.size()]);
    items_ = std::move(larger);
  }
  std::mutex mutex_;
  std::condition_variable ready_;
  std::vector<T> items_;
  // Changed with the mutex held.
  std::atomic<uint64_t> pushed_{0};
  std::atomic<uint64_t> popped_{0};
  std::atomic<bool> closed_{false};
};

struct Command {
  enum class Kind : uint8_t { kLaunch, kCopy, kFillZero, kRecord, kWait } kind = Kind::kLaunch;
  const Executable* executable = nullptr;
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

/// What the completing thread waits for. Without an event: nothing.
struct Pending {
  cudaEvent_t end = nullptr;          ///< from the pool; of work with a sink
  std::shared_ptr<EventState> event;  ///< of a record
  CompletionSink* sink = nullptr;
  uint64_t token = 0;
  int64_t enqueued_ns = 0;
  Status status;
};

class EventPool {
 public:
  EventPool() = default;
  EventPool(const EventPool&) = delete;
  EventPool& operator=(const EventPool&) = delete;
  ~EventPool() {
    for (cudaEvent_t e : free_) cudaEventDestroy(e);
  }
  Result<cudaEvent_t> take() {
    {
      const std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        cudaEvent_t e = free_.back();
        free_.pop_back();
        return e;
      }
    }
    cudaEvent_t e = nullptr;
    SGA_CUDA_TRY(cudaEventCreateWithFlags(&e, cudaEventBlockingSync));
    return e;
  }
  void give_back(cudaEvent_t e) {
    if (e == nullptr) return;
    const std::lock_guard lock(mutex_);
    free_.push_back(e);
  }

 private:
  std::mutex mutex_;
  std::vector<cudaEvent_t> free_;
};

/// Spins for a while, then sleeps: most work ends while the next is being looked at.
cudaError_t wait_for(cudaEvent_t event, int64_t spin_ns) {
  const int64_t until = now_ns() + spin_ns;
  do {
    const cudaError_t error = cudaEventQuery(event);
    if (error != cudaErrorNotReady) return error;
    for (const int64_t look = now_ns() + kLookNs; now_ns() < look;) std::this_thread::yield();
  } while (now_ns() < until);
  return cudaEventSynchronize(event);
}

class CudaStream final : public Stream {
 public:
  explicit CudaStream(std::shared_ptr<CudaDevice> device) : device_(std::move(device)) {}
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;
  ~CudaStream() override {
    commands_.close();
    if (enqueuer_.joinable()) enqueuer_.join();
    pending_.close();
    if (completer_.joinable()) completer_.join();
    static_cast<void>(device_->use().ok());
    pool_.give_back(last_end_);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
    if (check_.device != nullptr) cudaFree(check_.device);
    if (check_.host != nullptr) cudaFreeHost(check_.host);
  }

  Status start() {
    SGA_TRY(device_->use());
    SGA_CUDA_TRY(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    SGA_CUDA_TRY(cudaMalloc(reinterpret_cast<void**>(&check_.device), sizeof(*check_.device)));
    SGA_CUDA_TRY(cudaMallocHost(reinterpret_cast<void**>(&check_.host), sizeof(*check_.host)));
    SGA_ASSIGN(last_end_, pool_.take());
    SGA_CUDA_TRY(cudaEventRecord(last_end_, stream_));
    SGA_CUDA_TRY(cudaEventSynchronize(last_end_));
    last_end_ns_ = now_ns();
    enqueuer_ = std::thread([this] { enqueue_loop(); });
    completer_ = std::thread([this] { complete_loop(); });
    return {};
  }

  void launch(const Executable& executable, const LaunchArgs& args, uint64_t token,
              CompletionSink& sink) override {
    push([&](Command& c) {
      c.kind = Command::Kind::kLaunch;
      c.executable = &executable;
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
      c.sink = nullptr;
      c.event = state;
    });
    return std::make_unique<CudaEvent>(std::move(state));
  }
  void wait(const Event& event) override {
    push([&](Command& c) {
      c.kind = Command::Kind::kWait;
      c.sink = nullptr;
      c.event = static_cast<const CudaEvent&>(event).state();
    });
  }
  void synchronize() override {
    const uint64_t target = num_pushed_.load();
    std::unique_lock lock(done_mutex_);
    done_.wait(lock, [&] { return num_done_ >= target; });
  }

 private:
  template <class Fill>
  void push(Fill fill) {
    commands_.push(fill);
    num_pushed_.fetch_add(1);
  }

  // The enqueuing thread.
  void enqueue_loop() {
    failure_ = device_->use();
    Command command;
    while (commands_.pop(command)) {
      Pending item;
      item.enqueued_ns = now_ns();
      item.sink = command.sink;
      item.token = command.token;
      if (command.kind == Command::Kind::kRecord) {
        // Also behind a failure, so that nobody waits for ever.
        const Status recorded = record_event(*command.event);
        if (failure_.ok()) failure_ = recorded;
        item.event = std::move(command.event);
      } else if (command.kind == Command::Kind::kWait) {
        const Status passed = wait_event(*command.event);
        if (failure_.ok()) failure_ = passed;
        // Only kept alive until here: its own stream sees it through.
        command.event.reset();
      } else if (is_small_fill(command)) {
        fill_with_followers(command, item.enqueued_ns);
        continue;
      } else {
        if (failure_.ok()) failure_ = work(command);
        if (failure_.ok()) failure_ = mark_end(item);
      }
      item.status = failure_;
      pending_.push([&](Pending& p) { p = std::move(item); });
    }
  }

  static bool is_small_fill(const Command& c) {
    return c.kind == Command::Kind::kFillZero && c.bytes > 0 && c.bytes <= kSmallFill;
  }

  /// Fills that stand together go as one, with one event: the first waits for it on behalf of all.
  void fill_with_followers(const Command& first, int64_t enqueued_ns) {
    fills_.clear();
    fill_items_.clear();
    const auto take = [&](const Command& c) {
      if (!is_small_fill(c)) return false;
      fills_.push_back({c.to, c.bytes});
      Pending& item = fill_items_.emplace_back();
      item.enqueued_ns = enqueued_ns;
      item.sink = c.sink;
      item.token = c.token;
      return true;
    };
    take(first);
    while (fills_.size() < kMostFills && commands_.pop_if(take)) continue;
    if (failure_.ok()) failure_ = fill_zeros(fills_, stream_);
    if (failure_.ok()) failure_ = mark_end(fill_items_.front());
    for (Pending& item : fill_items_) {
      item.status = failure_;
      pending_.push([&](Pending& p) { p = std::move(item); });
    }
  }

  Status record_event(EventState& state) {
    cudaEvent_t event = nullptr;
    Status outcome = cuda_status(
        cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync));
    if (outcome.ok()) {
      outcome = cuda_status(cudaEventRecord(event, stream_));
      if (outcome.ok()) {
        state.event = event;
      } else {
        cudaEventDestroy(event);
      }
    }
    outcome = outcome.with_context("an event is not recorded");
    state.set_recorded(outcome);
    return outcome;
  }

  /// What comes behind must not run before the event, so not at all if there will be none.
  Status wait_event(EventState& state) {
    SGA_TRY(state.wait_recorded());
    return cuda_status(cudaStreamWaitEvent(stream_, state.event, 0))
        .with_context("an event is not waited for");
  }

  Status mark_end(Pending& item) {
    SGA_ASSIGN(item.end, pool_.take());
    return cuda_status(cudaEventRecord(item.end, stream_));
  }

  Status work(const Command& c) {
    if (c.kind == Command::Kind::kLaunch) {
      const auto* ours = dynamic_cast<const CudaExecutable*>(c.executable);
      if (ours == nullptr) return invalid_argument("executable of another backend");
      return ours->run({.inputs = c.inputs,
                        .outputs = c.outputs,
                        .workspace = c.workspace,
                        .scratch = c.scratch},
                       stream_, check_);
    }
    if (c.bytes < 0) return invalid_argument("copy or fill of a negative number of bytes");
    if (c.bytes == 0) return {};
    const auto size = static_cast<size_t>(c.bytes);
    return cuda_status(c.kind == Command::Kind::kCopy
                           ? cudaMemcpyAsync(c.to, c.from, size, cudaMemcpyDefault, stream_)
                           : cudaMemsetAsync(c.to, 0, size, stream_));
  }

  // The completing thread.
  void complete_loop() {
    Status sticky = device_->use();
    Pending item;
    while (pending_.pop(item)) {
      if (item.event != nullptr && item.event->event != nullptr) {
        const Status reached = cuda_status(wait_for(item.event->event, kSpinNs));
        if (sticky.ok()) sticky = reached;
      }
      if (item.sink != nullptr) {
        complete(item, sticky);
      } else if (sticky.ok()) {
        sticky = item.status;
      }
      item.event.reset();
      {
        const std::lock_guard lock(done_mutex_);
        ++num_done_;
      }
      done_.notify_all();
    }
  }

  void complete(Pending& item, Status& sticky) {
    if (sticky.ok() && item.end != nullptr) {
      const bool is_last = commands_.size() == 0 && pending_.size() < kLastItems;
      sticky = cuda_status(wait_for(item.end, is_last ? kLastSpinNs : kSpinNs));
    }
    if (sticky.ok()) sticky = item.status;
    const bool shares_end = sticky.ok() && item.end == nullptr;
    LaunchTiming timing;
    const int64_t now = now_ns();
    int64_t end = shares_end ? last_end_ns_ : now;
    float ms = 0;
    if (sticky.ok() && !shares_end && cudaEventElapsedTime(&ms, last_end_, item.end) == cudaSuccess)
      end = last_end_ns_ + static_cast<int64_t>(static_cast<double>(ms) * 1e6);
    timing.end_ns = std::clamp(end, std::min(last_end_ns_, now), now);
    timing.start_ns = std::min(std::max(last_end_ns_, item.enqueued_ns), timing.end_ns);
    if (sticky.ok() && !shares_end) {
      pool_.give_back(last_end_);
      last_end_ = item.end;
    } else {
      pool_.give_back(item.end);
    }
    item.end = nullptr;
    last_end_ns_ = timing.end_ns;
    item.sink->on_complete(item.token, sticky, timing);
  }

  std::shared_ptr<CudaDevice> device_;
  cudaStream_t stream_ = nullptr;
  CheckPlace check_;
  EventPool pool_;
  Ring<Command> commands_;
  Ring<Pending> pending_;
  std::atomic<uint64_t> num_pushed_{0};
  std::mutex done_mutex_;
  std::condition_variable done_;
  uint64_t num_done_ = 0;
  // Of the enqueuing thread.
  Status failure_;
  std::vector<ZeroPlace> fills_;
  std::vector<Pending> fill_items_;
  cudaEvent_t last_end_ = nullptr;
  int64_t last_end_ns_ = 0;
  std::thread enqueuer_;
  std::thread completer_;
};

}  // namespace

Result<std::unique_ptr<Stream>> create_cuda_stream(std::shared_ptr<CudaDevice> device) {
  try {
    auto stream = std::make_unique<CudaStream>(std::move(device));
    SGA_TRY(stream->start());
    return std::unique_ptr<Stream>(std::move(stream));
  } catch (const std::system_error& e) {
    return make_status(Code::kInternal, std::string("cuda: cannot start a stream: ") + e.what(),
                       Scope::kDevice);
  }
}

}  // namespace sgactor::kernels::cuda
