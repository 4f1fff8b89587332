// Pointwise ops of one or two operands, gates and their gradients, accumulators, AdamW.
#include "kernels/cuda/body_places.h"
#include "kernels/cuda/gated.cuh"
#include "kernels/cuda/kernel_math.cuh"
#include "kernels/cuda/lowering.h"
#include "kernels/cuda/rounded_maker.h"

#include <algorithm>
#include <type_traits>

namespace sgactor::kernels::cuda {
namespace {

using graph::Op;
using graph::OpKind;
using graph::ValueId;

constexpr int kThreads = 256;

/// y[i] = f(x[i]...). Results may lie on operands: a thread reads all it needs before it writes.
template <int N, class F, class Y, class... X>
__global__ void map_kernel(F f, int64_t n, Y* y, const X*... x) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x * N;
  for (int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * N; i < n;
       i += step) {
    if (i + N <= n) {
      [&](const Vec<X, N>&... in) {
        Vec<Y, N> out;
#pragma unroll
        for (int j = 0; j < N; ++j) out.v[j] = f(in.v[j]...);
        store<N>(y + i, out);
      }(load<N>(x + i)...);
    } else {
      for (int64_t j = i; j < n; ++j) y[j] = f(x[j]...);
    }
  }
}

template <class F, class Y, class... X>
Status map(const Frame& frame, F f, int64_t n, Y* y, const X*... x) {
  if (n == 0) return {};
  constexpr int N = std::max({kLanes<Y>, kLanes<X>...});
  map_kernel<N><<<blocks_for(n, kThreads * N), kThreads, 0, frame.stream>>>(f, n, y, x...);
  return launched();
}

/// y[i] = f(a[i], b[i % nb]). N divides nb unless it is 1.
template <int N, class F, class T>
__global__ void suffix_kernel(F f, int64_t n, int64_t nb, T* y, const T* a, const T* b) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x * N;
  for (int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * N; i < n;
       i += step) {
    const Vec<T, N> left = load<N>(a + i);
    const Vec<T, N> right = load<N>(b + i % nb);
    Vec<T, N> out;
#pragma unroll
    for (int j = 0; j < N; ++j) out.v[j] = f(left.v[j], right.v[j]);
    store<N>(y + i, out);
  }
}

/// y[i] = f(a[i], *b)
template <int N, class F, class T>
__global__ void scalar_kernel(F f, int64_t n, T* y, const T* a, const T* b) {
  const T right = *b;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x * N;
  for (int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * N; i < n;
       i += step) {
    if (i + N <= n) {
      const Vec<T, N> left = load<N>(a + i);
      Vec<T, N> out;
#pragma unroll
      for (int j = 0; j < N; ++j) out.v[j] = f(left.v[j], right);
      store<N>(y + i, out);
    } else {
      for (int64_t j = i; j < n; ++j) y[j] = f(a[j], right);
    }
  }
}

template <OpKind kKind, class T>
struct Binary {
  __device__ T operator()(T a, T b) const {
    using C = Compute<T>;
    const C x = widen(a);
    const C y = widen(b);
    if constexpr (kKind == OpKind::kAdd) return narrow<T>(x + y);
    if constexpr (kKind == OpKind::kSub) return narrow<T>(x - y);
    if constexpr (kKind == OpKind::kMul) return narrow<T>(x * y);
    if constexpr (kKind == OpKind::kDiv) return narrow<T>(x / y);
    if constexpr (kKind == OpKind::kMinimum) return y < x ? b : a;
    if constexpr (kKind == OpKind::kMaximum) return y > x ? b : a;
    if constexpr (kKind == OpKind::kPow) return narrow<T>(static_cast<C>(::pow(x, y)));
    if constexpr (kKind == OpKind::kSiluGrad) {
      const C s = sigmoid_for<T>(x);
      return narrow<T>(y * s * (C(1) + x * (C(1) - s)));
    }
    if constexpr (kKind == OpKind::kSwiglu) return swiglu(a, b);
  }
};

