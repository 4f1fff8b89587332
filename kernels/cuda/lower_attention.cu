// Attention: cuDNN's fused kernels for bf16, kernels of our own for its gradient at a head dim of
// 64 or 128, and plain kernels for every other type and shape, with a running maximum and sum
// (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; Dao et al.,
// "FlashAttention", 2022). Letters: B batch, T time, H query heads, G key-value heads, K head dim;
// S a key's time.
#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_backward.h"
#include "kernels/cuda/attention_ranges.h"
#include "kernels/cuda/kernel_math.cuh"
#include "kernels/cuda/lowering.h"
#include "kernels/cuda/row_loss.cuh"

#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace sgactor::kernels::cuda {
namespace {

using graph::Op;
using graph::ValueId;

constexpr int kWarps = 4;
constexpr int kLongestHead = 256;
constexpr int kParts = kLongestHead / 32;

struct View {
  AttentionShape s;
  __host__ __device__ int64_t query(int64_t b, int64_t t, int64_t h) const {
    return ((b * s.T + t) * s.H + h) * s.K;
  }
  __host__ __device__ int64_t key(int64_t b, int64_t t, int64_t g) const {
    return ((b * s.T + t) * s.G + g) * s.K;
  }
  __host__ __device__ int64_t row(int64_t b, int64_t t, int64_t h) const {
    return (b * s.H + h) * s.T + t;
  }
};

/// A lane's dot product of a row in shared memory with a row in device memory.
template <class T>
__device__ Compute<T> dot(const Compute<T>* shared_K, const T* x_K, int64_t K) {
  Compute<T> sum = 0;
  if (K % kLanes<T> == 0) {
    for (int64_t d = 0; d < K; d += kLanes<T>) {
      const Vec<T, kLanes<T>> x = load<kLanes<T>>(x_K + d);
#pragma unroll
      for (int j = 0; j < kLanes<T>; ++j) sum += shared_K[d + j] * widen(x.v[j]);
    }
  } else {
    for (int64_t d = 0; d < K; ++d) sum += shared_K[d] * widen(x_K[d]);
  }
  return sum;
}

/// A row of K numbers, of which a lane has every 32nd.
template <class C>
struct Spread {
  C v[kParts] = {};
  template <class T>
  __device__ void add_scaled(C factor, const T* x_K, int64_t K) {
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      const int64_t d = threadIdx.x % 32 + 32 * i;
      if (d < K) v[i] += factor * widen(x_K[d]);
    }
  }
  __device__ void scale(C factor) {
#pragma unroll
    for (int i = 0; i < kParts; ++i) v[i] *= factor;
  }
  template <class T>
  __device__ void write(T* y_K, int64_t K) const {
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      const int64_t d = threadIdx.x % 32 + 32 * i;
      if (d < K) y_K[d] = narrow<T>(v[i]);
    }
  }
};

template <class T>
__device__ void fill_shared(Compute<T>* shared_K, const T* x_K, int64_t K) {
  for (int64_t d = threadIdx.x % 32; d < K; d += 32) shared_K[d] = widen(x_K[d]);
  __syncwarp();
}

/// A warp a query.
template <class T>
__global__ void attention_kernel(View a, const T* q, const T* k, const T* v, T* o, Stat<T>* lse) {
  using C = Compute<T>;
  __shared__ C rows[kWarps][kLongestHead];
  const int lane = threadIdx.x % 32;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (index >= a.s.B * a.s.T * a.s.H) return;
  const int64_t t = index % a.s.T;
  const int64_t h = index / a.s.T % a.s.H;
  const int64_t b = index / (a.s.T * a.s.H);
  const int64_t g = h / (a.s.H / a.s.G);
  const int64_t K = a.s.K;
  C* q_K = rows[threadIdx.x / 32];
  fill_shared(q_K, q + a.query(b, t, h), K);
  const int64_t keys = a.s.causal ? t + 1 : a.s.T;
  C largest = -INFINITY;
  C sum = 0;
  Spread<C> out;
  for (int64_t first = 0; first < keys; first += 32) {
    const int64_t s = first + lane;
    const C score =
        s < keys ? static_cast<C>(a.s.scale) * dot(q_K, k + a.key(b, s, g), K) : C(-INFINITY);
    const C top = MaxOp::join(largest, warp_max(score));
    const C p = s < keys ? exp_of(score - top) : C(0);
    const C correction = exp_of(largest - top);
    sum = sum * correction + warp_sum(p);
    out.scale(correction);
    const int count = static_cast<int>(keys - first < 32 ? keys - first : 32);
    for (int j = 0; j < count; ++j)
      out.add_scaled(__shfl_sync(0xffffffffU, p, j), v + a.key(b, first + j, g), K);
    largest = top;
  }
  out.scale(C(1) / sum);
  out.write(o + a.query(b, t, h), K);
  if (lane == 0) lse[a.row(b, t, h)] = largest + static_cast<C>(::log(sum));
}

