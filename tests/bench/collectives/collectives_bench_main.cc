// collectives_bench TRANSPORT PROCESSES ALGORITHM [BYTES…]: one line of JSON, as from "sgactor
// bench collectives --json" but without the rest of the program.
#include "apps/sgactor/collectives_bench.h"
#include "tests/conformance/transport/test_keyed_hash.h"

#include <fmt/format.h>

#include <cstdlib>

int main(int argc, char** argv) {
  if (argc < 4) {
    fmt::print(stderr, "usage: collectives_bench shm|tcp|ucx PROCESSES ALGORITHM [BYTES...]\n");
    return 2;
  }
  const sgactor::transport::TestKeyedHash hash;
  sgactor::apps::CollectivesBenchOptions options;
  options.transport = argv[1];
  options.num_processes = std::atoi(argv[2]);
  const auto algorithm = sgactor::apps::parse_algorithm(argv[3]);
  if (!algorithm.ok()) {
    fmt::print(stderr, "{}\n", algorithm.status().message());
    return 2;
  }
  options.algorithm = *algorithm;
  for (int i = 4; i < argc; ++i) options.sizes_bytes.push_back(std::atoll(argv[i]));
  options.hash = &hash;
  const auto rows = sgactor::apps::run_collectives_bench(options);
  if (!rows.ok()) {
    fmt::print(stderr, "{}\n", rows.status().to_string());
    return 1;
  }
  std::string text;
  for (const auto& row : *rows) {
    text +=
        fmt::format(R"({}{{"bytes": {}, "time_us": {:.2f}, "cpu_us": {:.2f}, "bus_gb_s": {:.4f}}})",
                    text.empty() ? "" : ", ", row.bytes, row.time_us, row.cpu_us, row.bus_gb_s);
  }
  fmt::print(R"({{"transport": "{}", "processes": {}, "algorithm": "{}", "rows": [{}]}})"
             "\n",
             options.transport, options.num_processes, argv[3], text);
  return 0;
}