template <OpKind kKind, class T>
Status run_binary(const Frame& frame, int64_t n, int64_t nb, T* y, const T* a, const T* b) {
  const Binary<kKind, T> f;
  if (nb == n) return map(frame, f, n, y, a, b);
  if (n == 0) return {};
  constexpr int N = kLanes<T>;
  if (nb == 1) {
    scalar_kernel<N><<<blocks_for(n, kThreads * N), kThreads, 0, frame.stream>>>(f, n, y, a, b);
  } else if (nb % N == 0) {
    suffix_kernel<N><<<blocks_for(n, kThreads * N), kThreads, 0, frame.stream>>>(f, n, nb, y, a, b);
  } else {
    suffix_kernel<1><<<blocks_for(n, kThreads), kThreads, 0, frame.stream>>>(f, n, nb, y, a, b);
  }
  return launched();
}

template <OpKind kKind>
Status add_binary(Lowering& low, const Op& op) {
  const ValueId a = op.operands[0];
  const ValueId b = op.operands[1];
  const ValueId y = op.results[0];
  const int64_t n = low.type(a).num_elements();
  const int64_t nb = low.type(b).num_elements();
  const bool known = by_float(low.type(a).dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    low.add([=](const Frame& f) {
      return run_binary<kKind>(f, n, nb, f.at<T>(y), f.at<T>(a), f.at<T>(b));
    });
  });
  return known ? Status() : low.no_kernel(op);
}

template <OpKind kKind, class T>
struct Unary {
  Compute<T> attr;
  __device__ T operator()(T a) const {
    using C = Compute<T>;
    const C x = widen(a);
    if constexpr (kKind == OpKind::kNeg) return narrow<T>(-x);
    if constexpr (kKind == OpKind::kExp) return narrow<T>(exp_of(x));
    if constexpr (kKind == OpKind::kLog) return narrow<T>(static_cast<C>(::log(x)));
    if constexpr (kKind == OpKind::kSqrt) return narrow<T>(static_cast<C>(::sqrt(x)));
    if constexpr (kKind == OpKind::kRsqrt) return narrow<T>(C(1) / static_cast<C>(::sqrt(x)));
    if constexpr (kKind == OpKind::kSquare) return narrow<T>(x * x);
    if constexpr (kKind == OpKind::kCos) return narrow<T>(static_cast<C>(::cos(x)));
    if constexpr (kKind == OpKind::kSin) return narrow<T>(static_cast<C>(::sin(x)));
    if constexpr (kKind == OpKind::kSigmoid) return narrow<T>(sigmoid_of(x));
    if constexpr (kKind == OpKind::kSilu) return narrow<T>(x * sigmoid_of(x));
    if constexpr (kKind == OpKind::kScale) return narrow<T>(x * attr);
    if constexpr (kKind == OpKind::kAddScalar) return narrow<T>(x + attr);
  }
};

template <OpKind kKind>
Status add_unary(Lowering& low, const Op& op) {
  const ValueId x = op.operands[0];
  const ValueId y = op.results[0];
  const int64_t n = low.type(x).num_elements();
  double attr = 0;
  if constexpr (kKind == OpKind::kScale) attr = op.attrs.f64("factor");
  if constexpr (kKind == OpKind::kAddScalar) attr = op.attrs.f64("value");
  const bool known = by_float(low.type(x).dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Unary<kKind, T> fn{static_cast<Compute<T>>(attr)};
    low.add([=](const Frame& f) { return map(f, fn, n, f.at<T>(y), f.at<T>(x)); });
  });
  return known ? Status() : low.no_kernel(op);
}

template <class Acc, class T>
struct Accumulate {
  __device__ Acc operator()(Acc acc, T x) const { return acc + static_cast<Acc>(widen(x)); }
  __device__ Acc operator()(T x) const { return Acc(0) + static_cast<Acc>(widen(x)); }
};

/// With kProduct also y = swiglu(gate, up).
template <int N, bool kProduct, class T>
__global__ void swiglu_grad_kernel(int64_t n, const T* gate, const T* up, const T* dy, T* dgate,
                                   T* dup, T* y) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x * N;
  for (int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * N; i < n;
       i += step) {
    if (i + N <= n) {
      const Vec<T, N> g = load<N>(gate + i);
      const Vec<T, N> u = load<N>(up + i);
      const Vec<T, N> d = load<N>(dy + i);
      Vec<T, N> a;
      Vec<T, N> b;
      Vec<T, N> c;
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const GatedGrad<T> grad = swiglu_grad(g.v[j], u.v[j], d.v[j]);
        a.v[j] = grad.gate;
        b.v[j] = grad.up;
        if constexpr (kProduct) c.v[j] = swiglu(g.v[j], u.v[j]);
      }
      store<N>(dgate + i, a);
      store<N>(dup + i, b);
      if constexpr (kProduct) store<N>(y + i, c);
    } else {
      for (int64_t j = i; j < n; ++j) {
        const T g = gate[j];
        const T u = up[j];
        const GatedGrad<T> grad = swiglu_grad(g, u, dy[j]);
        dgate[j] = grad.gate;
        dup[j] = grad.up;
        if constexpr (kProduct) y[j] = swiglu(g, u);
      }
    }
  }
}

