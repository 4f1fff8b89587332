#pragma once
#include "graph/base/status.h"

#include <cstdint>
#include <string>

namespace sgactor::apps {

struct NodeOptions {
  std::string join;   ///< "host:port"; empty: the token's addresses
  std::string token;  ///< file
  std::string devices = "cpu";
  std::string bind;
  std::string log_level = "info";
  int64_t workers = 1;
  int64_t first_device =
      0;  ///< of the host's, for the first worker; others of this host come before
  bool spare = false;
  uint64_t job_hash = 0;        ///< of the job file that this process was started with; 0: none
  int64_t wait_ms = 0;          ///< for the token file to appear
  int64_t join_timeout_s = 10;  ///< for the coordinator to answer
};
/// The life of a node. Returns its exit code: 0 after an orderly end of the run, 1 otherwise.
/// Errors before it has joined: kInvalidArgument (a wrong option, token, build or job),
/// kUnsupported of scope kDevice (nobody answers).
Result<int> run_node(const NodeOptions& options);

}  // namespace sgactor::apps
