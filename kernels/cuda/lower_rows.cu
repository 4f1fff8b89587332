// Row-wise ops: softmax and its gradient, rotary embedding. Letters: N rows (all leading dims), D
// the last dim; B batch, T time, H heads, K head dim.
#include "kernels/cuda/kernel_math.cuh"
#include "kernels/cuda/lowering.h"
#include "kernels/cuda/rounded_maker.h"
#include "kernels/cuda/row_loss.cuh"

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

namespace sgactor::kernels::cuda {
namespace {

using graph::Op;
using graph::OpKind;
using graph::ValueId;

int64_t row_length(const TensorType& t) { return t.shape.dim(-1); }
int64_t num_rows(const TensorType& t) {
  int64_t n = 1;
  for (int d = 0; d + 1 < t.shape.rank(); ++d) n *= t.shape.dim(d);
  return n;
}

template <int N, class T, class F>
__device__ __forceinline__ void for_row(const T* /*type*/, int64_t D, F&& f) {
  for (int64_t d = static_cast<int64_t>(threadIdx.x) * N; d < D; d += blockDim.x * N) f(d);
}

template <int N, class T>
__global__ void softmax_kernel(int64_t D, const T* x_ND, T* y_ND) {
  using C = Compute<T>;
  const T* x = x_ND + static_cast<int64_t>(blockIdx.x) * D;
  T* y = y_ND + static_cast<int64_t>(blockIdx.x) * D;
  C largest = -INFINITY;
  for_row<N>(x, D, [&](int64_t d) {
    const Vec<T, N> v = load<N>(x + d);
    for (int j = 0; j < N; ++j) largest = MaxOp::join(largest, widen(v.v[j]));
  });
  largest = block_reduce<MaxOp>(largest);
  C sum = 0;
  for_row<N>(x, D, [&](int64_t d) {
    const Vec<T, N> v = load<N>(x + d);
    for (int j = 0; j < N; ++j) sum += exp_of(widen(v.v[j]) - largest);
  });
  sum = block_reduce<SumOp>(sum);
  for_row<N>(x, D, [&](int64_t d) {
    const Vec<T, N> v = load<N>(x + d);
    Vec<T, N> out;
    for (int j = 0; j < N; ++j) out.v[j] = narrow<T>(exp_of(widen(v.v[j]) - largest) / sum);
    store<N>(y + d, out);
  });
}

template <int N, class T>
__global__ void softmax_grad_kernel(int64_t D, const T* y_ND, const T* dy_ND, T* dx_ND) {
  using C = Compute<T>;
  const int64_t at = static_cast<int64_t>(blockIdx.x) * D;
  C dot = 0;
  for_row<N>(y_ND, D, [&](int64_t d) {
    const Vec<T, N> y = load<N>(y_ND + at + d);
    const Vec<T, N> dy = load<N>(dy_ND + at + d);
    for (int j = 0; j < N; ++j) dot += widen(y.v[j]) * widen(dy.v[j]);
  });
  dot = block_reduce<SumOp>(dot);
  for_row<N>(y_ND, D, [&](int64_t d) {
    const Vec<T, N> y = load<N>(y_ND + at + d);
    const Vec<T, N> dy = load<N>(dy_ND + at + d);
    Vec<T, N> out;
    for (int j = 0; j < N; ++j) out.v[j] = narrow<T>(widen(y.v[j]) * (widen(dy.v[j]) - dot));
    store<N>(dx_ND + at + d, out);
  });
}

/// I: an index of pairs; divisions of 64 bits would take as long as the memory does.
template <int N, class I, class T>
__global__ void rotate_kernel(int64_t pairs, I T_time, I H, I half, Compute<T> sign, const T* x,
                              const T* cos_TK, const T* sin_TK, T* y) {
  using C = Compute<T>;
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * N;
  if (i >= pairs) return;
  const I row = static_cast<I>(i) / half;
  const int64_t k = i - int64_t{row} * half;
  const int64_t t = row / H % T_time;
  const Vec<T, N> c = load<N>(cos_TK + t * half + k);
  const Vec<T, N> s = load<N>(sin_TK + t * half + k);
  const int64_t at = int64_t{row} * 2 * half + k;
  const Vec<T, N> a = load<N>(x + at);
  const Vec<T, N> b = load<N>(x + at + half);
  Vec<T, N> y1;
  Vec<T, N> y2;
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const C sine = sign * widen(s.v[j]);
    y1.v[j] = narrow<T>(widen(a.v[j]) * widen(c.v[j]) - widen(b.v[j]) * sine);
    y2.v[j] = narrow<T>(widen(b.v[j]) * widen(c.v[j]) + widen(a.v[j]) * sine);
  }
  store<N>(y + at, y1);
  store<N>(y + at + half, y2);
}

/// Frequency of pair `i`, scaled as Hugging Face's modeling_rope_utils.py scales it
/// (_compute_linear_scaling_rope_parameters, _compute_llama3_parameters).
double inverse_frequency(const graph::Attrs& a, int64_t i) {
  constexpr double kTwoPi = 6.283185307179586476925;
  const double exponent = 2.0 * static_cast<double>(i) / static_cast<double>(a.i64("head_dim"));
  const double freq = std::pow(a.f64("theta"), -exponent);
  const std::string& scaling = a.text("scaling");
  if (scaling == "none") return freq;
  const double factor = a.f64("factor");
  if (scaling == "linear") return freq / factor;
  const double low = a.f64("low_freq_factor");
  const double high = a.f64("high_freq_factor");
  const auto context = static_cast<double>(a.i64("original_max_position"));
  const double wavelength = kTwoPi / freq;
  if (wavelength < context / high) return freq;
  if (wavelength > context / low) return freq / factor;
  const double smooth = ((context / wavelength) - low) / (high - low);
  return ((1.0 - smooth) * freq / factor) + (smooth * freq);
}

void put(std::byte* to, DType dtype, double x) {
  if (dtype == DType::kF64) {
    std::memcpy(to, &x, sizeof x);
  } else if (dtype == DType::kF32) {
    const auto y = static_cast<float>(x);
    std::memcpy(to, &y, sizeof y);
  } else {
    const bf16 y = __double2bfloat16(x);
    std::memcpy(to, &y, sizeof y);
  }
}

}  // namespace

