// Letters as in attention_backward_parts.cuh.
#include "kernels/cuda/attention_backward.h"
#include "kernels/cuda/attention_backward_keys.cuh"
#include "kernels/cuda/attention_backward_queries.cuh"
#include "kernels/cuda/cuda_status.h"

#include <cudaTypedefs.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

namespace sgactor::kernels::cuda {
namespace {

using hopper::GradientArguments;
using hopper::GradientMaps;
using hopper::kTile;
using bf16 = __nv_bfloat16;

constexpr float kLog2E = 1.4426950408889634F;
constexpr int kStatTimes = 32;
constexpr int kStatHeads = 8;

int padded(const AttentionShape& s) { return static_cast<int>((s.T + kTile - 1) / kTile * kTile); }

/// A warp has 32 times of a head; a row of K numbers goes to K / 8 lanes.
template <int K>
__global__ void statistics_kernel(const bf16* o, const bf16* d_o, const float* lse, float* lse2,
                                  float* delta, int T, int H, int padded) {
  constexpr int kLanes = K / 8;
  constexpr int kRows = 32 / kLanes;
  const int lane = threadIdx.x % 32;
  const int h = blockIdx.y * kStatHeads + threadIdx.x / 32;
  if (h >= H) return;
  const int b = blockIdx.z;
  const int first = blockIdx.x * kStatTimes;
  float own = 0;
#pragma unroll
  for (int i = 0; i < kStatTimes / kRows; ++i) {
    const int t = first + i * kRows + lane / kLanes;
    float sum = 0;
    if (t < T) {
      const int64_t at = ((static_cast<int64_t>(b) * T + t) * H + h) * K + lane % kLanes * 8;
      const uint4 x = *reinterpret_cast<const uint4*>(o + at);
      const uint4 y = *reinterpret_cast<const uint4*>(d_o + at);
      const auto* xs = reinterpret_cast<const __nv_bfloat162*>(&x);
      const auto* ys = reinterpret_cast<const __nv_bfloat162*>(&y);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float2 p = __bfloat1622float2(xs[j]);
        const float2 q = __bfloat1622float2(ys[j]);
        sum += p.x * q.x + p.y * q.y;
      }
    }
#pragma unroll
    for (int mask = 1; mask < kLanes; mask *= 2) sum += __shfl_xor_sync(0xffffffffU, sum, mask);
    const float mine = __shfl_sync(0xffffffffU, sum, lane % kRows * kLanes);
    if (lane / kRows == i) own = mine;
  }
  const int t = first + lane;
  if (t >= padded) return;
  const int64_t row = static_cast<int64_t>(b) * H + h;
  delta[row * padded + t] = own;
  lse2[row * padded + t] = t < T ? lse[row * T + t] * kLog2E : INFINITY;
}

/// The driver's function, found through the run time: the module does not link the driver.
Result<PFN_cuTensorMapEncodeTiled_v12000> find_encoder() {
  void* f = nullptr;
  cudaDriverEntryPointQueryResult found{};
  SGA_CUDA_TRY(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000,
                                                cudaEnableDefault, &found));
  if (found != cudaDriverEntryPointSuccess)
    return make_status(Code::kDeviceFault, "cuda: the driver lacks cuTensorMapEncodeTiled",
                       Scope::kRank);
  return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(f);
}

/// Tiles of 64 times and 64 numbers of a head, in the swizzle that the products read.
Status encode(PFN_cuTensorMapEncodeTiled_v12000 encoder, CUtensorMap* map, const void* data,
              const AttentionShape& s, int64_t heads) {
  const auto at = [](int64_t n) { return static_cast<cuuint64_t>(n); };
  const std::array<cuuint64_t, 4> dims = {at(s.K), at(heads), at(s.T), at(s.B)};
  const std::array<cuuint64_t, 3> strides = {at(s.K * 2), at(heads * s.K * 2),
                                             at(s.T * heads * s.K * 2)};
  const std::array<cuuint32_t, 4> box = {kTile, 1, kTile, 1};
  const std::array<cuuint32_t, 4> steps = {1, 1, 1, 1};
  const CUresult rc =
      encoder(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, const_cast<void*>(data), dims.data(),
              strides.data(), box.data(), steps.data(), CU_TENSOR_MAP_INTERLEAVE_NONE,
              CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
              CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (rc == CUDA_SUCCESS) return {};
  return make_status(Code::kDeviceFault,
                     "cuda: tensor map: driver error " + std::to_string(static_cast<int>(rc)),
                     Scope::kRank);
}

Result<GradientMaps> encode_all(const AttentionShape& s, const AttentionPointers& p) {
  SGA_ASSIGN(const auto encoder, find_encoder());
  GradientMaps maps;
  SGA_TRY(encode(encoder, &maps.q, p.q, s, s.H));
  SGA_TRY(encode(encoder, &maps.k, p.k, s, s.G));
  SGA_TRY(encode(encoder, &maps.v, p.v, s, s.G));
  SGA_TRY(encode(encoder, &maps.d_o, p.d_o, s, s.H));
  return maps;
}

using Kernel = void (*)(GradientMaps, GradientArguments);

Status launch(cudaStream_t stream, Kernel kernel, size_t shared_bytes, const GradientMaps& maps,
              const GradientArguments& a) {
  SGA_CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(shared_bytes)));
  const unsigned grid = static_cast<unsigned>(a.blocks) * static_cast<unsigned>(a.B * a.G);
  kernel<<<grid, hopper::kBlockThreads, shared_bytes, stream>>>(maps, a);
  return launched();
}

