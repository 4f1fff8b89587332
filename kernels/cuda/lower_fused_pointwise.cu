// Pointwise programs: sums of operands by kernels of their own, all else by an interpreter. There
// every thread takes the same path through the instructions and handles several elements at each,
// so that the choice costs little beside the memory traffic.
#include "graph/ir/pointwise_program.h"
#include "kernels/cuda/kernel_math.cuh"
#include "kernels/cuda/lowering.h"

#include <vector>

namespace sgactor::kernels::cuda {
namespace {

using graph::Op;
using graph::OpKind;
using graph::ValueId;

constexpr int kMaxInputs = 16;
constexpr int kMaxInstructions = graph::kMaxPointwiseInstructions;

/// Passed by value, hence in constant memory.
struct Program {
  int num_inputs = 0;
  int num_instructions = 0;
  const void* x[kMaxInputs] = {};
  int64_t size[kMaxInputs] = {};  ///< elements; element i of the result reads i % size
  struct Instruction {
    OpKind kind;
    int16_t a, b;
  } code[kMaxInstructions] = {};
  double param[kMaxInstructions] = {};
};

template <class C>
__device__ C apply(OpKind kind, C a, C b, C param) {
  switch (kind) {
    case OpKind::kAdd:
      return a + b;
    case OpKind::kSub:
      return a - b;
    case OpKind::kMul:
      return a * b;
    case OpKind::kDiv:
      return a / b;
    case OpKind::kMinimum:
      return b < a ? b : a;
    case OpKind::kMaximum:
      return b > a ? b : a;
    case OpKind::kPow:
      return static_cast<C>(::pow(a, b));
    case OpKind::kNeg:
      return -a;
    case OpKind::kExp:
      return exp_of(a);
    case OpKind::kLog:
      return static_cast<C>(::log(a));
    case OpKind::kSqrt:
      return static_cast<C>(::sqrt(a));
    case OpKind::kRsqrt:
      return C(1) / static_cast<C>(::sqrt(a));
    case OpKind::kSquare:
      return a * a;
    case OpKind::kCos:
      return static_cast<C>(::cos(a));
    case OpKind::kSin:
      return static_cast<C>(::sin(a));
    case OpKind::kSigmoid:
      return sigmoid_of(a);
    case OpKind::kSilu:
      return a * sigmoid_of(a);
    case OpKind::kScale:
      return a * param;
    case OpKind::kAddScalar:
      return a + param;
    default:
      return a;
  }
}

/// The choice of an instruction is made once for N elements.
template <int N, class C>
__device__ __forceinline__ void apply_to_all(OpKind kind, const C* a, const C* b, C param, C* y) {
  switch (kind) {
    case OpKind::kAdd:
#pragma unroll
      for (int j = 0; j < N; ++j) y[j] = a[j] + b[j];
      return;
    case OpKind::kMul:
#pragma unroll
      for (int j = 0; j < N; ++j) y[j] = a[j] * b[j];
      return;
    default:
      for (int j = 0; j < N; ++j) y[j] = apply(kind, a[j], b[j], param);
  }
}

/// N divides the sizes of all inputs unless it is 1.
template <int N, class T>
__global__ void program_kernel(const __grid_constant__ Program p, int64_t n, T* y) {
  using C = Compute<T>;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x * N;
  for (int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * N; i < n;
       i += step) {
    C v[kMaxInputs + kMaxInstructions][N];
    for (int k = 0; k < p.num_inputs; ++k) {
      const int64_t at = p.size[k] == n ? i : i % p.size[k];
      const Vec<T, N> in = load<N>(static_cast<const T*>(p.x[k]) + at);
#pragma unroll
      for (int j = 0; j < N; ++j) v[k][j] = widen(in.v[j]);
    }
    C last[N] = {};
    for (int k = 0; k < p.num_instructions; ++k) {
      apply_to_all<N>(p.code[k].kind, v[p.code[k].a], v[p.code[k].b], static_cast<C>(p.param[k]),
                      last);
#pragma unroll
      for (int j = 0; j < N; ++j) v[p.num_inputs + k][j] = last[j];
    }
    Vec<T, N> out;
#pragma unroll
    for (int j = 0; j < N; ++j) out.v[j] = narrow<T>(last[j]);
    store<N>(y + i, out);
  }
}

/// y = x0 + x1 + ... of `count` operands of equal size, as a program of additions from left to
/// right.
template <int kCount, int N, class T>
__global__ void sum_kernel(const __grid_constant__ Program p, int64_t n, T* y) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x * N;
  for (int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * N; i < n;
       i += step) {
    Vec<T, N> x[kCount];
#pragma unroll
    for (int k = 0; k < kCount; ++k) x[k] = load<N>(static_cast<const T*>(p.x[k]) + i);
    Vec<T, N> out;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      Compute<T> sum = widen(x[0].v[j]);
#pragma unroll
      for (int k = 1; k < kCount; ++k) sum += widen(x[k].v[j]);
      out.v[j] = narrow<T>(sum);
    }
    store<N>(y + i, out);
  }
}

