#pragma once
#include "graph/plan/plan.h"

#include <cstdint>
#include <string>
#include <vector>

namespace sgactor::apps {

/// Logical ranks of each worker, ascending. Ranks that differ along tp or pp share a worker before
/// ranks that differ along dp do, since they exchange more. No two workers differ by more than one
/// rank. Pre: 1 <= workers <= number of ranks.
std::vector<std::vector<int32_t>> deal_ranks(const graph::Plan& plan, int32_t workers);

/// Of a rank's parameters and moments.
int64_t state_bytes(const graph::Plan& plan, int32_t rank);

/// Identity of this program: its version and a hash of its file. Processes of a job have the same.
std::string build_id(const std::string& program);
/// The program's own file.
std::string program_file();
std::string host_name();

}  // namespace sgactor::apps
