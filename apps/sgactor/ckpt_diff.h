#pragma once
#include "graph/base/status.h"
#include "transport/storage/checkpoint.h"

#include <cstdint>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace sgactor::apps {

struct CommandLine;

/// How one logical tensor of two checkpoints differs.
struct TensorDifference {
  enum class Kind : uint8_t { kOnlyInA, kOnlyInB, kType, kBits } kind = Kind::kBits;
  std::string name;
  std::string a_type;  ///< "f32[64, 32]"; empty: not there
  std::string b_type;
  // Of equal types:
  int64_t num_elements = 0;
  int64_t num_different = 0;   ///< whose bits differ
  int64_t num_not_finite = 0;  ///< of those: one or both are NaN or infinite
  double max_absolute = 0;     ///< over those that are finite
  double max_relative = 0;     ///< |a - b| / max(|a|, |b|)
};
struct CheckpointDifference {
  int64_t num_tensors = 0;                ///< names in either
  std::vector<TensorDifference> tensors;  ///< those that differ, by name
  [[nodiscard]] bool equal() const { return tensors.empty(); }
};
/// Compares every tensor by its logical name: how it was cut among writers does not count. Reads
/// both in full, two tensors at a time in memory. Step, mesh and job are not compared. Errors:
/// kCorruption naming the damaged file.
Result<CheckpointDifference> compare_checkpoints(const transport::Checkpoint& a,
                                                 const transport::Checkpoint& b);
/// "model.norm.weight  3 of 64 elements differ, …".
std::string difference_text(const TensorDifference& difference);

/// Directory of the checkpoint that `path` names: a step directory, or the newest whole one of a
/// run directory or its ckpt/. Errors: kInvalidArgument.
Result<std::string> find_step_dir(const std::string& path);

/// `sgactor ckpt diff A B`.
void add_ckpt_diff(CLI::App& ckpt, CommandLine& line);

}  // namespace sgactor::apps
