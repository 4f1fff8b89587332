#pragma once
#include "graph/base/hash.h"
#include "graph/base/shape.h"
#include "graph/base/status.h"
#include "transport/storage/file_system.h"
#include "transport/storage/safetensors.h"
#include "transport/storage/state_source.h"
#include "transport/storage/tensor_slice.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace sgactor::transport {

/// Checkpoints of a run, below one directory:
///   chunks/ab/abcdef….bin          content-addressed (XXH3-128), never rewritten
///   step-00000010/manifest.bin     Cap'n Proto (manifest.capnp)
///   step-00000010/COMMIT           hash and size of the manifest; written last, after fsync of
///                                  everything else
/// A step without a COMMIT that matches is not a checkpoint, whatever else it holds.
///
/// One writer or pruner of a root at a time; readers at any time but during a prune of what they
/// read. The functions finish their work before they return. `files` stands for the disk; null is
/// the machine's own.

inline constexpr uint32_t kRuntimeVersion =
    1;  ///< format of what a checkpoint means; grows with each change

/// A part of a tensor that one writer held.
struct PieceRecord {
  TensorSlice slice;
  std::vector<Hash128> chunks;  ///< of at most chunk_bytes, in order
};
struct TensorRecord {
  std::string name;
  TensorType type;
  std::string segment;              ///< subgraph it belongs to
  std::vector<Hash128> chunks;      ///< of at most chunk_bytes, in order; empty if there are pieces
  std::vector<PieceRecord> pieces;  ///< together all of the tensor
};
struct CheckpointInfo {
  int64_t step = 0;
  uint64_t schema_hash = 0;
  uint32_t runtime_version = kRuntimeVersion;
  std::string mesh;       ///< "pp=1 dp=1 tp=1"
  std::string run_state;  ///< "RUNNING"
  uint64_t data_seed = 0;
  int64_t data_position = 0;  ///< steps consumed
  std::string model_config;   ///< config.json text
  std::string job;            ///< resolved job file
  std::string graph;          ///< serialized training graph, to name the first differing op
  int64_t chunk_bytes = 0;
  std::vector<TensorRecord> tensors;
  std::string path;  ///< directory it was read from; not stored
};

/// A whole checkpoint, opened read-only. Each chunk's hash is checked as it is read. Thread-safe.
class Checkpoint : public StateSource {
 public:
  /// Whole: manifest and COMMIT agree and every chunk is there with its size. Errors: kCorruption
  /// naming the file that is missing, cut or altered.
  static Result<std::unique_ptr<Checkpoint>> open(const std::string& step_dir,
                                                  std::shared_ptr<const FileSystem> files = {});
  [[nodiscard]] virtual const CheckpointInfo& info() const = 0;
};

struct CheckpointListing {
  std::string path;
  int64_t step = 0;
  Status status;      ///< ok: whole, as Checkpoint::open means it
  int64_t bytes = 0;  ///< of its tensors; 0 if the manifest cannot be read
};
/// All step directories below `root`, oldest first. A run directory (with ckpt/ inside) is accepted
/// too. Errors: kInvalidArgument if `root` is no directory.
Result<std::vector<CheckpointListing>> list_checkpoints(
    const std::string& root, std::shared_ptr<const FileSystem> files = {});
/// Step directory of the newest whole one; `skipped` (may be null) receives those newer that are
/// not, newest first, with the reason. With `read_all` every byte of a candidate is read and
/// checked too, so that a damaged chunk leads to an older checkpoint and not to a failing load.
/// Errors: kInvalidArgument if there is none.
Result<std::string> newest_checkpoint(const std::string& root,
                                      std::vector<CheckpointListing>* skipped, bool read_all = true,
                                      std::shared_ptr<const FileSystem> files = {});
/// Reads every byte and checks every hash. Errors: kCorruption naming the file.
Status verify_checkpoint(const std::string& step_dir, std::shared_ptr<const FileSystem> files = {});

struct WriteOptions {
  int64_t chunk_bytes = int64_t{4} << 20;
  /// Read a chunk that is there before it is used again; a damaged one is written anew. Without it
  /// only its size is checked.
  bool check_reused = true;
  std::string writer = "0";  ///< part of temporary names; differs among writers of one chunk store
};
struct WriteStats {
  int64_t bytes_written = 0;
  int64_t bytes_reused = 0;  ///< chunks that were there already
  double seconds = 0;
};
/// Writes a checkpoint of `tensors` (info.tensors and info.chunk_bytes are computed); `segments`
/// gives the segment of each, or is empty. Durable when it returns. Atomic: a crash at any point
/// leaves those of other steps whole. One of the same step is replaced, unless its content is the
/// same; while that goes on, that step is not whole. Errors: kInternal with errno's text (disk full
/// …): nothing half-written is ever taken for whole; kInvalidArgument if a name is there twice or
/// sizes do not agree.
Result<WriteStats> write_checkpoint(const std::string& root, CheckpointInfo info,
                                    const std::vector<NamedTensor>& tensors,
                                    const std::vector<std::string>& segments,
                                    const WriteOptions& options = {},
                                    std::shared_ptr<FileSystem> files = {});
/// What one of several writers adds: a tensor, or its slice of one (then `bytes` are the slice's,
/// and padding at its end is left out).
struct StoredTensor {
  std::string name;
  TensorType type;  ///< of the whole tensor
  std::optional<TensorSlice> slice;
  std::span<const std::byte> bytes;
  std::string segment;
};

/// A checkpoint by several writers: each stores chunks of what it holds and gets back a part, a few
/// bytes that say what lies where; one of them (or another process) commits all parts. The chunks
/// are durable when write_part returns. Errors as write_checkpoint's.
struct WrittenPart {
  std::string part;
  WriteStats stats;
};
Result<WrittenPart> write_part(const std::string& root, int64_t step,
                               const std::vector<StoredTensor>& tensors,
                               const WriteOptions& options = {},
                               std::shared_ptr<FileSystem> files = {});
/// Makes the checkpoint of info.step whole: its tensors are those of `parts` (of this step and of
/// equal chunk_bytes), in their order, slices of one tensor put together. Before anything is
/// written every chunk that they name is looked for below `root`. Returns the step's directory.
/// Errors: kInvalidArgument naming a tensor that is there twice; kCorruption for a part that is
/// none, for slices that do not make up their tensor, and for a chunk that is missing or of another
/// size, with its name; kInternal with errno's text.
Result<std::string> commit_checkpoint(const std::string& root, CheckpointInfo info,
                                      const std::vector<std::string>& parts,
                                      std::shared_ptr<FileSystem> files = {});

/// Removes all but the newest `keep` whole checkpoints and then unreferenced chunks. keep <= 0:
/// keeps all. If there is no whole one, nothing is removed. A crash on the way leaves those kept
/// whole; the next prune removes the rest.
Status prune_checkpoints(const std::string& root, int64_t keep,
                         std::shared_ptr<FileSystem> files = {});

}  // namespace sgactor::transport
