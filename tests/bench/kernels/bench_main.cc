// bench_kernels [BATCH SEQ_LEN [FILTER]]: GFLOP/s and GB/s of the cpu backend's kernels beside what
// the machine can do, at the shapes of llama-15m, on one thread and on all.
#include "apps/sgactor/kernel_cases.h"
#include "tests/bench/kernels/bench_rig.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <thread>

int main(int argc, char** argv) {
  using namespace sgactor;  // NOLINT(google-build-using-namespace)
  const int64_t batch = argc > 2 ? std::atoll(argv[1]) : 4;
  const int64_t seq_len = argc > 2 ? std::atoll(argv[2]) : 256;
  const std::string filter = argc > 3 ? argv[3] : "";
  const auto cores = static_cast<int32_t>(std::max(1U, std::thread::hardware_concurrency()));
  auto ops = apps::llama_kernels(batch, seq_len);
  if (!ops.ok()) {
    fmt::print(stderr, "{}\n", ops.status().to_string());
    return 1;
  }
  fmt::print("{:36} {:>9} {:>9} {:>9}\n", "", "us", "GFLOP/s", "GB/s");
  for (int32_t threads : {1, cores}) {
    const double gflops = bench::peak_gflops(threads);
    const double gbytes = bench::copy_gbytes_per_second(threads);
    fmt::print("ceiling, {} thread{:26} {:>9} {:>9.1f} {:>9.1f}\n", threads, "", "", gflops,
               gbytes);
    for (const apps::KernelCase& op : *ops) {
      if (op.name.find(filter) == std::string::npos) continue;
      bench::Rig rig(op.graph, threads);
      rig.fill_inputs(32000);
      const double seconds = rig.best_seconds(op.bytes > 1e8 ? 5 : 20);
      fmt::print("{:36} {:9.1f} {:9.1f} {:9.1f}\n", op.name, seconds * 1e6,
                 op.flops / seconds * 1e-9, op.bytes / seconds * 1e-9);
    }
    if (cores == 1) break;
  }
  return 0;
}
