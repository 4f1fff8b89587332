#pragma once
#include "graph/base/status.h"

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>

namespace sgactor::kernels::cuda {

/// Times every step of every launch alone: waits for the GPU around it. For measurements only; the
/// sums leave out the gaps between kernels. Thread-safe.
class Profile {
 public:
  explicit Profile(std::string file) : file_(std::move(file)) {}
  /// What a step does, as its op's rules count it.
  struct Work {
    std::string family;  ///< the op's name
    double flops = 0;
    double bytes = 0;
  };
  Status time(const Work& work, cudaStream_t stream, const std::function<Status()>& run);
  /// A line a family: calls, milliseconds, TFLOP/s, GB/s. Errors are ignored: it runs at the end.
  void write_report() const;

 private:
  struct Sum {
    int64_t calls = 0;
    double ms = 0, flops = 0, bytes = 0;
  };
  std::string file_;
  mutable std::mutex mutex_;
  std::map<std::string, Sum> sums_;
};

}  // namespace sgactor::kernels::cuda