/// Whether it adds its operands, all of n elements, from left to right.
bool is_sum(const Program& p, int64_t n) {
  if (p.num_inputs < 3 || p.num_inputs > 4 || p.num_instructions != p.num_inputs - 1) return false;
  for (int k = 0; k < p.num_inputs; ++k) {
    if (p.size[k] != n) return false;
  }
  for (int k = 0; k < p.num_instructions; ++k) {
    const int before = k == 0 ? 0 : p.num_inputs + k - 1;
    const Program::Instruction& c = p.code[k];
    const bool next = (c.a == before && c.b == k + 1) || (c.a == k + 1 && c.b == before);
    if (c.kind != OpKind::kAdd || !next) return false;
  }
  return true;
}

template <int N, class T>
Status run_program(const Program& p, bool sum, int64_t n, T* y, cudaStream_t stream) {
  constexpr int kThreads = 256;
  const unsigned blocks = blocks_for(n, kThreads * N);
  if (!sum) {
    program_kernel<N><<<blocks, kThreads, 0, stream>>>(p, n, y);
  } else if (p.num_inputs == 3) {
    sum_kernel<3, N><<<blocks, kThreads, 0, stream>>>(p, n, y);
  } else {
    sum_kernel<4, N><<<blocks, kThreads, 0, stream>>>(p, n, y);
  }
  return launched();
}

}  // namespace

Status lower_fused_pointwise(Lowering& low, const Op& op) {
  const std::vector<ValueId> in = op.operands;
  const ValueId y = op.results[0];
  const int64_t n = low.type(y).num_elements();
  if (in.size() > kMaxInputs) return low.no_kernel(op);
  SGA_ASSIGN(
      const graph::PointwiseProgram code,
      graph::parse_pointwise_program(op.attrs.text("program"), static_cast<int32_t>(in.size())));
  Program program;
  program.num_inputs = static_cast<int>(in.size());
  program.num_instructions = static_cast<int>(code.size());
  for (size_t k = 0; k < in.size(); ++k) program.size[k] = low.type(in[k]).num_elements();
  for (size_t k = 0; k < code.size(); ++k) {
    program.code[k] = {code[k].kind, static_cast<int16_t>(code[k].a),
                       static_cast<int16_t>(code[k].b)};
    program.param[k] = code[k].param;
  }
  const bool known = by_float(low.type(y).dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    constexpr int N = kLanes<T>;
    bool whole = n % N == 0;
    for (int k = 0; k < program.num_inputs; ++k) whole = whole && program.size[k] % N == 0;
    const bool sum = is_sum(program, n);
    low.add([=](const Frame& f) -> Status {
      if (n == 0) return {};
      Program p = program;
      for (size_t k = 0; k < in.size(); ++k) p.x[k] = f.values[in[k]];
      return whole ? run_program<N>(p, sum, n, f.at<T>(y), f.stream)
                   : run_program<1>(p, sum, n, f.at<T>(y), f.stream);
    });
  });
  return known ? Status() : low.no_kernel(op);
}

}  // namespace sgactor::kernels::cuda
