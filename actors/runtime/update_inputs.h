#pragma once
#include "actors/core/step_core.h"
#include "actors/runtime/program_context.h"
#include "graph/base/status.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace sgactor::actors {

/// R(k): what the update of step k reads and neither keeps from step to step nor makes itself, and
/// what the step reports. With S(j) and R(j+1 … k) a rank makes S(k) bit for bit by updates alone.
/// A file a step and rank, ROOT/inputs/step-<k>/rank-<r>, in this machine's byte order.

/// Which copies a worker makes, and what it begins with.
struct InputMirror {
  std::string root;  ///< empty: none
  /// The state that is loaded is S(from_step); the updates up to to_step are redone.
  int64_t from_step = 0;
  int64_t to_step = 0;
};

/// What a redone step gives, as StepDone has it.
struct RedoneStep {
  int64_t step = 0;
  RankNumbers numbers;
  int64_t valid_tokens = 0;
  uint64_t sample_hash = 0;
};

/// What the update reads, in the order of its launches; the same at all that `inputs_keeper` names
/// the same rank for. State is among it only where something before the update writes it.
std::vector<TensorPlace> update_inputs(const ProgramContext& context);
/// The rank whose file has what `rank`'s update reads: data-parallel rank 0 where gradients are
/// whole on every one (ZeRO stage 0), else itself.
int32_t inputs_keeper(const graph::Plan& plan, int32_t rank);
/// Numbers of the step that has just been done. Blocks.
Result<RankNumbers> step_numbers(const ProgramContext& context);

/// Saves and redoes for one rank; all its memory is there from create() on. One caller at a time.
class UpdateInputs {
 public:
  /// Errors: kUnsupported if the update communicates: it cannot be redone alone.
  static Result<std::unique_ptr<UpdateInputs>> create(std::shared_ptr<const ProgramContext> context,
                                                      const std::string& root);

  /// Pre: all work before the update of `step` is complete, and nothing of the update has begun.
  /// The file appears whole or not at all. Blocks; for a service. Errors: kInternal with errno's
  /// text, kOverloaded if there is not room for several such files.
  Status save(int64_t step, int64_t valid_tokens, uint64_t sample_hash);
  /// Pre: the memory holds S(first - 1), and nobody else uses it or lane 0. Afterwards it holds
  /// S(last). Blocks. Errors: kCorruption naming a file that is missing, damaged or of another
  /// plan; the state is then undefined.
  Result<RedoneStep> load_and_redo(int64_t first, int64_t last);
  /// Bytes of one save.
  [[nodiscard]] int64_t bytes() const;

 private:
  UpdateInputs(std::shared_ptr<const ProgramContext> context, std::string root);
  Status list_launches();
  void list_places();
  Status write_file(int fd, int64_t step, int64_t valid_tokens, uint64_t sample_hash);
  Status load(int64_t step, RedoneStep& out);
  Status redo(int64_t step);
  /// Bytes of the place as they are written.
  Result<std::span<const std::byte>> bytes_of(const TensorPlace& place, size_t index);

  std::shared_ptr<const ProgramContext> context_;
  std::string root_;
  int32_t keeper_;
  bool raw_;  // files hold the backend's storage, else native bytes
  uint64_t layout_ = 0;
  std::vector<graph::LaunchId> launches_;  // of the update, in lane order
  std::vector<TensorPlace> own_;           // reports
  std::vector<TensorPlace> shared_;        // what the update reads
  std::vector<std::vector<std::byte>> natives_;
};

/// Whether the files of `step` are there for all ranks of `plan`, by their headers and lengths.
bool inputs_whole(const graph::Plan& plan, const std::string& root, int64_t step);
/// Takes the files of all steps up to `step` away: later saves write over them, so that as many
/// files are there as were at the same time. What cannot be taken away stays.
void prune_inputs(const std::string& root, int64_t step);

}  // namespace sgactor::actors