/// A warp a query: dq, and delta = do . o for the kernel below.
template <class T>
__global__ void query_grad_kernel(View a, const T* d_o, const T* q, const T* k, const T* v,
                                  const T* o, const Stat<T>* lse, T* dq, Compute<T>* delta) {
  using C = Compute<T>;
  __shared__ C rows[kWarps][2][kLongestHead];
  const int lane = threadIdx.x % 32;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (index >= a.s.B * a.s.T * a.s.H) return;
  const int64_t t = index % a.s.T;
  const int64_t h = index / a.s.T % a.s.H;
  const int64_t b = index / (a.s.T * a.s.H);
  const int64_t g = h / (a.s.H / a.s.G);
  const int64_t K = a.s.K;
  const int64_t at = a.query(b, t, h);
  C* q_K = rows[threadIdx.x / 32][0];
  C* do_K = rows[threadIdx.x / 32][1];
  fill_shared(q_K, q + at, K);
  fill_shared(do_K, d_o + at, K);
  C own = 0;
  for (int64_t d = lane; d < K; d += 32) own += do_K[d] * widen(o[at + d]);
  own = warp_sum(own);
  if (lane == 0) delta[a.row(b, t, h)] = own;
  const C top = lse[a.row(b, t, h)];
  const C scale = static_cast<C>(a.s.scale);
  const int64_t keys = a.s.causal ? t + 1 : a.s.T;
  Spread<C> out;
  for (int64_t first = 0; first < keys; first += 32) {
    const int64_t s = first + lane;
    C ds = 0;
    if (s < keys) {
      const C p = exp_of(scale * dot(q_K, k + a.key(b, s, g), K) - top);
      ds = scale * p * (dot(do_K, v + a.key(b, s, g), K) - own);
    }
    const int count = static_cast<int>(keys - first < 32 ? keys - first : 32);
    for (int j = 0; j < count; ++j)
      out.add_scaled(__shfl_sync(0xffffffffU, ds, j), k + a.key(b, first + j, g), K);
  }
  out.write(dq + at, K);
}

/// A warp a key: dk and dv, over the heads of its group and the queries that see it, in order.
template <class T>
__global__ void key_grad_kernel(View a, const T* d_o, const T* q, const T* k, const T* v,
                                const Stat<T>* lse, const Compute<T>* delta, T* dk, T* dv) {
  using C = Compute<T>;
  __shared__ C rows[kWarps][2][kLongestHead];
  const int lane = threadIdx.x % 32;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (index >= a.s.B * a.s.T * a.s.G) return;
  const int64_t s = index % a.s.T;
  const int64_t g = index / a.s.T % a.s.G;
  const int64_t b = index / (a.s.T * a.s.G);
  const int64_t K = a.s.K;
  const int64_t R = a.s.H / a.s.G;
  C* k_K = rows[threadIdx.x / 32][0];
  C* v_K = rows[threadIdx.x / 32][1];
  fill_shared(k_K, k + a.key(b, s, g), K);
  fill_shared(v_K, v + a.key(b, s, g), K);
  const C scale = static_cast<C>(a.s.scale);
  Spread<C> out_k;
  Spread<C> out_v;
  for (int64_t h = g * R; h < (g + 1) * R; ++h) {
    for (int64_t first = a.s.causal ? s : 0; first < a.s.T; first += 32) {
      const int64_t t = first + lane;
      C p = 0;
      C ds = 0;
      if (t < a.s.T) {
        const int64_t row = a.row(b, t, h);
        p = exp_of(scale * dot(k_K, q + a.query(b, t, h), K) - static_cast<C>(lse[row]));
        ds = scale * p * (dot(v_K, d_o + a.query(b, t, h), K) - delta[row]);
      }
      const int count = static_cast<int>(a.s.T - first < 32 ? a.s.T - first : 32);
      for (int j = 0; j < count; ++j) {
        const int64_t at = a.query(b, first + j, h);
        out_k.add_scaled(__shfl_sync(0xffffffffU, ds, j), q + at, K);
        out_v.add_scaled(__shfl_sync(0xffffffffU, p, j), d_o + at, K);
      }
    }
  }
  out_k.write(dk + a.key(b, s, g), K);
  out_v.write(dv + a.key(b, s, g), K);
}