/// `y`: where swiglu of the same gates goes; kNoValue: nowhere.
Status add_swiglu_grad(Lowering& low, const Op& op, ValueId y) {
  const std::vector<ValueId> in = op.operands;
  const std::vector<ValueId> out = op.results;
  const int64_t n = low.type(in[0]).num_elements();
  const bool known = by_float(low.type(in[0]).dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto run = [=](const Frame& f) -> Status {
      if (n == 0) return {};
      constexpr int N = kLanes<T>;
      const auto launch = [&](auto kernel, T* product) {
        kernel<<<blocks_for(n, kThreads * N), kThreads, 0, f.stream>>>(
            n, f.at<T>(in[0]), f.at<T>(in[1]), f.at<T>(in[2]), f.at<T>(out[0]), f.at<T>(out[1]),
            product);
        return launched();
      };
      return y == graph::kNoValue
                 ? launch(swiglu_grad_kernel<N, false, T>, static_cast<T*>(nullptr))
                 : launch(swiglu_grad_kernel<N, true, T>, f.at<T>(y));
    };
    y == graph::kNoValue ? low.add(run) : low.add(run, "swiglu_grad, swiglu");
  });
  return known ? Status() : low.no_kernel(op);
}

/// Does `result` of a gradient lie exactly on its operand `v`, which nothing between the product of
/// the gates and the gradient reads? The kernel reads an element before it writes it.
bool written_over(const Lowering& low, const Op& gradient, graph::OpId product, ValueId v,
                  ValueId result) {
  const auto& in = gradient.operands;
  if (std::find(in.begin(), in.end(), v) == in.end()) return false;
  if (low.place(v).offset != low.place(result).offset) return false;
  for (const Op* op = &low.body().op(product) + 1; op != &gradient; ++op) {
    if (std::find(op->operands.begin(), op->operands.end(), v) != op->operands.end()) return false;
  }
  return true;
}

/// The swiglu in front of its gradient (computed again, since the forward pass kept it not) for
/// which one kernel makes both, where the swiglu stands: what the gradient reads is there by then,
/// and where it writes nothing is needed. Plans hold such places; see find_view_groups. nullptr:
/// there is none.
const Op* product_beside(const Lowering& low, const Op& gradient) {
  const graph::Graph& body = low.body();
  const auto at = static_cast<graph::OpId>(&gradient - &body.op(0));
  graph::OpId product = at;
  while (product-- > 0) {
    const Op& op = body.op(product);
    if (op.kind == OpKind::kSwiglu && op.operands[0] == gradient.operands[0] &&
        op.operands[1] == gradient.operands[1]) {
      break;
    }
  }
  if (product == graph::kNoOp || is_rounded_when_made(low, body.op(product))) return nullptr;
  const graph::OpId maker = body.value(gradient.operands[2]).producer;
  if (maker != graph::kNoOp && maker >= product) return nullptr;
  for (ValueId v = 0; v < body.values().size(); ++v) {
    const graph::OpId producer = body.value(v).producer;
    if (producer != graph::kNoOp && producer >= at) continue;
    const bool later = producer != graph::kNoOp && producer >= product;
    if (!later && is_gone(body, v, product)) continue;
    for (ValueId result : gradient.results) {
      if (overlap(low, v, result) && !written_over(low, gradient, product, v, result))
        return nullptr;
    }
  }
  return &body.op(product);
}

/// The gradient that `product` is made with: the first that may be. nullptr: there is none.
const Op* gradient_beside(const Lowering& low, const Op& product) {
  for (const Op& gradient : low.body().ops()) {
    if (gradient.kind == OpKind::kSwigluGrad && !is_rounded_when_made(low, gradient) &&
        product_beside(low, gradient) == &product) {
      return &gradient;
    }
  }
  return nullptr;
}

