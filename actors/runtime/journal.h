#pragma once
#include "actors/core/commit_core.h"
#include "graph/base/status.h"

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace sgactor::actors {

/// The coordinator's record of commits. append() returns when the record is durable; it blocks, so
/// a service calls it. One caller at a time.
class Journal {
 public:
  virtual ~Journal() = default;
  virtual Status append(const CommitRecord& record) = 0;
};

/// Appends a line a commit to `path` (made if missing) and syncs it:
///   commit step=17 generation=1 incarnations=1,1 #<16 hex digits: XXH3 of the line before " #">
/// with " losses=40b1c2d3,-" behind the incarnations where a record has loss_bits.
/// Errors: kInvalidArgument if the file cannot be opened; append: kInternal with errno's text.
Result<std::unique_ptr<Journal>> open_journal(const std::string& path);
/// Keeps nothing on disk: for runs in one process without a run directory, and simulations.
std::unique_ptr<Journal> create_memory_journal();

std::string format_commit(const CommitRecord& record);
/// Records of a journal's text, in order. A last line that is cut (a crash while it was written) is
/// left out. Errors: kCorruption naming the line. Safe on hostile text.
Result<std::vector<CommitRecord>> parse_journal(std::string_view text);

}  // namespace sgactor::actors
