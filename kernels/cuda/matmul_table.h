#pragma once
#include "graph/base/status.h"

#include <map>
#include <mutex>
#include <optional>
#include <string>

namespace sgactor::kernels::cuda {

/// Which of cuBLASLt's algorithms each product uses: the place in the library's own list of
/// candidates, which is fixed for one kind of GPU and one version of the library. A place that was
/// measured once is kept in a file, and the first row of a product stands, whoever wrote it: the
/// order of sums never changes from run to run by chance. Without a file every product uses place
/// 0. Thread-safe; processes may share a file.
class MatmulTable {
 public:
  /// `machine` names GPU and library; rows of others are kept in the file and not used.
  explicit MatmulTable(std::string machine) : machine_(std::move(machine)) {}
  /// Reads `file`, or makes it with its directories; from now on missing rows are to be measured.
  /// On an error the table stays without a file. Errors: kInvalidArgument: a file that cannot be
  /// written, or naming the line that is not "machine|product|place".
  Status open(const std::string& file);
  [[nodiscard]] bool measures() const { return !file_.empty(); }
  [[nodiscard]] const std::string& file() const { return file_; }
  [[nodiscard]] std::optional<int> find(const std::string& product) const;
  /// Keeps `place` for the product unless the file has a row for it by now. The place to use.
  Result<int> add(const std::string& product, int place);
  /// Names the file by a number drawn when it was made, so that all that is ever read from it
  /// computes equal bits; "default" without a file.
  [[nodiscard]] std::string fingerprint() const;

 private:
  Status read(const std::string& text);

  std::string machine_;
  std::string file_;
  mutable std::mutex mutex_;
  std::map<std::string, int> rows_;
};

/// $XDG_CACHE_HOME/sgactor/cuda-matmuls.txt, else $HOME/.cache/sgactor/...; empty without both.
std::string default_matmul_file();

}  // namespace sgactor::kernels::cuda