AttentionShape shape_of(const Lowering& low, const Op& op, ValueId q, ValueId k) {
  const Shape& shape = low.type(q).shape;
  return {.B = shape.dim(0),
          .T = shape.dim(1),
          .H = shape.dim(2),
          .G = low.type(k).shape.dim(2),
          .K = shape.dim(3),
          .scale = op.attrs.f64("scale"),
          .causal = op.attrs.flag("causal")};
}

unsigned warps(int64_t n) { return blocks_for(n, kWarps); }

/// Whether cuDNN's kernels are for it at all: shorter sequences are fast with plain ones.
bool worth_asking(DType dtype, const AttentionShape& s) {
  return dtype == DType::kBF16 && s.T >= 64 && s.B > 0;
}

Result<std::shared_ptr<const FusedAttention>> find_fused(CudaDevice& device,
                                                         const AttentionShape& s, bool gradient) {
  if (s.K % 8 != 0) return unsupported("cuda: " + std::to_string(s.K) + " is no multiple of 8");
  return device.attentions().get(s, gradient);
}

/// Before plain kernels take what cuDNN has `refused`. Errors: kUnsupported if they cannot.
Status check_plain(Lowering& low, const Op& op, const AttentionShape& s, bool gradient,
                   const Status& refused) {
  if (s.K > kLongestHead)
    return unsupported(low.no_kernel(op).message() + "; " + refused.message());
  low.device().attentions().warn_plain(s, gradient, refused);
  return {};
}

Status add_fused_forward(Lowering& low, const Op& op, const View& a) {
  SGA_ASSIGN(const auto fused, find_fused(low.device(), a.s, false));
  low.need_scratch(fused->workspace_bytes());
  low.add([fused, in = op.operands, out = op.results](const Frame& frame) {
    const AttentionPointers p{.q = frame.values[in[0]],
                              .k = frame.values[in[1]],
                              .v = frame.values[in[2]],
                              .o = frame.values[out[0]],
                              .lse = frame.values[out[1]]};
    return fused->run(frame.stream, p, frame.scratch);
  });
  return {};
}

/// For measurements only: cuDNN's gradient in place of ours.
bool cudnn_gradient_wanted() {
  const char* wanted = std::getenv("SGACTOR_CUDA_ATTENTION_GRADIENT");
  return wanted != nullptr && std::string_view(wanted) == "cudnn";
}

/// A gradient kernel of cuDNN for a range of sequences and heads at a time.
struct FusedGradient {
  std::shared_ptr<const FusedAttention> kernel;
  GradientRange range;
};

/// cuDNN's deterministic kernel keeps all of dP, T x T a head.
Result<FusedGradient> create_fused_gradient(CudaDevice& device, const AttentionShape& s) {
  FusedGradient out;
  out.range = gradient_range(s.B, s.H, s.G, s.T, s.K);
  if (out.range.batch == 0) {
    return unsupported("cuda: cudnn's gradient of " + std::to_string(s.H / s.G) + " heads over " +
                       std::to_string(s.T) + " tokens works in more than " +
                       format_bytes(kMostGradientWorkspace));
  }
  AttentionShape piece = s;
  piece.B = out.range.batch;
  if (out.range.groups < s.G) {
    piece.H = out.range.groups * (s.H / s.G);
    piece.G = out.range.groups;
    piece.H_row = s.H;
    piece.G_row = s.G;
  }
  SGA_ASSIGN(out.kernel, find_fused(device, piece, true));
  if (out.kernel->workspace_bytes() > kMostGradientWorkspace) {
    return unsupported("cuda: cudnn's gradient works in " +
                       format_bytes(out.kernel->workspace_bytes()) + ", the limit is " +
                       format_bytes(kMostGradientWorkspace));
  }
  return out;
}

/// What a gradient reads and writes, from these bytes of queries, keys and statistics on.
AttentionPointers gradient_pointers(const Frame& f, const std::vector<ValueId>& in,
                                    const std::vector<ValueId>& out, int64_t q_at = 0,
                                    int64_t k_at = 0, int64_t lse_at = 0) {
  return {.q = f.values[in[1]] + q_at,
          .k = f.values[in[2]] + k_at,
          .v = f.values[in[3]] + k_at,
          .o = f.values[in[4]] + q_at,
          .lse = f.values[in[5]] + lse_at,
          .d_o = f.values[in[0]] + q_at,
          .dq = f.values[out[0]] + q_at,
          .dk = f.values[out[1]] + k_at,
          .dv = f.values[out[2]] + k_at};
}

