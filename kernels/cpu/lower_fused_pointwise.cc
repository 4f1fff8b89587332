#include "graph/ir/pointwise_program.h"
#include "kernels/cpu/lowering.h"
#include "kernels/cpu/pointwise_functions.h"

#include <cstring>
#include <vector>

namespace sgactor::kernels::cpu {
namespace {

using graph::Op;
using graph::ValueId;

/// Elements a pass of the interpreter: all registers of a short program stay in L1, and dispatch
/// costs little against a loop of this length.
constexpr int64_t kLane = 512;

template <class T>
struct Instruction {
  int32_t a = 0, b = 0;
  bool binary = false;
  T param = 0;
  void (*vector_binary)(float*, const float*, const float*, int64_t) = nullptr;
  void (*vector_unary)(float*, const float*, int64_t, float) = nullptr;
  BinaryFn<T> scalar_binary = nullptr;
  UnaryFn<T> scalar_unary = nullptr;

  void run(T* y, const T* x, const T* z, int64_t n) const {
    if constexpr (std::is_same_v<T, float>) {
      if (vector_binary != nullptr) return vector_binary(y, x, z, n);
      if (vector_unary != nullptr) return vector_unary(y, x, n, param);
    }
    if (binary) {
      for (int64_t i = 0; i < n; ++i) y[i] = scalar_binary(x[i], z[i]);
    } else {
      for (int64_t i = 0; i < n; ++i) y[i] = scalar_unary(x[i], param);
    }
  }
};

template <class T>
Instruction<T> translate(const KernelTable& k, const graph::PointwiseInstruction& from) {
  Instruction<T> to;
  to.a = from.a;
  to.b = from.b;
  to.binary = graph::is_program_binary(from.kind);
  to.param = static_cast<T>(from.param);
  if (to.binary) {
    to.scalar_binary = scalar_binary<T>(from.kind);
    if (const auto which = vector_binary(from.kind)) to.vector_binary = k.binary[*which];
  } else {
    to.scalar_unary = scalar_unary<T>(from.kind);
    if (const auto which = vector_unary(from.kind)) to.vector_unary = k.unary[*which];
  }
  return to;
}

/// Runs the whole program on kLane elements at a time: each operand is read and the result written
/// once, what lies between stays in cache. The same loops as the ops alone would run, so the same
/// bits.
template <class T>
struct Interpreter {
  std::vector<Instruction<T>> program;
  std::vector<ValueId> operands;
  std::vector<int64_t> periods;  ///< of operands: elements before they repeat
  ValueId y = 0;
  int64_t n = 0;

  [[nodiscard]] int64_t num_registers() const {
    return static_cast<int64_t>(operands.size() + program.size());
  }
  [[nodiscard]] int64_t thread_bytes() const {
    return num_registers() * kLane * static_cast<int64_t>(sizeof(T));
  }

  /// Operand `o` at elements [begin, begin + count): where it lies, or repeated into `aside`.
  const T* load(const Frame& f, size_t o, int64_t begin, int64_t count, T* aside) const {
    const T* x = f.ptr<T>(operands[o]);
    const int64_t period = periods[o];
    if (period == n) return x + begin;
    for (int64_t i = 0; i < count;) {
      const int64_t at = (begin + i) % period;
      const int64_t run = std::min(period - at, count - i);
      std::memcpy(aside + i, x + at, static_cast<size_t>(run) * sizeof(T));
      i += run;
    }
    return aside;
  }

  void run_lane(const Frame& f, int64_t begin, int64_t count, T* registers) const {
    const auto value = [&](int32_t v) -> const T* {
      T* own = registers + v * kLane;
      const auto o = static_cast<size_t>(v);
      return o < operands.size() ? load(f, o, begin, count, own) : own;
    };
    for (size_t i = 0; i < program.size(); ++i) {
      const bool last = i + 1 == program.size();
      T* to = last ? f.ptr<T>(y) + begin
                   : registers + static_cast<int64_t>(operands.size() + i) * kLane;
      const T* a = value(program[i].a);
      program[i].run(to, a, program[i].binary ? value(program[i].b) : a, count);
    }
  }

  Status run(const Frame& f) const {
    constexpr int64_t kLanesAtOnce = kPointwiseBlock / kLane;
    const int64_t lanes = ceil_div(n, kLane);
    f.pool->parallel_for(ceil_div(lanes, kLanesAtOnce), [&](int64_t block, int32_t thread) {
      T* registers = reinterpret_cast<T*>(f.scratch + thread * thread_bytes());
      const int64_t end = std::min(n, (block + 1) * kPointwiseBlock);
      for (int64_t begin = block * kPointwiseBlock; begin < end; begin += kLane) {
        run_lane(f, begin, std::min(kLane, end - begin), registers);
      }
    });
    return {};
  }
};

template <class T>
void lower(Lowering& low, const Op& op, const graph::PointwiseProgram& program) {
  Interpreter<T> interpreter;
  for (const auto& i : program) interpreter.program.push_back(translate<T>(low.kernels(), i));
  interpreter.operands = op.operands;
  for (ValueId v : op.operands) {
    interpreter.periods.push_back(std::max<int64_t>(1, low.type(v).num_elements()));
  }
  interpreter.y = op.results[0];
  interpreter.n = low.type(op.results[0]).num_elements();
  low.need_scratch(interpreter.thread_bytes() * low.num_threads());
  low.add([interpreter](const Frame& f) -> Status { return interpreter.run(f); });
}

}  // namespace

Status lower_fused_pointwise(Lowering& low, const Op& op) {
  const bool f64 = all_of_type(low, op, DType::kF64);
  if (!f64 && !all_of_type(low, op, DType::kF32)) return low.no_kernel(op);
  SGA_ASSIGN(const graph::PointwiseProgram program,
             graph::parse_pointwise_program(op.attrs.text("program"),
                                            static_cast<int32_t>(op.operands.size())));
  if (f64) {
    lower<double>(low, op, program);
  } else {
    lower<float>(low, op, program);
  }
  return {};
}

}  // namespace sgactor::kernels::cpu