/// swiglu and its gradient, each alone or both by one kernel.
Status lower_swiglu(Lowering& low, const Op& op) {
  if (op.kind == OpKind::kSwiglu) {
    const Op* gradient = gradient_beside(low, op);
    if (gradient == nullptr) return add_binary<OpKind::kSwiglu>(low, op);
    return add_swiglu_grad(low, *gradient, op.results[0]);
  }
  const Op* product = product_beside(low, op);
  const bool is_made = product != nullptr && gradient_beside(low, *product) == &op;
  return is_made ? Status() : add_swiglu_grad(low, op, graph::kNoValue);
}

struct Adam {
  double beta1, beta2, eps, decay;
};

/// Loshchilov and Hutter, "Decoupled weight decay regularization", ICLR 2019, algorithm 2, with the
/// bias corrections placed as PyTorch places them.
template <int N, class T, class S>
__global__ void adamw_kernel(Adam a, int64_t n, const T* p, const T* m, const T* v, const T* g,
                             const S* lr, const S* clip, const S* bias1, const S* bias2, T* p_out,
                             T* m_out, T* v_out) {
  const T rate = static_cast<T>(*lr);
  const T scale = static_cast<T>(*clip);
  const T keep = T(1) - rate * static_cast<T>(a.decay);
  const T size = rate / static_cast<T>(*bias1);
  const T root = sqrt(static_cast<T>(*bias2));
  const T b1 = static_cast<T>(a.beta1);
  const T c1 = static_cast<T>(1.0 - a.beta1);
  const T b2 = static_cast<T>(a.beta2);
  const T c2 = static_cast<T>(1.0 - a.beta2);
  const T eps = static_cast<T>(a.eps);
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x * N;
  const auto update = [&](T& pv, T& mv, T& vv, T gv) {
    const T gc = gv * scale;
    mv = b1 * mv + c1 * gc;
    vv = b2 * vv + c2 * gc * gc;
    pv = pv * keep - size * mv / (sqrt(vv) / root + eps);
  };
  for (int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * N; i < n;
       i += step) {
    if (i + N <= n) {
      Vec<T, N> pv = load<N>(p + i);
      Vec<T, N> mv = load<N>(m + i);
      Vec<T, N> vv = load<N>(v + i);
      const Vec<T, N> gv = load<N>(g + i);
#pragma unroll
      for (int j = 0; j < N; ++j) update(pv.v[j], mv.v[j], vv.v[j], gv.v[j]);
      store<N>(p_out + i, pv);
      store<N>(m_out + i, mv);
      store<N>(v_out + i, vv);
    } else {
      for (int64_t j = i; j < n; ++j) {
        T pv = p[j];
        T mv = m[j];
        T vv = v[j];
        update(pv, mv, vv, g[j]);
        p_out[j] = pv;
        m_out[j] = mv;
        v_out[j] = vv;
      }
    }
  }
}

template <class T, class S>
void add_adamw(Lowering& low, const Op& op) {
  const std::vector<ValueId> in = op.operands;
  const std::vector<ValueId> out = op.results;
  const int64_t n = low.type(in[0]).num_elements();
  const Adam a{op.attrs.f64("beta1"), op.attrs.f64("beta2"), op.attrs.f64("eps"),
               op.attrs.f64("weight_decay")};
  low.add([=](const Frame& f) -> Status {
    if (n == 0) return {};
    constexpr int N = kLanes<T>;
    adamw_kernel<N><<<blocks_for(n, kThreads * N), kThreads, 0, f.stream>>>(
        a, n, f.at<T>(in[0]), f.at<T>(in[1]), f.at<T>(in[2]), f.at<T>(in[3]), f.at<S>(in[4]),
        f.at<S>(in[5]), f.at<S>(in[6]), f.at<S>(in[7]), f.at<T>(out[0]), f.at<T>(out[1]),
        f.at<T>(out[2]));
    return launched();
  });
}

}  // namespace

