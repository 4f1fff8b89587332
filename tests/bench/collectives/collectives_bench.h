#pragma once
#include "graph/base/status.h"
#include "transport/collectives/collectives.h"
#include "transport/core/keyed_hash.h"

#include <cstdint>
#include <string>
#include <vector>

namespace sgactor::bench {

struct CollectivesBenchOptions {
  int32_t num_processes = 2;
  std::string transport = "shm";  ///< "shm" or "ucx"
  transport::Algorithm algorithm = transport::Algorithm::kExact;
  transport::Element element = transport::Element::kF32;
  std::vector<int64_t> sizes_bytes;            ///< empty: 8 B to 64 MiB by factors of 8
  const transport::KeyedHash* hash = nullptr;  ///< must be set
};

/// Times all-reduce between processes that it forks (the caller must have no threads yet) and waits
/// for. Returns one JSON object: settings, and by size the median time of a call at the first
/// member, and the bus bandwidth 2 (n-1)/n * bytes / time. Errors: kInternal if a child fails;
/// kUnsupported if this machine lacks the transport.
Result<std::string> run_collectives_bench(const CollectivesBenchOptions& options);

}  // namespace sgactor::bench
