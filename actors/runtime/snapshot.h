#pragma once
#include "actors/runtime/program_context.h"
#include "transport/storage/checkpoint.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace sgactor::actors {

/// A second copy of what a rank writes of its state (writes_state), allocated at start: copies go
/// there in lane order, and files are written from there while the next steps run. It lies on the
/// device where that has room for it, which costs the lane least, else in the host's memory.
class SnapshotStaging {
 public:
  /// Pre: all else that the process needs of the device is allocated. Errors: kOutOfMemory.
  static Result<std::unique_ptr<SnapshotStaging>> create(const ProgramContext& context);

  /// Puts the copies on lane 0's stream; `sink` hears `token` when the last is
  /// complete and `quiet_token` for the others. Pre: the caller holds lane 0, and no write is under
  /// way. Does not block.
  void enqueue_copies(uint64_t token, uint64_t quiet_token, kernels::CompletionSink& sink);
  /// Writes what was copied as this rank's part of the checkpoint of `step`. `writer` differs among
  /// the ranks; `files`: null: the machine's. Blocks; for a service.
  Result<transport::WrittenPart> write(const std::string& root, int64_t step,
                                       const std::string& writer,
                                       std::shared_ptr<transport::FileSystem> files = {});

 private:
  explicit SnapshotStaging(const ProgramContext& context) : context_(context) {}

  const ProgramContext& context_;
  std::vector<TensorPlace> state_;  // what this rank writes
  std::unique_ptr<kernels::DeviceMemory> memory_;
  std::vector<std::byte*> copies_;  // one a tensor of the state
  bool as_on_host_ = false;         // copies_ are bytes that the host can read as they are
  std::vector<std::vector<std::byte>> natives_;  // else, from the first write on
  std::vector<std::string> segments_;
};

/// Bytes of the copy that SnapshotStaging makes of `rank`'s state.
int64_t staging_bytes(const graph::Plan& plan, int32_t rank);

/// Writes the state in `context`'s memory, which is that after `step`, as what its stage and
/// tensor-parallel rank add to a checkpoint: any data-parallel rank may, where each holds all of it
/// (ZeRO stage 0). `writer` as SnapshotStaging::write. Pre: nothing changes the state meanwhile.
/// Reads beside launches that read it too. Blocks; for a service.
Result<transport::WrittenPart> write_replica(const ProgramContext& context, const std::string& root,
                                             int64_t step, const std::string& writer);

/// "ROOT/step-00000010"
std::string checkpoint_path(const std::string& root, int64_t step);

}  // namespace sgactor::actors
