#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

namespace sgactor::kernels::cpu {

/// Helpers that run numbered blocks beside a caller. Blocks are handed out one by one to whoever is
/// free, so what a block computes must not depend on which thread runs it. One Session at a time
/// owns the helpers; while it lives they spin for the next loop instead of sleeping, since a
/// wake-up costs more than a small kernel.
class ThreadPool {
 public:
  /// Starts `num_threads` - 1 helpers (none for 1). Pre: num_threads >= 1.
  explicit ThreadPool(int32_t num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  [[nodiscard]] int32_t num_threads() const { return num_threads_; }

  /// A stretch of loops of one thread. If another session owns the helpers, this one runs its loops
  /// alone. Results are the same either way. Used from the thread that made it.
  class Session {
   public:
    explicit Session(ThreadPool& pool);
    ~Session();
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;

    /// Calls f(block, thread) for each block in [0, num_blocks); returns when all are done.
    /// `thread` is in [0, num_threads) and distinct for calls that run at the same time: it picks
    /// per-thread scratch. f must not throw and must not call parallel_for. No allocation.
    template <class F>
    void parallel_for(int64_t num_blocks, F&& f) {
      if (!owns_ || num_blocks <= 1) {
        for (int64_t i = 0; i < num_blocks; ++i) f(i, 0);
        return;
      }
      using Fn = std::remove_reference_t<F>;
      pool_.run(num_blocks, const_cast<void*>(static_cast<const void*>(&f)),
                [](void* context, int64_t block, int32_t thread) {
                  (*static_cast<Fn*>(context))(block, thread);
                });
    }

   private:
    ThreadPool& pool_;
    bool owns_;
  };

 private:
  using BlockFn = void (*)(void* context, int64_t block, int32_t thread);

  void run(int64_t num_blocks, void* context, BlockFn fn);
  /// Runs blocks of the current loop until none is left. True if it ran any.
  bool drain(int32_t thread);
  void helper_loop(int32_t thread);
  void wake_helpers();

  // Ticket: loop number (32 bits), number of chunks (16), next chunk (16). One word, so that a
  // helper that comes late can never claim a chunk of a loop whose fields it did not read.
  alignas(64) std::atomic<uint64_t> ticket_{0};
  alignas(64) std::atomic<int64_t> done_chunks_{0};
  alignas(64) std::atomic<void*> context_{nullptr};
  std::atomic<BlockFn> fn_{nullptr};
  std::atomic<int64_t> num_blocks_{0};
  std::atomic<int64_t> chunk_size_{1};
  alignas(64) std::atomic<uint32_t> wake_epoch_{0};
  std::atomic<int32_t> num_sleeping_{0};
  std::atomic<bool> session_open_{false};
  std::atomic<bool> stopping_{false};
  int32_t num_threads_;
  std::vector<std::thread> helpers_;
};

}  // namespace sgactor::kernels::cpu
