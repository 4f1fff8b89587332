// CUDA's runtime as far as streams call it, and what else stream.cc links to.
#include "tests/unit/kernels/cuda/fake_runtime.h"

#include "kernels/cuda/attention.h"
#include "kernels/cuda/executable.h"
#include "kernels/cuda/fill_zeros.h"
#include "kernels/cuda/matmul_table.h"

#include <cstdlib>
#include <cstring>

namespace sgactor::testing {

FakeRuntime& fake_runtime() {
  static FakeRuntime runtime;
  return runtime;
}

namespace {

/// What an event or a stream points to.
struct Thing {
  bool is_waited_for = false;
};

template <class Handle>
cudaError_t make(Handle* out, Thing thing) {
  *out = reinterpret_cast<Handle>(new Thing(thing));
  return cudaSuccess;
}
template <class Handle>
cudaError_t destroy(Handle handle) {
  delete reinterpret_cast<Thing*>(handle);
  return cudaSuccess;
}
cudaError_t refused_if(bool refused) { return refused ? cudaErrorMemoryAllocation : cudaSuccess; }

}  // namespace
}  // namespace sgactor::testing

using sgactor::testing::fake_runtime;
using sgactor::testing::Thing;

extern "C" {

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
  // The others are for the completing thread alone.
  const bool is_waited_for = (flags & cudaEventDisableTiming) != 0;
  if (is_waited_for && fake_runtime().refuses_events) return cudaErrorMemoryAllocation;
  return sgactor::testing::make(event, {is_waited_for});
}
cudaError_t cudaEventDestroy(cudaEvent_t event) { return sgactor::testing::destroy(event); }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t /*stream*/) {
  return sgactor::testing::refused_if(reinterpret_cast<Thing*>(event)->is_waited_for &&
                                      fake_runtime().refuses_records);
}
cudaError_t cudaEventQuery(cudaEvent_t /*event*/) { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t /*event*/) { return cudaSuccess; }
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t /*start*/, cudaEvent_t /*end*/) {
  *ms = 0;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int /*flags*/) {
  return sgactor::testing::make(stream, {});
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) { return sgactor::testing::destroy(stream); }
cudaError_t cudaStreamWaitEvent(cudaStream_t /*stream*/, cudaEvent_t /*event*/,
                                unsigned int /*flags*/) {
  return sgactor::testing::refused_if(fake_runtime().refuses_waits);
}
cudaError_t cudaMalloc(void** to, size_t bytes) {
  *to = std::malloc(bytes);
  return cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** to, size_t bytes) { return cudaMalloc(to, bytes); }
cudaError_t cudaFreeHost(void* memory) { return cudaFree(memory); }
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind /*kind*/,
                            cudaStream_t /*stream*/) {
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t /*stream*/) {
  std::memset(to, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorName(cudaError_t /*error*/) { return "cudaErrorMemoryAllocation"; }
const char* cudaGetErrorString(cudaError_t /*error*/) { return "out of memory"; }

}  // extern "C"

namespace sgactor::kernels::cuda {

CudaDevice::CudaDevice() = default;
CudaDevice::~CudaDevice() = default;
Result<std::shared_ptr<CudaDevice>> CudaDevice::create(int32_t /*index*/) {
  return std::shared_ptr<CudaDevice>(new CudaDevice());
}
Status CudaDevice::use() const { return {}; }

RecordedGraph::~RecordedGraph() = default;
CudaExecutable::~CudaExecutable() = default;
Status CudaExecutable::run(const LaunchArgs& /*args*/, cudaStream_t /*stream*/,
                           const CheckPlace& /*check*/) const {
  return internal_error("no launches here");
}

Status fill_zeros(std::span<const ZeroPlace> places, cudaStream_t /*stream*/) {
  for (const ZeroPlace& place : places) std::memset(place.to, 0, static_cast<size_t>(place.bytes));
  return {};
}

}  // namespace sgactor::kernels::cuda