/// As many stages as shared memory holds.
template <int K, bool kAhead, int kKeyStages, int kQueryStages, bool kCausal>
Status launch_both(cudaStream_t stream, const GradientMaps& maps, const GradientArguments& a) {
  SGA_TRY(launch(stream, hopper::key_gradient_kernel<K, kKeyStages, kAhead, kCausal>,
                 sizeof(hopper::KeyShared<K, kKeyStages>), maps, a));
  return launch(stream, hopper::query_gradient_kernel<K, kQueryStages, kCausal>,
                sizeof(hopper::QueryShared<K, kQueryStages>), maps, a);
}

template <bool kCausal>
Status launch_for(cudaStream_t stream, int64_t K, const GradientMaps& maps,
                  const GradientArguments& a) {
  if (K == 64) return launch_both<64, true, 6, 6, kCausal>(stream, maps, a);
  return launch_both<128, false, 4, 3, kCausal>(stream, maps, a);
}

void launch_statistics(cudaStream_t stream, const AttentionShape& s, const AttentionPointers& p,
                       float* lse2, float* delta) {
  const int length = padded(s);
  const dim3 grid(static_cast<unsigned>((length + kStatTimes - 1) / kStatTimes),
                  static_cast<unsigned>((s.H + kStatHeads - 1) / kStatHeads),
                  static_cast<unsigned>(s.B));
  const auto kernel = s.K == 64 ? statistics_kernel<64> : statistics_kernel<128>;
  kernel<<<grid, kStatHeads * 32, 0, stream>>>(
      static_cast<const bf16*>(p.o), static_cast<const bf16*>(p.d_o),
      static_cast<const float*>(p.lse), lse2, delta, static_cast<int>(s.T), static_cast<int>(s.H),
      length);
}

}  // namespace

bool has_attention_gradient(const AttentionShape& s) {
  return (s.K == 64 || s.K == 128) && s.B > 0 && s.B < 65536 && s.T >= kTile &&
         s.T <= (int64_t{1} << 24) && s.B * s.H * s.T < (int64_t{1} << 31);
}

int64_t attention_gradient_workspace_bytes(const AttentionShape& s) {
  return 2 * s.B * s.H * padded(s) * static_cast<int64_t>(sizeof(float));
}

Status run_attention_gradient(cudaStream_t stream, const AttentionShape& s,
                              const AttentionPointers& p, void* workspace) {
  SGA_ASSIGN(const GradientMaps maps, encode_all(s, p));
  auto* lse2 = static_cast<float*>(workspace);
  auto* delta = lse2 + s.B * s.H * padded(s);
  launch_statistics(stream, s, p, lse2, delta);
  SGA_TRY(launched());
  int device = 0;
  int multiprocessors = 1;
  SGA_CUDA_TRY(cudaGetDevice(&device));
  SGA_CUDA_TRY(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
  constexpr int kRows = hopper::kWarpgroups * kTile;
  const int blocks = static_cast<int>((s.T + kRows - 1) / kRows);
  const GradientArguments a{.lse2 = lse2,
                            .delta = delta,
                            .dq = static_cast<bf16*>(p.dq),
                            .dk = static_cast<bf16*>(p.dk),
                            .dv = static_cast<bf16*>(p.dv),
                            .B = static_cast<int>(s.B),
                            .T = static_cast<int>(s.T),
                            .H = static_cast<int>(s.H),
                            .G = static_cast<int>(s.G),
                            .padded = padded(s),
                            .scale = static_cast<float>(s.scale),
                            .scale_log2 = static_cast<float>(s.scale) * kLog2E,
                            .blocks = blocks,
                            .section = std::max(1, multiprocessors / blocks)};
  return s.causal ? launch_for<true>(stream, s.K, maps, a)
                  : launch_for<false>(stream, s.K, maps, a);
}

}  // namespace sgactor::kernels::cuda
