#pragma once
#include "apps/sgactor/command_line.h"
#include "graph/base/status.h"

#include <cstdint>
#include <string>

namespace sgactor::apps {

struct ChaosRunOptions {
  std::string job;
  std::string scenario;
  std::string run_dir;  ///< empty: runs/chaos-<job name>-<time>
  uint64_t seed = 1;
  bool json = false;
};

/// Trains the job twice in processes of its own, once undisturbed and once with the faults of the
/// scenario, and compares loss bits and samples of every step and the final state. Returns the exit
/// code: 0 only if all agree. Errors before training: kInvalidArgument for a job or scenario that
/// names what does not exist.
Result<int> run_chaos(const CommandLine& line, const ChaosRunOptions& options);

}  // namespace sgactor::apps
