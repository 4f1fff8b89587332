#pragma once
#include "kernels/backend/backend.h"
#include "kernels/backend/replay_keys.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/profile.h"
#include "kernels/cuda/recorded_graph.h"

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace sgactor::kernels::cuda {

/// A stream's place for the outcome of checks on values: the lowest position with a bad id, as
/// position << 32 | id; all ones if there is none.
struct CheckPlace {
  unsigned long long* device = nullptr;
  unsigned long long* host = nullptr;  ///< pinned
};

/// What steps see of one launch.
struct Frame {
  std::byte* const* values = nullptr;  ///< address of each value of the body
  std::byte* scratch = nullptr;        ///< the largest that any step asked for
  cudaStream_t stream = nullptr;
  CheckPlace check;

  template <class T>
  [[nodiscard]] T* at(graph::ValueId v) const {
    return reinterpret_cast<T*>(values[v]);
  }
};

/// Enqueues the kernels of one op, the same for the same frame: nothing else may change between
/// calls, since calls are recorded and replayed. Steps that check values wait for the stream;
/// others never.
using StepFn = std::function<Status(const Frame&)>;

/// Bodies are shared by the layers of a model, each with pointers of its own, times the slots of
/// micro-batches.
inline constexpr int32_t kMostReplayKeys = 256;

class CudaExecutable final : public Executable {
 public:
  CudaExecutable(std::shared_ptr<CudaDevice> device, std::string name)
      : device_(std::move(device)), name_(std::move(name)) {}
  ~CudaExecutable() override;
  CudaExecutable(const CudaExecutable&) = delete;
  CudaExecutable& operator=(const CudaExecutable&) = delete;
  [[nodiscard]] int64_t scratch_bytes() const override { return scratch_bytes_; }

  /// Enqueues all steps, from the third launch with the same pointers on as recorded graphs. Called
  /// by one stream's thread at a time.
  Status run(const LaunchArgs& args, cudaStream_t stream, const CheckPlace& check) const;

 private:
  friend class Lowering;
  struct Step {
    StepFn run;
    Profile::Work work;
    bool waits = false;  ///< for the stream: cannot be recorded
  };
  /// Steps [begin, end) that are recorded together, or one that waits.
  struct Piece {
    size_t begin = 0;
    size_t end = 0;
    bool waits = false;
  };
  void cut_pieces();
  Status resolve(const LaunchArgs& args) const;
  Status run_piece(const Piece& piece, const Frame& frame, const LaunchArgs& args) const;
  Status run_plain(size_t first_piece, const Frame& frame, const LaunchArgs& args) const;
  Status run_recording(int32_t key, const Frame& frame, const LaunchArgs& args) const;
  Status run_recorded(int32_t key, const Frame& frame, const LaunchArgs& args) const;
  Status copy_outputs(const Frame& frame, const LaunchArgs& args) const;

  std::shared_ptr<CudaDevice> device_;
  std::string name_;
  std::vector<Place> places_;          ///< one a value
  std::vector<std::byte*> constants_;  ///< one a value; not null: instead of its place
  std::vector<graph::ValueId> outputs_;
  std::vector<int64_t> output_bytes_;
  size_t num_inputs_ = 0;
  std::vector<Step> steps_;
  std::vector<Piece> pieces_;                          ///< the last one also copies outputs
  std::vector<std::unique_ptr<DeviceMemory>> memory_;  ///< constants
  int64_t scratch_bytes_ = 0;
  int64_t workspace_bytes_ = 0;
  mutable std::vector<std::byte*> resolved_;
  mutable ReplayKeys keys_{kMostReplayKeys};
  mutable std::vector<std::vector<RecordedGraph>> recorded_;  ///< key -> piece; may be empty
};

}  // namespace sgactor::kernels::cuda
