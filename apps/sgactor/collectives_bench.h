#pragma once
#include "graph/base/status.h"
#include "transport/collectives/collectives.h"
#include "transport/core/keyed_hash.h"
#include "transport/core/message_table.h"

#include <cstdint>
#include <string>
#include <vector>

namespace sgactor::apps {

struct CollectivesBenchOptions {
  int32_t num_processes = 2;
  std::string transport = "shm";  ///< "shm", "tcp" (loopback) or "ucx"
  transport::Algorithm algorithm = transport::Algorithm::kRing;
  transport::Element element = transport::Element::kF32;
  transport::FrameCheck check_frames = transport::FrameCheck::kWires;
  std::vector<int64_t> sizes_bytes;            ///< empty: 8 B to 64 MiB by factors of 8
  const transport::KeyedHash* hash = nullptr;  ///< must be set
};

struct CollectivesBenchRow {
  int64_t bytes = 0;
  double time_us = 0;   ///< median of a call, at the first member
  double cpu_us = 0;    ///< of all threads of the first member, mean of a call
  double bus_gb_s = 0;  ///< 2 (n-1)/n * bytes / time, in 1e9 bytes a second
};

/// Times all-reduce in place between processes that it forks (the caller must have no threads yet)
/// and waits for. Errors: kInternal if a child fails; kUnsupported if this machine lacks the
/// transport; kInvalidArgument for a size that is not whole elements.
Result<std::vector<CollectivesBenchRow>> run_collectives_bench(
    const CollectivesBenchOptions& options);

/// Errors: kInvalidArgument: not "exact", "ring", "tree" or "halving_doubling".
Result<transport::Algorithm> parse_algorithm(const std::string& name);

}  // namespace sgactor::apps
