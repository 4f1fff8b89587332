#pragma once
#include "graph/base/status.h"

#include <cuda_runtime_api.h>

#include <functional>
#include <utility>

namespace sgactor::kernels::cuda {

/// Kernels, copies and fills that a stream was given, ready to be given again by one call, with the
/// same arguments. Empty: nothing worth recording. Used by one thread at a time.
class RecordedGraph {
 public:
  RecordedGraph() = default;
  RecordedGraph(RecordedGraph&& other) noexcept : exec_(std::exchange(other.exec_, nullptr)) {}
  RecordedGraph& operator=(RecordedGraph&& other) noexcept {
    std::swap(exec_, other.exec_);
    return *this;
  }
  RecordedGraph(const RecordedGraph&) = delete;
  RecordedGraph& operator=(const RecordedGraph&) = delete;
  ~RecordedGraph();

  /// Captures what `work` enqueues on `stream`, which executes nothing of it. Calls of other
  /// threads are not affected. Errors: whatever kept it from being captured; the stream is as it
  /// was and the runtime's error is cleared, so that the work can be enqueued plainly.
  static Result<RecordedGraph> record(cudaStream_t stream, const std::function<Status()>& work);

  [[nodiscard]] bool empty() const { return exec_ == nullptr; }
  /// Pre: not empty.
  Status launch(cudaStream_t stream) const;

 private:
  explicit RecordedGraph(cudaGraphExec_t exec) : exec_(exec) {}
  cudaGraphExec_t exec_ = nullptr;
};

}  // namespace sgactor::kernels::cuda
