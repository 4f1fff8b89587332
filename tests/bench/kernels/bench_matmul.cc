// bench_matmul: the cpu backend's f32 matmul beside OpenBLAS's, one thread each, at the shapes of
// llama-15m, in turns within one run. Prints GFLOP/s and the ratio; the last line is the median
// ratio.
#include "apps/sgactor/kernel_cases.h"
#include "graph/ir/op_table.h"
#include "tests/bench/kernels/bench_rig.h"

#include <cblas.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <vector>

namespace {

using namespace sgactor;  // NOLINT(google-build-using-namespace)

double blas_seconds(const graph::Op& op, const TensorType& result, int64_t k, int repeats) {
  const auto m = static_cast<int>(result.shape.dim(0));
  const auto n = static_cast<int>(result.shape.dim(1));
  const bool trans_a = op.attrs.flag("trans_a");
  const bool trans_b = op.attrs.flag("trans_b");
  const std::vector<float> a(static_cast<size_t>(m * k), 0.5F);
  const std::vector<float> b(static_cast<size_t>(n * k), 0.25F);
  std::vector<float> c(static_cast<size_t>(result.num_elements()));
  const auto depth = static_cast<int>(k);
  const float beta = op.kind == graph::OpKind::kMatmulAccumulate ? 1.0F : 0.0F;
  double best = 1e30;
  for (int i = 0; i < repeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    cblas_sgemm(CblasRowMajor, trans_a ? CblasTrans : CblasNoTrans,
                trans_b ? CblasTrans : CblasNoTrans, m, n, depth, 1.0F, a.data(),
                trans_a ? m : depth, b.data(), trans_b ? depth : n, beta, c.data(), n);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    best = std::min(best, took.count());
  }
  return best;
}

}  // namespace

int main() {
  openblas_set_num_threads(1);
  std::vector<double> ratios;
  auto ops = apps::llama_kernels(4, 256);
  if (!ops.ok()) {
    fmt::print(stderr, "{}\n", ops.status().to_string());
    return 1;
  }
  fmt::print("{:36} {:>9} {:>9} {:>7}\n", "", "sgactor", "OpenBLAS", "ratio");
  for (const apps::KernelCase& bench : *ops) {
    if (!bench.is_product) continue;
    const graph::Op& op = bench.graph.op(0);
    const TensorType result = bench.graph.type(op.results[0]);
    const auto k =
        static_cast<int64_t>(bench.flops / 2 / static_cast<double>(result.num_elements()));
    const int repeats = bench.flops > 1e9 ? 5 : 20;
    bench::Rig rig(bench.graph, 1);
    rig.fill_inputs(32000);
    double ours = 1e30;
    double theirs = 1e30;
    for (int round = 0; round < 3; ++round) {
      ours = std::min(ours, rig.best_seconds(repeats));
      theirs = std::min(theirs, blas_seconds(op, result, k, repeats));
    }
    ratios.push_back(theirs / ours);
    fmt::print("{:36} {:9.1f} {:9.1f} {:7.2f}\n", bench.name, bench.flops / ours * 1e-9,
               bench.flops / theirs * 1e-9, ratios.back());
  }
  std::sort(ratios.begin(), ratios.end());
  fmt::print("median ratio {:.2f}\n", ratios[ratios.size() / 2]);
  return 0;
}
