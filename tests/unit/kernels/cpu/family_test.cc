// Every kernel family that this CPU can run, against plain loops in double.
#include "graph/base/dtype.h"
#include "graph/base/philox.h"
#include "kernels/cpu/kernel_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

namespace sgactor::kernels::cpu {
namespace {

std::vector<const KernelTable*> runnable_families() {
  std::vector<const KernelTable*> tables = {&baseline::kernel_table()};
  if (__builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0) {
    tables.push_back(&avx2::kernel_table());
  }
  const KernelTable* best = &select_kernel_table();
  if (std::find(tables.begin(), tables.end(), best) == tables.end()) tables.push_back(best);
  return tables;
}

std::vector<float> random_values(int64_t n, uint64_t stream, double low = -3, double high = 3) {
  const PhiloxStream rng{.seed = 5, .stream = stream};
  std::vector<float> v(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    v[static_cast<size_t>(i)] =
        static_cast<float>(low + (high - low) * rng.uniform(static_cast<uint64_t>(i)));
  }
  return v;
}

/// Distance of `got` from `want` in units of the last place of `want` as a float.
double ulps(float got, double want) {
  const auto rounded = static_cast<float>(want);
  const double ulp = std::nextafter(std::fabs(rounded), std::numeric_limits<float>::infinity()) -
                     std::fabs(rounded);
  return std::fabs(static_cast<double>(got) - want) / ulp;
}

class Family : public ::testing::TestWithParam<const KernelTable*> {
 protected:
  const KernelTable& k() { return *GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(All, Family, ::testing::ValuesIn(runnable_families()),
                         [](const auto& info) { return std::string(info.param->family); });

TEST_P(Family, ExpIsWithinTwoUlp) {
  std::vector<float> x;
  for (double v = -86.4; v < 88.72; v += 0.00137) x.push_back(static_cast<float>(v));
  x.push_back(88.7228F);
  std::vector<float> y(x.size());
  k().unary[kExp](y.data(), x.data(), static_cast<int64_t>(x.size()), 0);
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    worst = std::max(worst, ulps(y[i], std::exp(static_cast<double>(x[i]))));
  }
  EXPECT_LE(worst, 2.0);
}

TEST_P(Family, ExpOfTheEnds) {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> x = {0, -0.0F, inf, -inf, std::nanf(""), 200, -200, 88.8F, -90};
  std::vector<float> y(x.size());
  k().unary[kExp](y.data(), x.data(), static_cast<int64_t>(x.size()), 0);
  EXPECT_EQ(y[0], 1);
  EXPECT_EQ(y[1], 1);
  EXPECT_EQ(y[2], inf);
  EXPECT_EQ(y[3], 0);
  EXPECT_TRUE(std::isnan(y[4]));
  EXPECT_EQ(y[5], inf);
  EXPECT_EQ(y[6], 0);
  EXPECT_EQ(y[7], inf);
  EXPECT_EQ(y[8], 0);
}

TEST_P(Family, PointwiseAgreesAtEveryLength) {
  for (int64_t n = 0; n <= 70; ++n) {
    const auto a = random_values(n + 1, 1);
    const auto b = random_values(n + 1, 2, 0.5, 2);
    std::vector<float> y(static_cast<size_t>(n + 1), 77);
    const auto check = [&](auto want) {
      for (int64_t i = 0; i < n; ++i) {
        const auto at = static_cast<size_t>(i);
        EXPECT_NEAR(y[at], want(static_cast<double>(a[at]), static_cast<double>(b[at])), 4e-6)
            << n << " " << i;
      }
      EXPECT_EQ(y[static_cast<size_t>(n)], 77);
    };
    k().binary[kAdd](y.data(), a.data(), b.data(), n);
    check([](double u, double v) { return u + v; });
    k().binary[kDiv](y.data(), a.data(), b.data(), n);
    check([](double u, double v) { return u / v; });
    k().binary[kMin](y.data(), a.data(), b.data(), n);
    check([](double u, double v) { return std::min(u, v); });
    k().binary_scalar[kMax](y.data(), a.data(), 0.25F, n);
    check([](double u, double) { return std::max(u, 0.25); });
    k().unary[kSilu](y.data(), a.data(), n, 0);
    check([](double u, double) { return u / (1 + std::exp(-u)); });
    k().unary[kRsqrt](y.data(), b.data(), n, 0);
    check([](double, double v) { return 1 / std::sqrt(v); });
    k().swiglu(y.data(), a.data(), b.data(), n);
    check([](double u, double v) { return u / (1 + std::exp(-u)) * v; });
    k().silu_grad(y.data(), a.data(), b.data(), n);
    check([](double u, double v) {
      const double s = 1 / (1 + std::exp(-u));
      return v * s * (1 + u * (1 - s));
    });
  }
}

TEST_P(Family, AnElementHasTheSameBitsWhereverTheCutIs) {
  const auto x = random_values(100, 3);
  std::vector<float> whole(100);
  k().unary[kSilu](whole.data(), x.data(), 100, 0);
  for (int64_t cut = 1; cut < 100; ++cut) {
    std::vector<float> parts(100);
    k().unary[kSilu](parts.data(), x.data(), cut, 0);
    k().unary[kSilu](parts.data() + cut, x.data() + cut, 100 - cut, 0);
    ASSERT_EQ(std::memcmp(parts.data(), whole.data(), 400), 0) << cut;
  }
}

TEST_P(Family, Sums) {
  for (int64_t n : {0, 1, 5, 16, 17, 64, 127, 1000, 4099}) {
    const auto x = random_values(n, 4);
    const auto y = random_values(n, 5);
    double sum = 0, squares = 0, dot = 0;
    float top = -std::numeric_limits<float>::infinity();
    for (size_t i = 0; i < x.size(); ++i) {
      sum += x[i];
      squares += static_cast<double>(x[i]) * x[i];
      dot += static_cast<double>(x[i]) * y[i];
      top = std::max(top, x[i]);
    }
    EXPECT_NEAR(k().sum(x.data(), n), sum, 1e-3);
    EXPECT_NEAR(k().sum_squares(x.data(), n), squares, 1e-10 * (squares + 1));
    EXPECT_NEAR(k().dot(x.data(), y.data(), n), dot, 1e-3);
    EXPECT_EQ(k().max(x.data(), n), top);
  }
}

TEST_P(Family, SoftmaxAndLogSumExp) {
  for (int64_t D : {1, 7, 16, 33, 300}) {
    const auto x = random_values(2 * D, 6, -20, 20);
    std::vector<float> y(x.size());
    k().softmax(y.data(), x.data(), 2, D);
    for (int64_t r = 0; r < 2; ++r) {
      double total = 0;
      for (int64_t i = 0; i < D; ++i) total += std::exp(double{x[static_cast<size_t>(r * D + i)]});
      for (int64_t i = 0; i < D; ++i) {
        const auto at = static_cast<size_t>(r * D + i);
        EXPECT_NEAR(y[at], std::exp(double{x[at]}) / total, 1e-6);
      }
      EXPECT_NEAR(k().log_sum_exp(x.data() + r * D, D), std::log(total), 4e-6);
    }
  }
}

TEST_P(Family, SoftmaxOfMinusInfinityIsZero) {
  std::vector<float> x(40, -std::numeric_limits<float>::infinity());
  x[3] = 2;
  k().softmax(x.data(), x.data(), 1, 40);
  for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(x[i], i == 3 ? 1.0F : 0.0F);
}

TEST_P(Family, RmsNormAndItsGradient) {
  for (int64_t D : {3, 16, 50}) {
    constexpr int64_t R = 5;
    const auto x = random_values(R * D, 7);
    const auto w = random_values(D, 8);
    const auto dy = random_values(R * D, 9);
    const auto ds = random_values(R * D, 10);
    std::vector<float> y(x.size()), rstd(R), dx(x.size()), dw(static_cast<size_t>(D));
    k().rms_norm(y.data(), rstd.data(), x.data(), w.data(), R, D, 1e-5F);
    k().rms_norm_grad(dx.data(), dw.data(), dy.data(), ds.data(), x.data(), w.data(), rstd.data(),
                      R, D);
    std::vector<double> want_dw(static_cast<size_t>(D), 0);
    for (int64_t r = 0; r < R; ++r) {
      double squares = 0, projected = 0;
      for (int64_t i = 0; i < D; ++i)
        squares += std::pow(double{x[static_cast<size_t>(r * D + i)]}, 2);
      const double scale = 1 / std::sqrt(squares / static_cast<double>(D) + 1e-5);
      EXPECT_NEAR(rstd[static_cast<size_t>(r)], scale, 2e-6);
      for (int64_t i = 0; i < D; ++i) {
        const auto at = static_cast<size_t>(r * D + i);
        projected += double{dy[at]} * w[static_cast<size_t>(i)] * x[at];
        want_dw[static_cast<size_t>(i)] += double{dy[at]} * x[at] * scale;
        EXPECT_NEAR(y[at], x[at] * scale * w[static_cast<size_t>(i)], 1e-5);
      }
      for (int64_t i = 0; i < D; ++i) {
        const auto at = static_cast<size_t>(r * D + i);
        const double want = scale * (double{dy[at]} * w[static_cast<size_t>(i)] -
                                     x[at] * projected * scale * scale / static_cast<double>(D));
        EXPECT_NEAR(dx[at], want + ds[at], 2e-5);
      }
    }
    for (size_t i = 0; i < want_dw.size(); ++i) EXPECT_NEAR(dw[i], want_dw[i], 5e-5);
  }
}

TEST_P(Family, RotateThenInverseGivesTheInput) {
  constexpr int64_t H = 3;
  for (int64_t K : {2, 10, 32, 64, 70}) {
    const auto x = random_values(H * K, 11);
    std::vector<float> c(static_cast<size_t>(K / 2)), s(c.size()), y(x.size());
    for (size_t i = 0; i < c.size(); ++i) {
      c[i] = std::cos(0.3F * static_cast<float>(i) + 0.1F);
      s[i] = std::sin(0.3F * static_cast<float>(i) + 0.1F);
    }
    k().rotate(y.data(), x.data(), c.data(), s.data(), H, K, 1);
    EXPECT_NEAR(y[0], x[0] * c[0] - x[static_cast<size_t>(K / 2)] * s[0], 1e-6);
    EXPECT_NEAR(y[static_cast<size_t>(K / 2)], x[static_cast<size_t>(K / 2)] * c[0] + x[0] * s[0],
                1e-6);
    k().rotate(y.data(), y.data(), c.data(), s.data(), H, K, -1);
    for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(y[i], x[i], 1e-5);
  }
}

TEST_P(Family, Bf16RoundsAsTheBaseLibrary) {
  auto x = random_values(500, 12, -1e4, 1e4);
  x[3] = std::nanf("");
  x[4] = std::numeric_limits<float>::infinity();
  x[5] = 1.00390625F;  // halfway between two bf16 values
  std::vector<uint16_t> bits(x.size());
  std::vector<float> back(x.size());
  k().f32_to_bf16(bits.data(), x.data(), 500);
  k().bf16_to_f32(back.data(), bits.data(), 500);
  for (size_t i = 0; i < x.size(); ++i) {
    EXPECT_EQ(bits[i], float_to_bf16(x[i]));
    if (i == 3) continue;
    EXPECT_EQ(back[i], bf16_to_float(bits[i]));
  }
}

TEST_P(Family, AdamwStep) {
  constexpr int64_t n = 37;
  auto p = random_values(n, 13);
  auto m = random_values(n, 14);
  auto v = random_values(n, 15, 0, 1);
  const auto g = random_values(n, 16);
  const auto p0 = p, m0 = m, v0 = v;
  const AdamwScalars s{.clip = 0.5F,
                       .beta1 = 0.9F,
                       .beta2 = 0.95F,
                       .one_minus_beta1 = 0.1F,
                       .one_minus_beta2 = 0.05F,
                       .decay = 0.999F,
                       .step_size = 0.01F,
                       .inv_sqrt_bias2 = 1.5F,
                       .eps = 1e-8F};
  k().adamw(p.data(), m.data(), v.data(), p.data(), m.data(), v.data(), g.data(), n, s);
  for (size_t i = 0; i < n; ++i) {
    const double gc = g[i] * 0.5;
    const double want_m = 0.9 * m0[i] + 0.1 * gc;
    const double want_v = 0.95 * v0[i] + 0.05 * gc * gc;
    EXPECT_NEAR(m[i], want_m, 1e-6);
    EXPECT_NEAR(v[i], want_v, 1e-6);
    EXPECT_NEAR(p[i], p0[i] * 0.999 - 0.01 * want_m / (std::sqrt(want_v) * 1.5 + 1e-8), 1e-5);
  }
}

}  // namespace
}  // namespace sgactor::kernels::cpu
