#pragma once
#include "graph/base/status.h"

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <utility>

/// What a cudaStream_t points to: nothing else here needs CUDA's headers.
struct CUstream_st;

namespace sgactor::kernels::cuda {

/// B batch, T time, H heads of queries, G of keys and values, K head dim.
struct AttentionShape {
  int64_t B = 0, T = 0, H = 0, G = 0, K = 0;
  double scale = 1;
  bool causal = true;
  /// Heads that a token has in memory, where H and G are some of them; 0: H and G are all.
  int64_t H_row = 0, G_row = 0;

  friend auto operator<=>(const AttentionShape&, const AttentionShape&) = default;
};

struct AttentionPointers {
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  void* o = nullptr;          ///< read by the gradient
  void* lse = nullptr;        ///< f32[B, H, T]; read by the gradient
  const void* d_o = nullptr;  ///< gradient only, as what follows
  void* dq = nullptr;
  void* dk = nullptr;
  void* dv = nullptr;
};

/// Attention in bf16 by cuDNN's fused kernels: tensors [B, T, heads, K], any G that divides H.
/// Deterministic. Thread-safe.
class FusedAttention {
 public:
  virtual ~FusedAttention() = default;
  [[nodiscard]] virtual int64_t workspace_bytes() const = 0;
  virtual Status run(CUstream_st* stream, const AttentionPointers& pointers,
                     void* workspace) const = 0;
};

/// Forward, or the gradient. Errors: kUnsupported if cuDNN is not there, was not there at build
/// time, or has no kernel for the shape; the caller has kernels of its own then, with other bits.
/// What another run on such a device need not meet is never that: kOutOfMemory, kDeviceFault.
Result<std::shared_ptr<const FusedAttention>> create_fused_attention(const AttentionShape& shape,
                                                                     bool gradient);
/// Loads the library and those behind it, once a process; needs no device. Blocks; for a thread
/// beside a start.
void load_attention_libraries();
/// What decides which kernels attention takes, for a device's fingerprint: "cudnn-91400",
/// "no-cudnn". Loads the library.
std::string attention_fingerprint();
/// Lets the library set itself up on device `index`, once a process: what takes a while in the
/// first call of create_fused_attention. Blocks; for a thread beside a start.
void load_fused_attention(int32_t index);

/// A device's fused kernels, made once a shape: bodies that differ elsewhere share them.
/// Thread-safe.
class AttentionPlans {
 public:
  /// As create_fused_attention; waits for whoever is making one.
  Result<std::shared_ptr<const FusedAttention>> get(const AttentionShape& shape, bool gradient);
  /// Logs that plain kernels take the shape, and why: once for its head dim and mask.
  void warn_plain(const AttentionShape& shape, bool gradient, const Status& why);

 private:
  std::mutex mutex_;
  std::set<std::tuple<int64_t, bool, bool>> warned_;  ///< head dim, causal, gradient
  std::map<std::pair<AttentionShape, bool>, std::shared_ptr<const FusedAttention>> made_;
};

}  // namespace sgactor::kernels::cuda