Status lower_binary(Lowering& low, const Op& op) {
  switch (op.kind) {
    case OpKind::kAdd:
      return add_binary<OpKind::kAdd>(low, op);
    case OpKind::kSub:
      return add_binary<OpKind::kSub>(low, op);
    case OpKind::kMul:
      return add_binary<OpKind::kMul>(low, op);
    case OpKind::kDiv:
      return add_binary<OpKind::kDiv>(low, op);
    case OpKind::kMinimum:
      return add_binary<OpKind::kMinimum>(low, op);
    case OpKind::kMaximum:
      return add_binary<OpKind::kMaximum>(low, op);
    case OpKind::kPow:
      return add_binary<OpKind::kPow>(low, op);
    default:
      return low.no_kernel(op);
  }
}

Status lower_unary(Lowering& low, const Op& op) {
  switch (op.kind) {
    case OpKind::kNeg:
      return add_unary<OpKind::kNeg>(low, op);
    case OpKind::kExp:
      return add_unary<OpKind::kExp>(low, op);
    case OpKind::kLog:
      return add_unary<OpKind::kLog>(low, op);
    case OpKind::kSqrt:
      return add_unary<OpKind::kSqrt>(low, op);
    case OpKind::kRsqrt:
      return add_unary<OpKind::kRsqrt>(low, op);
    case OpKind::kSquare:
      return add_unary<OpKind::kSquare>(low, op);
    case OpKind::kCos:
      return add_unary<OpKind::kCos>(low, op);
    case OpKind::kSin:
      return add_unary<OpKind::kSin>(low, op);
    case OpKind::kSigmoid:
      return add_unary<OpKind::kSigmoid>(low, op);
    case OpKind::kSilu:
      return add_unary<OpKind::kSilu>(low, op);
    case OpKind::kScale:
      return add_unary<OpKind::kScale>(low, op);
    case OpKind::kAddScalar:
      return add_unary<OpKind::kAddScalar>(low, op);
    default:
      return low.no_kernel(op);
  }
}

Status lower_gated(Lowering& low, const Op& op) {
  if (is_rounded_when_made(low, op)) return {};
  switch (op.kind) {
    case OpKind::kSiluGrad:
      return add_binary<OpKind::kSiluGrad>(low, op);
    case OpKind::kSwiglu:
    case OpKind::kSwigluGrad:
      return lower_swiglu(low, op);
    default:
      return low.no_kernel(op);
  }
}

Status lower_accumulate(Lowering& low, const Op& op) {
  const ValueId acc = op.operands[0];
  const ValueId x = op.operands[1];
  if (const graph::OpId maker = low.body().value(x).producer; maker != graph::kNoOp) {
    const Op& scatter = low.body().op(maker);
    const bool scatters =
        scatter.kind == OpKind::kScatterAdd || scatter.kind == OpKind::kScatterAddShard;
    if (scatters && accumulation_of_rows(low, scatter) != graph::kNoOp) return {};
  }
  const ValueId y = op.results[0];
  const int64_t n = low.type(acc).num_elements();
  const bool from_zero = starts_from_zero(low.body(), op);
  bool known = false;
  by_float(low.type(x).dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto step = [&](auto acc_tag) {
      using Acc = typename decltype(acc_tag)::type;
      known = true;
      low.add([=](const Frame& f) {
        return from_zero
                   ? map(f, Accumulate<Acc, T>{}, n, f.at<Acc>(y), f.at<T>(x))
                   : map(f, Accumulate<Acc, T>{}, n, f.at<Acc>(y), f.at<Acc>(acc), f.at<T>(x));
      });
    };
    if (low.type(acc).dtype == DType::kF32) step(Tag<float>{});
    if (low.type(acc).dtype == DType::kF64) step(Tag<double>{});
  });
  return known ? Status() : low.no_kernel(op);
}

Status lower_adamw(Lowering& low, const Op& op) {
  const DType scalars = low.type(op.operands[4]).dtype;
  for (size_t i = 5; i < 8; ++i) {
    if (low.type(op.operands[i]).dtype != scalars) return low.no_kernel(op);
  }
  const DType dtype = low.type(op.operands[0]).dtype;
  if (dtype == DType::kF32 && scalars == DType::kF32) {
    add_adamw<float, float>(low, op);
  } else if (dtype == DType::kF64 && scalars == DType::kF64) {
    add_adamw<double, double>(low, op);
  } else if (dtype == DType::kF64 && scalars == DType::kF32) {
    add_adamw<double, float>(low, op);
  } else {
    return low.no_kernel(op);
  }
  return {};
}

}  // namespace sgactor::kernels::cuda
