#include "kernels/cpu/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

namespace sgactor::kernels::cpu {
namespace {

void expect_each_block_once(ThreadPool::Session& session, int64_t num_blocks, int32_t threads) {
  std::vector<std::atomic<int>> runs(static_cast<size_t>(num_blocks));
  std::atomic<bool> thread_in_range{true};
  session.parallel_for(num_blocks, [&](int64_t block, int32_t thread) {
    runs[static_cast<size_t>(block)].fetch_add(1);
    if (thread < 0 || thread >= threads) thread_in_range = false;
  });
  for (auto& r : runs) ASSERT_EQ(r.load(), 1);
  EXPECT_TRUE(thread_in_range);
}

TEST(ThreadPool, RunsEachBlockOnce) {
  for (int32_t threads : {1, 2, 3}) {
    ThreadPool pool(threads);
    ThreadPool::Session session(pool);
    for (int64_t n : {0, 1, 2, 3, 7, 100, 65535, 65536, 200001}) {
      expect_each_block_once(session, n, threads);
    }
  }
}

TEST(ThreadPool, ThreadIdsDoNotRunAtTheSameTime) {
  constexpr int32_t kThreads = 3;
  ThreadPool pool(kThreads);
  ThreadPool::Session session(pool);
  std::vector<std::atomic<int>> inside(kThreads);
  std::atomic<bool> shared{false};
  session.parallel_for(5000, [&](int64_t, int32_t thread) {
    if (inside[static_cast<size_t>(thread)].fetch_add(1) != 0) shared = true;
    inside[static_cast<size_t>(thread)].fetch_sub(1);
  });
  EXPECT_FALSE(shared);
}

TEST(ThreadPool, LoopsFollowEachOtherWithoutLosingBlocks) {
  ThreadPool pool(3);
  int64_t total = 0;
  for (int round = 0; round < 200; ++round) {
    ThreadPool::Session session(pool);
    for (int loop = 0; loop < 50; ++loop) {
      std::atomic<int64_t> sum{0};
      session.parallel_for(5, [&](int64_t block, int32_t) { sum.fetch_add(block + 1); });
      total += sum.load();
    }
  }
  EXPECT_EQ(total, 200 * 50 * 15);
}

TEST(ThreadPool, ASecondSessionRunsAlone) {
  ThreadPool pool(3);
  ThreadPool::Session first(pool);
  std::thread other([&pool] {
    ThreadPool::Session second(pool);
    bool alone = true;
    const auto self = std::this_thread::get_id();
    second.parallel_for(100, [&](int64_t, int32_t thread) {
      alone = alone && thread == 0 && std::this_thread::get_id() == self;
    });
    EXPECT_TRUE(alone);
  });
  expect_each_block_once(first, 1000, 3);
  other.join();
}

TEST(ThreadPool, SessionsOfManyThreadsDoNotMixLoops) {
  ThreadPool pool(2);
  std::vector<std::thread> users;
  std::atomic<int64_t> total{0};
  for (int u = 0; u < 3; ++u) {
    users.emplace_back([&] {
      for (int round = 0; round < 100; ++round) {
        ThreadPool::Session session(pool);
        std::atomic<int64_t> sum{0};
        session.parallel_for(10, [&](int64_t block, int32_t) { sum.fetch_add(block); });
        total.fetch_add(sum.load());
      }
    });
  }
  for (std::thread& t : users) t.join();
  EXPECT_EQ(total.load(), 3 * 100 * 45);
}

TEST(ThreadPool, StopsWithoutEverHavingWorked) {
  const auto pool = std::make_unique<ThreadPool>(4);
  EXPECT_EQ(pool->num_threads(), 4);
}

}  // namespace
}  // namespace sgactor::kernels::cpu
