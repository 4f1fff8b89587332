#include "kernels/cpu/thread_pool.h"

#include <immintrin.h>
#include <sched.h>

#include <algorithm>
#include <chrono>

namespace sgactor::kernels::cpu {
namespace {

constexpr uint64_t kNextMask = 0xffff;
constexpr uint64_t kCountMask = 0xffff;
constexpr int kCountShift = 16;
constexpr int kEpochShift = 32;
constexpr int64_t kMaxChunks = 0xffff;

// Inside a session a serial kernel may last this long before the helpers give their cores back.
constexpr int64_t kSpinInSessionNs = 1'000'000;
constexpr int64_t kSpinOutsideNs = 60'000;
constexpr int kPausesPerClockRead = 32;

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

ThreadPool::ThreadPool(int32_t num_threads) : num_threads_(std::max(num_threads, 1)) {
  helpers_.reserve(static_cast<size_t>(num_threads_ - 1));
  for (int32_t i = 1; i < num_threads_; ++i) helpers_.emplace_back([this, i] { helper_loop(i); });
}

ThreadPool::~ThreadPool() {
  stopping_.store(true);
  wake_helpers();
  for (std::thread& t : helpers_) t.join();
}

ThreadPool::Session::Session(ThreadPool& pool) : pool_(pool), owns_(false) {
  if (pool.num_threads_ == 1) return;
  owns_ = !pool.session_open_.exchange(true, std::memory_order_acq_rel);
  // Woken already here, so that they are awake when the first loop comes.
  if (owns_ && pool.num_sleeping_.load() > 0) pool.wake_helpers();
}

ThreadPool::Session::~Session() {
  if (owns_) pool_.session_open_.store(false, std::memory_order_release);
}

void ThreadPool::wake_helpers() {
  wake_epoch_.fetch_add(1);
  wake_epoch_.notify_all();
}

bool ThreadPool::drain(int32_t thread) {
  bool ran = false;
  uint64_t ticket = ticket_.load(std::memory_order_acquire);
  for (;;) {
    const uint64_t next = ticket & kNextMask;
    if (next >= ((ticket >> kCountShift) & kCountMask)) return ran;
    // These may be torn between two loops; the exchange below then fails, because a loop's fields
    // change only when its last chunk is claimed and done.
    BlockFn fn = fn_.load(std::memory_order_relaxed);
    void* context = context_.load(std::memory_order_relaxed);
    const int64_t size = chunk_size_.load(std::memory_order_relaxed);
    const int64_t total = num_blocks_.load(std::memory_order_relaxed);
    if (!ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel,
                                       std::memory_order_acquire)) {
      continue;
    }
    const int64_t begin = static_cast<int64_t>(next) * size;
    const int64_t end = std::min(begin + size, total);
    for (int64_t block = begin; block < end; ++block) fn(context, block, thread);
    done_chunks_.fetch_add(1, std::memory_order_release);
    ran = true;
    ticket = ticket_.load(std::memory_order_acquire);
  }
}

void ThreadPool::run(int64_t num_blocks, void* context, BlockFn fn) {
  const int64_t size = (num_blocks + kMaxChunks - 1) / kMaxChunks;
  const int64_t chunks = (num_blocks + size - 1) / size;
  context_.store(context, std::memory_order_relaxed);
  fn_.store(fn, std::memory_order_relaxed);
  num_blocks_.store(num_blocks, std::memory_order_relaxed);
  chunk_size_.store(size, std::memory_order_relaxed);
  done_chunks_.store(0, std::memory_order_relaxed);
  const uint64_t epoch = (ticket_.load(std::memory_order_relaxed) >> kEpochShift) + 1;
  ticket_.store((epoch << kEpochShift) | (static_cast<uint64_t>(chunks) << kCountShift));
  if (num_sleeping_.load() > 0) wake_helpers();
  drain(0);
  int64_t spins = 0;
  while (done_chunks_.load(std::memory_order_acquire) < chunks) {
    _mm_pause();
    // A helper that lost its core may be waiting for ours.
    if (++spins > 4096) sched_yield();
  }
}

void ThreadPool::helper_loop(int32_t thread) {
  int64_t idle_since = now_ns();
  int pauses = 0;
  while (!stopping_.load(std::memory_order_relaxed)) {
    const uint32_t epoch = wake_epoch_.load();
    if (drain(thread)) {
      idle_since = now_ns();
      continue;
    }
    _mm_pause();
    if (++pauses < kPausesPerClockRead) continue;
    pauses = 0;
    const bool in_session = session_open_.load(std::memory_order_relaxed);
    if (now_ns() - idle_since < (in_session ? kSpinInSessionNs : kSpinOutsideNs)) continue;
    // Announce first, then look once more: run() publishes its ticket before it reads the count.
    num_sleeping_.fetch_add(1);
    const uint64_t ticket = ticket_.load();
    const bool work = (ticket & kNextMask) < ((ticket >> kCountShift) & kCountMask);
    if (!work && !stopping_.load()) wake_epoch_.wait(epoch);
    num_sleeping_.fetch_sub(1);
    idle_since = now_ns();
  }
}

}  // namespace sgactor::kernels::cpu
