// collectives_bench TRANSPORT PROCESSES ALGORITHM [BYTES…]: one line of JSON. The comparison with
// other libraries runs it; users have `sgactor bench collectives`.
#include "tests/bench/collectives/collectives_bench.h"
#include "tests/conformance/transport/test_keyed_hash.h"

#include <fmt/format.h>

#include <cstdlib>
#include <string_view>

int main(int argc, char** argv) {
  if (argc < 4) {
    fmt::print(stderr,
               "usage: collectives_bench shm|ucx PROCESSES exact|ring|tree|halving_doubling "
               "[BYTES...]\n");
    return 2;
  }
  using sgactor::transport::Algorithm;
  const sgactor::transport::TestKeyedHash hash;
  sgactor::bench::CollectivesBenchOptions options;
  options.transport = argv[1];
  options.num_processes = std::atoi(argv[2]);
  const std::string_view algorithm = argv[3];
  options.algorithm = algorithm == "ring"    ? Algorithm::kRing
                      : algorithm == "tree"  ? Algorithm::kTree
                      : algorithm == "exact" ? Algorithm::kExact
                                             : Algorithm::kHalvingDoubling;
  for (int i = 4; i < argc; ++i) options.sizes_bytes.push_back(std::atoll(argv[i]));
  options.hash = &hash;
  const auto result = sgactor::bench::run_collectives_bench(options);
  if (!result.ok()) {
    fmt::print(stderr, "{}\n", result.status().to_string());
    return 1;
  }
  fmt::print("{}\n", *result);
  return 0;
}