Status lower_softmax(Lowering& low, const Op& op) {
  const ValueId x = op.operands[0];
  const ValueId y = op.results[0];
  const bool is_grad = op.kind == OpKind::kSoftmaxGrad;
  const ValueId dy = is_grad ? op.operands[1] : x;
  const int64_t D = row_length(low.type(x));
  const int64_t rows = num_rows(low.type(x));
  if (rows > std::numeric_limits<int32_t>::max()) return low.no_kernel(op);  // a block a row
  const bool known = by_float(low.type(x).dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    by_lanes<T>(D, [&](auto lanes) {
      constexpr int N = decltype(lanes)::value;
      low.add([=](const Frame& f) -> Status {
        if (rows * D == 0) return {};
        const auto blocks = static_cast<unsigned>(rows);
        const int threads = threads_for(D, N);
        if (is_grad) {
          softmax_grad_kernel<N>
              <<<blocks, threads, 0, f.stream>>>(D, f.at<T>(x), f.at<T>(dy), f.at<T>(y));
        } else {
          softmax_kernel<N><<<blocks, threads, 0, f.stream>>>(D, f.at<T>(x), f.at<T>(y));
        }
        return launched();
      });
    });
  });
  return known ? Status() : low.no_kernel(op);
}

Status lower_rope_table(Lowering& low, const Op& op) {
  const graph::Attrs& a = op.attrs;
  const DType dtype = low.type(op.results[0]).dtype;
  if (dtype != DType::kF64 && dtype != DType::kF32 && dtype != DType::kBF16)
    return low.no_kernel(op);
  const int64_t half = a.i64("head_dim") / 2;
  const int64_t size = dtype_bytes(dtype);
  std::vector<std::byte> cosines(static_cast<size_t>(low.type(op.results[0]).bytes()));
  std::vector<std::byte> sines(cosines.size());
  std::vector<double> frequency;
  for (int64_t i = 0; i < half; ++i) frequency.push_back(inverse_frequency(a, i));
  for (int64_t t = 0; t < a.i64("seq_len"); ++t) {
    for (int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(t) * frequency[static_cast<size_t>(i)];
      put(cosines.data() + (t * half + i) * size, dtype, std::cos(angle));
      put(sines.data() + (t * half + i) * size, dtype, std::sin(angle));
    }
  }
  SGA_TRY(low.make_constant(op.results[0], cosines));
  return low.make_constant(op.results[1], sines);
}

Status lower_rotate(Lowering& low, const Op& op) {
  if (is_rounded_when_made(low, op)) return {};
  const ValueId x = op.operands[0];
  const ValueId cosines = op.operands[1];
  const ValueId sines = op.operands[2];
  const ValueId y = op.results[0];
  const Shape& shape = low.type(x).shape;
  const int64_t half = shape.dim(3) / 2;
  const int64_t T_time = shape.dim(1);
  const int64_t H = shape.dim(2);
  const int64_t pairs = shape.num_elements() / 2;
  const double sign = op.attrs.flag("inverse") ? -1.0 : 1.0;
  const bool known = by_float(low.type(x).dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    by_lanes<T>(half, [&](auto lanes) {
      constexpr int N = decltype(lanes)::value;
      low.add([=](const Frame& f) -> Status {
        if (pairs == 0) return {};
        const auto run = [&](auto index) {
          using I = decltype(index);
          rotate_kernel<N, I><<<blocks_for(pairs, 256 * N), 256, 0, f.stream>>>(
              pairs, static_cast<I>(T_time), static_cast<I>(H), static_cast<I>(half),
              static_cast<Compute<T>>(sign), f.at<T>(x), f.at<T>(cosines), f.at<T>(sines),
              f.at<T>(y));
          return launched();
        };
        return pairs < (int64_t{1} << 31) ? run(int32_t{}) : run(int64_t{});
      });
    });
  });
  return known ? Status() : low.no_kernel(op);
}

}  // namespace sgactor::kernels::cuda
