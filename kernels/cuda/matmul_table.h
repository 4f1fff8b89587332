#pragma once
#include "graph/base/status.h"

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>

namespace sgactor::kernels::cuda {

/// Which of cuBLASLt's algorithms each product uses: the place in the library's own list of
/// candidates, which is fixed for one kind of GPU and one version of the library. Products without
/// a row use place 0. Rows are measured only where a file is named to keep them, so that choices,
/// and with them the order of sums, never change from run to run by chance. Thread-safe.
class MatmulTable {
 public:
  /// `machine` names GPU and library; rows of others are kept in the file and not used.
  explicit MatmulTable(std::string machine) : machine_(std::move(machine)) {}
  /// Reads `file` if it is there; from now on missing rows are to be measured and appended to it.
  /// Errors: kInvalidArgument naming the line that is not "machine|product|place".
  Status open(const std::string& file);
  [[nodiscard]] bool measures() const { return !file_.empty(); }
  [[nodiscard]] std::optional<int> find(const std::string& product) const;
  Status add(const std::string& product, int place);
  /// Of the rows read from the file; "default" if there are none.
  [[nodiscard]] std::string fingerprint() const;

 private:
  std::string machine_;
  std::string file_;
  mutable std::mutex mutex_;
  std::map<std::string, int> rows_;
};

}  // namespace sgactor::kernels::cuda
