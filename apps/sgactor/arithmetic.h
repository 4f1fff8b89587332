#pragma once
#include "apps/sgactor/run_directory.h"
#include "graph/base/status.h"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <map>
#include <string>

namespace sgactor::apps {

/// What computes which bits, as kernels::DeviceInfo::fingerprint has it, by logical rank. Empty:
/// not known.
using RankArithmetic = std::map<int32_t, std::string>;
/// The same, by the first step that it has computed.
using ArithmeticRecord = std::map<int64_t, RankArithmetic>;

/// So many ranks that all compute by one.
RankArithmetic same_arithmetic(int64_t num_ranks, const std::string& fingerprint);

/// What differs, part by part: "kernel family avx2, was avx512; table of products tuned-7, was
/// tuned-9 (…)", with where a part comes from that a user can choose. Empty: equal.
std::string arithmetic_difference(const std::string& is, const std::string& was);
/// The same of ranks that both have: of the first one that differs, which is named where not all of
/// them differ alike.
std::string arithmetic_difference(const RankArithmetic& is, const RankArithmetic& was);

/// Appends a line to RUN/audit.jsonl: from step `first_step` on ranks compute by `is`; `inexact` is
/// what differs from what they did before, "" if nothing. In one write: another writer of the file
/// does not matter. Errors: kInternal with errno's text.
Status record_arithmetic(const RunDirectory& run, int64_t first_step, const RankArithmetic& is,
                         const std::string& inexact);
/// Takes a line of audit.jsonl in, in the order of the file. True if it was one of those.
bool add_arithmetic(const nlohmann::ordered_json& line, ArithmeticRecord& record);
/// What computed the state of RUN after `step`, as audit.jsonl has it, for `num_ranks` ranks that
/// go on from there. Ranks that all computed alike may be of another number; where they did not and
/// it is another number, none can be given what it had: then each has several, which nobody has.
/// Empty: not recorded.
RankArithmetic read_arithmetic(const RunDirectory& run, int64_t step, int64_t num_ranks);

/// The refusal to go on with a run: `who` ("this device", a worker's name) computes otherwise than
/// the ranks did. kUnsupported, scope kDevice: the device is not what the run needs.
Status other_arithmetic(const RunDirectory& run, const std::string& who,
                        const std::string& difference);

}  // namespace sgactor::apps
