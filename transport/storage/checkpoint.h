#pragma once
#include "graph/base/hash.h"
#include "graph/base/shape.h"
#include "graph/base/status.h"
#include "transport/storage/safetensors.h"
#include "transport/storage/state_source.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace sgactor::transport {

/// Checkpoints of a run, below one directory:
///   chunks/ab/abcdef….bin          content-addressed (XXH3-128), never rewritten
///   step-00000010/manifest.bin     Cap'n Proto (manifest.capnp)
///   step-00000010/COMMIT           hash of the manifest; written last, after fsync of everything
///   else
/// A step without a COMMIT that matches is not a checkpoint, whatever else it holds.

inline constexpr uint32_t kRuntimeVersion =
    1;  ///< format of what a checkpoint means; grows with each change

struct TensorRecord {
  std::string name;
  TensorType type;
  std::string segment;          ///< subgraph it belongs to
  std::vector<Hash128> chunks;  ///< of at most chunk_bytes, in order
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

/// A whole checkpoint, opened read-only. Each chunk's hash is checked as it is read.
class Checkpoint : public StateSource {
 public:
  /// Errors: kCorruption naming the file that is missing, cut or altered.
  static Result<std::unique_ptr<Checkpoint>> open(const std::string& step_dir);
  [[nodiscard]] virtual const CheckpointInfo& info() const = 0;
};

struct CheckpointListing {
  std::string path;
  int64_t step = 0;
  Status status;  ///< ok: whole (manifest and COMMIT agree, every chunk present with its size)
  int64_t bytes = 0;
};
/// All step directories below `root`, oldest first. A run directory (with ckpt/ inside) is accepted
/// too.
Result<std::vector<CheckpointListing>> list_checkpoints(const std::string& root);
/// Newest whole one; `skipped` receives those newer that are not, with the reason. Errors:
/// kInvalidArgument if there is none.
Result<std::string> newest_checkpoint(const std::string& root,
                                      std::vector<CheckpointListing>* skipped);
/// Reads every byte and checks every hash.
Status verify_checkpoint(const std::string& step_dir);

struct WriteStats {
  int64_t bytes_written = 0;
  int64_t bytes_reused = 0;  ///< chunks that were there already
  double seconds = 0;
};
/// Writes a checkpoint of `tensors` (info.tensors is computed). Atomic: a crash at any point leaves
/// earlier ones whole. Errors: kInternal with errno's text (disk full …), nothing half-written is
/// ever taken for whole.
Result<WriteStats> write_checkpoint(const std::string& root, CheckpointInfo info,
                                    const std::vector<NamedTensor>& tensors,
                                    const std::vector<std::string>& segments);
/// Removes all but the newest `keep` whole checkpoints and then unreferenced chunks. keep <= 0:
/// keeps all.
Status prune_checkpoints(const std::string& root, int64_t keep);

}  // namespace sgactor::transport
