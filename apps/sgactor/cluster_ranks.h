#pragma once
#include "graph/base/status.h"
#include "graph/plan/plan.h"

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace sgactor::apps {

/// Logical ranks of each worker, ascending. Ranks that differ along tp or pp share a worker before
/// ranks that differ along dp do, since they exchange more. No two workers differ by more than one
/// rank. Pre: 1 <= workers <= number of ranks.
std::vector<std::vector<int32_t>> deal_ranks(const graph::Plan& plan, int32_t workers);

/// The same where ranks are of several kinds (index: rank) and go to workers of their kind alone:
/// `workers` are index and kind; one of no known kind ("") helps where a worker has most ranks.
/// Workers beyond a kind's number of ranks get none. Errors: kUnsupported, naming the ranks of a
/// kind that no worker has.
Result<std::map<int32_t, std::vector<int32_t>>> deal_by_kind(
    const std::vector<std::string>& kinds,
    const std::vector<std::pair<int32_t, std::string>>& workers);

/// Of a rank's parameters and moments.
int64_t state_bytes(const graph::Plan& plan, int32_t rank);

/// Identity of this program: its version and a hash of its file. Processes of a job have the same.
std::string build_id(const std::string& program);
/// The program's own file.
std::string program_file();
std::string host_name();

}  // namespace sgactor::apps
