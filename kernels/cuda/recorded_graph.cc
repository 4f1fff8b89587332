#include "kernels/cuda/recorded_graph.h"

#include "kernels/cuda/cuda_status.h"

namespace sgactor::kernels::cuda {
namespace {

/// One kernel is started as fast alone as by a graph.
constexpr size_t kLeastNodes = 2;

Result<cudaGraphExec_t> instantiate(cudaGraph_t graph) {
  size_t num_nodes = 0;
  SGA_CUDA_TRY(cudaGraphGetNodes(graph, nullptr, &num_nodes));
  cudaGraphExec_t exec = nullptr;
  if (num_nodes >= kLeastNodes) SGA_CUDA_TRY(cudaGraphInstantiate(&exec, graph, 0));
  return exec;
}

}  // namespace

RecordedGraph::~RecordedGraph() {
  if (exec_ != nullptr) cudaGraphExecDestroy(exec_);
}

Result<RecordedGraph> RecordedGraph::record(cudaStream_t stream,
                                            const std::function<Status()>& work) {
  SGA_CUDA_TRY(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  const Status enqueued = work();
  cudaGraph_t graph = nullptr;
  // Ends the capture even where it was broken off; the graph is null then.
  const cudaError_t ended = cudaStreamEndCapture(stream, &graph);
  Result<cudaGraphExec_t> exec = !enqueued.ok() ? Result<cudaGraphExec_t>(enqueued)
                                 : ended != cudaSuccess
                                     ? Result<cudaGraphExec_t>(cuda_status(ended))
                                     : instantiate(graph);
  if (graph != nullptr) cudaGraphDestroy(graph);
  if (!exec.ok()) {
    cudaGetLastError();
    return exec.status();
  }
  return RecordedGraph(*exec);
}

Status RecordedGraph::launch(cudaStream_t stream) const {
  return cuda_status(cudaGraphLaunch(exec_, stream));
}

}  // namespace sgactor::kernels::cuda
