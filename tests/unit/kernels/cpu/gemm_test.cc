#include "kernels/cpu/gemm.h"

#include "graph/base/philox.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

namespace sgactor::kernels::cpu {
namespace {

std::vector<const KernelTable*> runnable_families() {
  std::vector<const KernelTable*> tables = {&baseline::kernel_table()};
  if (__builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0) {
    tables.push_back(&avx2::kernel_table());
  }
  if (&select_kernel_table() != tables.back()) tables.push_back(&select_kernel_table());
  return tables;
}

struct Free {
  void operator()(void* p) const { std::free(p); }
};
std::unique_ptr<std::byte, Free> aligned(int64_t bytes) {
  const auto size = static_cast<size_t>((bytes + 63) / 64 * 64 + 64);
  return std::unique_ptr<std::byte, Free>(static_cast<std::byte*>(std::aligned_alloc(64, size)));
}

std::vector<float> random_matrix(int64_t n, uint64_t stream) {
  const PhiloxStream rng{.seed = 9, .stream = stream};
  std::vector<float> v(static_cast<size_t>(n));
  for (size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>(rng.uniform(i) - 0.5);
  return v;
}

/// Leading dims larger than the matrices, so that what lies between rows can be checked.
Gemm shape(int64_t m, int64_t n, int64_t k, int trans, bool accumulate) {
  const bool trans_a = (trans & 1) != 0;
  const bool trans_b = (trans & 2) != 0;
  return {.trans_a = trans_a,
          .trans_b = trans_b,
          .m = m,
          .n = n,
          .k = k,
          .lda = (trans_a ? m : k) + 3,
          .ldb = (trans_b ? k : n) + 2,
          .ldc = n + 5,
          .accumulate = accumulate};
}

struct Operands {
  explicit Operands(const Gemm& g)
      : a(random_matrix((g.trans_a ? g.k : g.m) * g.lda + 1, 1)),
        b(random_matrix((g.trans_b ? g.n : g.k) * g.ldb + 1, 2)),
        c(random_matrix(g.m * g.ldc + 1, 3)) {}
  std::vector<float> a, b, c;
};

void check_against_loops(const KernelTable& kernels, const Gemm& g) {
  const Operands before(g);
  auto c = before.c;
  const auto scratch = aligned(gemm_scratch_bytes());
  gemm(kernels, g, before.a.data(), before.b.data(), c.data(),
       reinterpret_cast<float*>(scratch.get()));
  for (int64_t i = 0; i < g.m; ++i) {
    for (int64_t j = 0; j < g.ldc; ++j) {
      const auto at = static_cast<size_t>(i * g.ldc + j);
      if (j >= g.n) {
        ASSERT_EQ(c[at], before.c[at]) << "written outside of C";
        continue;
      }
      double want = g.accumulate ? before.c[at] : 0;
      for (int64_t l = 0; l < g.k; ++l) {
        const auto a_at = static_cast<size_t>(g.trans_a ? l * g.lda + i : i * g.lda + l);
        const auto b_at = static_cast<size_t>(g.trans_b ? j * g.ldb + l : l * g.ldb + j);
        want += static_cast<double>(before.a[a_at]) * before.b[b_at];
      }
      ASSERT_NEAR(c[at], want, 2e-6 * std::sqrt(static_cast<double>(g.k) + 1))
          << kernels.family << " " << g.m << "x" << g.n << "x" << g.k << " trans " << g.trans_a
          << g.trans_b << " at " << i << ", " << j;
    }
  }
}

TEST(Gemm, AgreesWithPlainLoops) {
  for (const KernelTable* kernels : runnable_families()) {
    for (int trans = 0; trans < 4; ++trans) {
      for (bool accumulate : {false, true}) {
        check_against_loops(*kernels, shape(1, 1, 1, trans, accumulate));
        check_against_loops(*kernels, shape(5, 3, 7, trans, accumulate));
        check_against_loops(*kernels, shape(17, 33, 64, trans, accumulate));
        check_against_loops(*kernels, shape(24, 48, 100, trans, accumulate));
        check_against_loops(*kernels, shape(130, 97, 31, trans, accumulate));
        check_against_loops(*kernels, shape(3, 50, 800, trans, accumulate));
      }
    }
  }
}

TEST(Gemm, AnEmptySumIsZeroOrTheOldValue) {
  float c[4] = {1, 2, 3, 4};
  const float nothing = 0;
  const auto scratch = aligned(gemm_scratch_bytes());
  auto* room = reinterpret_cast<float*>(scratch.get());
  Gemm g{.m = 2, .n = 2, .k = 0, .lda = 1, .ldb = 2, .ldc = 2, .accumulate = true};
  gemm(select_kernel_table(), g, &nothing, &nothing, c, room);
  EXPECT_EQ(c[3], 4);
  g.accumulate = false;
  gemm(select_kernel_table(), g, &nothing, &nothing, c, room);
  EXPECT_EQ(c[3], 0);
}

TEST(Gemm, F64AgreesWithPlainLoops) {
  init_blas();
  const double a[6] = {1, 2, 3, 4, 5, 6};
  const double b[6] = {1, 0, 2, 1, 0, 3};
  double c[4] = {10, 10, 10, 10};
  gemm({.m = 2, .n = 2, .k = 3, .lda = 3, .ldb = 2, .ldc = 2, .accumulate = true}, a, b, c);
  EXPECT_EQ(c[0], 15);
  EXPECT_EQ(c[1], 21);
  EXPECT_EQ(c[2], 24);
  EXPECT_EQ(c[3], 33);
}

/// Tiles over any number of threads give the bits of one thread without tiles.
TEST(ParallelGemm, HasTheBitsOfTheSerialProduct) {
  const KernelTable& kernels = select_kernel_table();
  const auto serial_scratch = aligned(gemm_scratch_bytes());
  const int64_t shapes[][3] = {{200, 300, 100}, {1000, 64, 50},   {50, 1500, 40},
                               {97, 61, 9000},  {288, 288, 1024}, {13, 700, 385}};
  for (const auto& s : shapes) {
    for (int trans = 0; trans < 4; ++trans) {
      const Gemm g = shape(s[0], s[1], s[2], trans, trans == 1);
      const Operands before(g);
      auto want = before.c;
      gemm(kernels, g, before.a.data(), before.b.data(), want.data(),
           reinterpret_cast<float*>(serial_scratch.get()));
      for (int32_t threads : {1, 2, 3}) {
        ThreadPool pool(threads);
        ThreadPool::Session session(pool);
        const ParallelGemm product(kernels, g);
        const auto scratch = aligned(product.scratch_bytes(threads));
        auto got = before.c;
        product.run(session, before.a.data(), before.b.data(), got.data(), scratch.get());
        ASSERT_EQ(std::memcmp(got.data(), want.data(), got.size() * sizeof(float)), 0)
            << s[0] << "x" << s[1] << "x" << s[2] << " trans " << trans << ", " << threads
            << " threads";
      }
    }
  }
}

TEST(ParallelGemm, LeavesTinyProductsToOneThread) {
  const KernelTable& kernels = select_kernel_table();
  EXPECT_FALSE(ParallelGemm(kernels, shape(64, 64, 64, 0, false)).worthwhile());
  EXPECT_TRUE(ParallelGemm(kernels, shape(128, 288, 288, 0, false)).worthwhile());
  EXPECT_GE(ParallelGemm(kernels, shape(1024, 288, 288, 0, false)).num_tiles(), 8);
}

}  // namespace
}  // namespace sgactor::kernels::cpu
