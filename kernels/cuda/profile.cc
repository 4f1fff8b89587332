#include "kernels/cuda/profile.h"

#include "kernels/cuda/cuda_status.h"

#include <algorithm>
#include <cstdio>
#include <utility>
#include <vector>

namespace sgactor::kernels::cuda {

Status Profile::time(const Work& work, cudaStream_t stream, const std::function<Status()>& run) {
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  SGA_CUDA_TRY(cudaEventCreate(&begin));
  SGA_CUDA_TRY(cudaEventCreate(&end));
  SGA_CUDA_TRY(cudaEventRecord(begin, stream));
  Status status = run();
  if (status.ok()) status = cuda_status(cudaEventRecord(end, stream));
  if (status.ok()) status = cuda_status(cudaEventSynchronize(end));
  float ms = 0;
  if (status.ok()) status = cuda_status(cudaEventElapsedTime(&ms, begin, end));
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  const std::lock_guard lock(mutex_);
  Sum& sum = sums_[work.family];
  sum.calls += 1;
  sum.ms += static_cast<double>(ms);
  sum.flops += work.flops;
  sum.bytes += work.bytes;
  return status;
}

void Profile::write_report() const {
  const std::lock_guard lock(mutex_);
  std::FILE* file = std::fopen(file_.c_str(), "a");
  if (file == nullptr) return;
  std::vector<std::pair<std::string, Sum>> rows(sums_.begin(), sums_.end());
  std::sort(rows.begin(), rows.end(),
            [](const auto& a, const auto& b) { return a.second.ms > b.second.ms; });
  double total = 0;
  for (const auto& [name, sum] : rows) total += sum.ms;
  std::fprintf(file, "%-44s %7s %10s %6s %9s %9s\n", "family", "calls", "ms", "share", "TFLOP/s",
               "GB/s");
  for (const auto& [name, sum] : rows) {
    std::fprintf(file, "%-44s %7lld %10.3f %5.1f%% %9.1f %9.0f\n", name.c_str(),
                 static_cast<long long>(sum.calls), sum.ms, 100 * sum.ms / total,
                 sum.flops / sum.ms * 1e-9, sum.bytes / sum.ms * 1e-6);
  }
  std::fprintf(file, "%-44s %7s %10.3f\n", "all", "", total);
  std::fclose(file);
}

}  // namespace sgactor::kernels::cuda