Status add_fused_gradient(Lowering& low, const Op& op, const View& a) {
  SGA_ASSIGN(const FusedGradient f, create_fused_gradient(low.device(), a.s));
  low.need_scratch(f.kernel->workspace_bytes());
  low.add([a, f, in = op.operands, out = op.results](const Frame& frame) -> Status {
    constexpr int64_t kElement = 2;
    constexpr int64_t kStat = 4;
    for (int64_t b = 0; b < a.s.B; b += f.range.batch) {
      for (int64_t g = 0; g < a.s.G; g += f.range.groups) {
        const int64_t h = g * (a.s.H / a.s.G);
        const int64_t q_at = a.query(b, 0, h) * kElement;
        const int64_t k_at = a.key(b, 0, g) * kElement;
        const int64_t lse_at = a.row(b, 0, h) * kStat;
        const AttentionPointers p = gradient_pointers(frame, in, out, q_at, k_at, lse_at);
        SGA_TRY(f.kernel->run(frame.stream, p, frame.scratch));
      }
    }
    return {};
  });
  return {};
}

void add_own_gradient(Lowering& low, const Op& op, const AttentionShape& s) {
  low.need_scratch(attention_gradient_workspace_bytes(s));
  low.add(
      [s, in = op.operands, out = op.results](const Frame& frame) {
        const AttentionPointers p = gradient_pointers(frame, in, out);
        return run_attention_gradient(frame.stream, s, p, frame.scratch);
      },
      "flash_attention_grad, own");
}

}  // namespace

Status lower_flash_attention(Lowering& low, const Op& op) {
  const std::vector<ValueId> in = op.operands;
  const ValueId o = op.results[0];
  const ValueId lse = op.results[1];
  const View a{shape_of(low, op, in[0], in[1])};
  if (low.type(o).num_elements() == 0) return {};
  const DType dtype = low.type(o).dtype;
  if (worth_asking(dtype, a.s)) {
    const Status added = add_fused_forward(low, op, a);
    if (added.code() != Code::kUnsupported) return added;
    SGA_TRY(check_plain(low, op, a.s, false, added));
  }
  if (a.s.K > kLongestHead) return low.no_kernel(op);
  const bool known = by_float(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    low.add(
        [=](const Frame& f) {
          attention_kernel<<<warps(a.s.B * a.s.T * a.s.H), kWarps * 32, 0, f.stream>>>(
              a, f.at<T>(in[0]), f.at<T>(in[1]), f.at<T>(in[2]), f.at<T>(o), f.at<Stat<T>>(lse));
          return launched();
        },
        "flash_attention, plain");
  });
  return known ? Status() : low.no_kernel(op);
}

Status lower_flash_attention_grad(Lowering& low, const Op& op) {
  const std::vector<ValueId> in = op.operands;
  const std::vector<ValueId> out = op.results;
  const View a{shape_of(low, op, in[1], in[2])};
  if (low.type(out[0]).num_elements() == 0) return {};
  const DType dtype = low.type(out[0]).dtype;
  if (dtype == DType::kBF16 && has_attention_gradient(a.s) && !cudnn_gradient_wanted()) {
    add_own_gradient(low, op, a.s);
    return {};
  }
  if (worth_asking(dtype, a.s)) {
    const Status added = add_fused_gradient(low, op, a);
    if (added.code() != Code::kUnsupported) return added;
    SGA_TRY(check_plain(low, op, a.s, true, added));
  }
  if (a.s.K > kLongestHead) return low.no_kernel(op);
  const bool known = by_float(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    low.need_scratch(a.s.B * a.s.H * a.s.T * static_cast<int64_t>(sizeof(Compute<T>)));
    low.add(
        [=](const Frame& f) {
          auto* delta = reinterpret_cast<Compute<T>*>(f.scratch);
          query_grad_kernel<<<warps(a.s.B * a.s.T * a.s.H), kWarps * 32, 0, f.stream>>>(
              a, f.at<T>(in[0]), f.at<T>(in[1]), f.at<T>(in[2]), f.at<T>(in[3]), f.at<T>(in[4]),
              f.at<Stat<T>>(in[5]), f.at<T>(out[0]), delta);
          key_grad_kernel<<<warps(a.s.B * a.s.T * a.s.G), kWarps * 32, 0, f.stream>>>(
              a, f.at<T>(in[0]), f.at<T>(in[1]), f.at<T>(in[2]), f.at<T>(in[3]),
              f.at<Stat<T>>(in[5]), delta, f.at<T>(out[1]), f.at<T>(out[2]));
          return launched();
        },
        "flash_attention_grad, plain");
  });
  return known ? Status() : low.no_kernel(op);
}

}  // namespace sgactor::kernels::cuda
