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
/// order of sums never changes from run to run by chance. For the same reason nothing is measured
/// that cannot be kept: without a file every product uses place 0, and beside one that cannot be
/// written those that have no row. Thread-safe; processes may share a file.
class MatmulTable {
 public:
  /// `machine` names GPU and library; rows of others are kept in the file and not used.
  explicit MatmulTable(std::string machine) : machine_(std::move(machine)) {}
  /// Reads `file`, or makes it with its directories; from now on missing rows are to be measured,
  /// unless it cannot be written, which is logged. On an error the table stays without a file, and
  /// of the default file, which nobody asked for, that is logged too. Errors: kInvalidArgument: a
  /// file that can neither be read nor made, or naming the line that is not
  /// "machine|product|place".
  Status open(const std::string& file);
  /// Whether missing rows are to be measured.
  [[nodiscard]] bool measures() const;
  [[nodiscard]] const std::string& file() const { return file_; }
  [[nodiscard]] std::optional<int> find(const std::string& product) const;
  /// Keeps `place` for the product unless the file has a row for it by now. The place to use: 0 if
  /// it cannot be kept, which is logged once. Never fails.
  Result<int> add(const std::string& product, int place);
  /// Names the file by a number drawn when it was made, so that all that is ever read from it
  /// computes equal bits; by its rows if it could not be written when it was opened, since no
  /// others join them; "default" without any.
  [[nodiscard]] std::string fingerprint() const;

 private:
  Status read(const std::string& text);
  Status load();
  Status keep(const std::string& product, int place);
  void stop_writing(const Status& why);

  std::string machine_;
  std::string file_;
  mutable std::mutex mutex_;
  bool writes_ = false;
  std::string fixed_;  ///< fingerprint of a table that cannot grow
  std::map<std::string, int> rows_;
};

/// $XDG_CACHE_HOME/sgactor/cuda-matmuls.txt, else $HOME/.cache/sgactor/...; empty without both.
std::string default_matmul_file();

}  // namespace sgactor::kernels::cuda
