#pragma once
#include "graph/ir/builder.h"
#include "graph/ir/op_table.h"
#include "tests/conformance/draw.h"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sgactor::testing {

/// What a case may look like.
struct CaseLimits {
  DType dtype = DType::kF32;    ///< of the op's first float operand
  int64_t max_dim = 6;          ///< of any dim
  int64_t max_elements = 4096;  ///< of any operand
  bool differentiable = false;  ///< finite values only, casts that do not round
};

/// One op with operands that suit it. The graph's inputs are the op's operands (for gradient ops:
/// the operands of the forward op that stands before it, so that saved values fit); its outputs are
/// all results of the op. `inputs[i]` are numbers that the dtype of input i holds exactly.
struct OpCase {
  graph::Graph graph;
  std::vector<std::vector<double>> inputs;
  graph::OpId op = graph::kNoOp;  ///< the op under test, the last of the graph
  Status status;                  ///< of the builder; the graph is unusable if not ok
};

/// How numbers are drawn: nothing that would land on the edge of a domain, tie, or overflow.
enum class Domain : uint8_t {
  kAny,       ///< [-2, 2)
  kPositive,  ///< [0.3, 2.3)
  kNonZero,   ///< magnitude in [0.3, 2.3)
  kEven,      ///< even multiples of 1/64 in [-2, 2): never ties with kOdd
  kOdd,       ///< odd multiples of 1/64 in [-2, 2)
  kDistinct,  ///< no two alike
};

class CaseMaker {
 public:
  CaseMaker(const CaseLimits& limits, Draw& draw)
      : limits_(limits), draw_(draw), builder_(case_.graph) {}

  [[nodiscard]] const CaseLimits& limits() const { return limits_; }
  [[nodiscard]] graph::Builder& builder() { return builder_; }
  int64_t integer(int64_t low, int64_t high) { return draw_.integer(low, high); }
  bool flag() { return draw_.integer(0, 1) == 1; }
  /// One of `from`.
  template <class T>
  T pick(std::initializer_list<T> from) {
    return *(from.begin() + draw_.integer(0, static_cast<int64_t>(from.size()) - 1));
  }
  /// A real number in [low, high).
  double real(double low, double high);
  int64_t dim() { return draw_.integer(1, limits_.max_dim); }
  std::vector<int64_t> dims(int64_t min_rank, int64_t max_rank);
  /// f64 for a case in f64, else f32.
  [[nodiscard]] DType stat() const {
    return limits_.dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  }

  /// New inputs.
  graph::ValueId values(std::vector<int64_t> shape, Domain domain = Domain::kAny);
  graph::ValueId values(DType dtype, std::vector<int64_t> shape, Domain domain);
  graph::ValueId integers(DType dtype, std::vector<int64_t> shape, int64_t low, int64_t high);
  graph::ValueId scalar(DType dtype, double value);

  /// Appends the op under test; call it last and once.
  void op(graph::OpKind kind, std::vector<graph::ValueId> operands, graph::Attrs attrs = {});
  OpCase take();

 private:
  graph::ValueId add_input(TensorType type, std::vector<double> numbers);

  CaseLimits limits_;
  Draw& draw_;
  OpCase case_;
  graph::Builder builder_;
};

struct CaseRow {
  graph::OpKind kind;
  void (*make)(CaseMaker& maker, graph::OpKind kind);
};
/// A row an op, in the order of OpKind.
std::span<const CaseRow> case_table();

OpCase make_case(graph::OpKind kind, const CaseLimits& limits, Draw& draw);

/// "w3"
std::string numbered(std::string_view prefix, size_t i);

/// Attributes from a list: attrs({{"axis", int64_t{1}}, …}).
graph::Attrs attrs(std::initializer_list<std::pair<std::string_view, graph::Attr>> entries);

}  // namespace sgactor::testing
