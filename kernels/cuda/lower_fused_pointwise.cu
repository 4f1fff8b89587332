// Pointwise programs, run by an interpreter: every thread takes the same path through the
// instructions, so that the choice of each costs little beside the memory traffic.
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

template <class T>
__global__ void program_kernel(const __grid_constant__ Program p, int64_t n, T* y) {
  using C = Compute<T>;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step) {
    C v[kMaxInputs + kMaxInstructions];
    for (int k = 0; k < p.num_inputs; ++k) {
      const int64_t at = p.size[k] == n ? i : i % p.size[k];
      v[k] = widen(static_cast<const T*>(p.x[k])[at]);
    }
    C last = 0;
    for (int k = 0; k < p.num_instructions; ++k) {
      last = apply(p.code[k].kind, v[p.code[k].a], v[p.code[k].b], static_cast<C>(p.param[k]));
      v[p.num_inputs + k] = last;
    }
    y[i] = narrow<T>(last);
  }
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
    low.add([=](const Frame& f) -> Status {
      if (n == 0) return {};
      Program p = program;
      for (size_t k = 0; k < in.size(); ++k) p.x[k] = f.values[in[k]];
      program_kernel<<<blocks_for(n, 256), 256, 0, f.stream>>>(p, n, f.at<T>(y));
      return launched();
    });
  });
  return known ? Status() : low.no_kernel(op);
}

}  // namespace sgactor::kernels::cuda
