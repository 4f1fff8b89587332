#pragma once
#include "apps/sgactor/job_spec.h"
#include "graph/base/status.h"

#include <cstdint>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace sgactor::apps {

/// What `train` is told about processes. Without any of it the run has one process.
struct ClusterOptions {
  int64_t workers = 0;               ///< worker processes; 0: not given
  int64_t spares = 0;                ///< further ones that host nothing until somebody is lost
  std::string bind;                  ///< address that the control port listens on; empty: loopback
  int64_t port = 0;                  ///< 0: a free one
  std::string nodes;                 ///< "MIN:MAX" or a number; empty: this host alone
  std::string hosts;                 ///< file with a host a line, started over ssh; empty: none
  std::string ssh = "/usr/bin/ssh";  ///< program, and options, that starts a host's node
  int64_t join_timeout_s = 60;
};
void add_cluster_options(CLI::App& sub, ClusterOptions& options);

/// A process that srun, mpirun or torchrun has started, by the environment that they give it.
struct Launcher {
  int32_t rank = 0;
  int32_t size = 1;
  std::string master_address;  ///< torchrun's; empty: none
  int64_t master_port = 0;
  int32_t local_rank = 0;  ///< among those that it has started on this host
};
/// Reads SLURM_PROCID and SLURM_NTASKS (of a step), OMPI_COMM_WORLD_RANK and _SIZE, or RANK and
/// WORLD_SIZE with MASTER_ADDR and MASTER_PORT; with each its rank within the host, 0 where that is
/// not said. {0, 1} outside of all. Errors: kInvalidArgument for a rank that is not below its size.
Result<Launcher> read_launcher();

/// How many nodes a run waits for and takes.
struct NodeRange {
  int32_t min = 1;
  int32_t max = 1;
};
/// "2:4", "3". Errors: kInvalidArgument "--nodes …: expected MIN:MAX".
Result<NodeRange> parse_nodes(const std::string& text);

/// One line of a hosts file.
struct HostLine {
  std::string host;
  int64_t workers = 1;
};
/// A host a line, with "workers=N" behind it where it has more than one; "#" begins a comment.
/// Errors: kInvalidArgument naming file and line.
Result<std::vector<HostLine>> read_hosts(const std::string& file);

/// Errors: kInvalidArgument naming --workers and the job's keys, if the mesh cannot be dealt over
/// that many workers: none may be without a logical rank.
Status check_mesh_fits(const JobSpec& job, int64_t workers);
/// Logical ranks of a job's mesh.
int64_t num_logical_ranks(const JobSpec& job);

}  // namespace sgactor::apps
