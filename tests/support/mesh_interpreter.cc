#include "tests/support/mesh_interpreter.h"

#include "graph/ir/op_table.h"
#include "graph/ir/verify.h"
#include "kernels/reference/kernels.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace sgactor::testing {
namespace {

using graph::Graph;
using graph::Op;
using graph::OpKind;
using graph::ValueId;
using kernels::reference::Tensor;

/// Every value of one rank, each in storage of its own.
class RankState {
 public:
  explicit RankState(const Graph& graph) {
    for (const graph::Value& value : graph.values()) {
      storage_.emplace_back(static_cast<size_t>(value.type.num_elements()));
      tensors_.push_back({&value.type, reinterpret_cast<std::byte*>(storage_.back().data())});
    }
  }
  [[nodiscard]] const Tensor& operator[](ValueId v) const { return tensors_[v]; }

 private:
  std::vector<std::vector<double>> storage_;
  std::vector<Tensor> tensors_;
};

void write(const Tensor& to, const std::vector<double>& numbers) {
  for (int64_t i = 0; i < to.size(); ++i) {
    const double x = numbers[static_cast<size_t>(i)];
    if (is_float(to.type->dtype)) {
      to.f64()[i] = x;
    } else {
      to.i64()[i] = static_cast<int64_t>(x);
    }
  }
}

std::vector<double> read(const Tensor& from) {
  std::vector<double> numbers;
  for (int64_t i = 0; i < from.size(); ++i) {
    numbers.push_back(is_float(from.type->dtype) ? from.f64()[i]
                                                 : static_cast<double>(from.i64()[i]));
  }
  return numbers;
}

class Mesh {
 public:
  Mesh(const Graph& graph, const std::vector<InterpreterAxis>& axes) : graph_(graph), axes_(axes) {
    for (int32_t r = 0; r < num_mesh_ranks(axes); ++r) ranks_.emplace_back(graph);
  }

  Status set_inputs(const std::vector<RankNumbers>& inputs);
  Status run_op(const Op& op);
  [[nodiscard]] std::vector<RankNumbers> outputs() const;

 private:
  [[nodiscard]] size_t find_axis(const std::string& name) const;
  /// Ranks of each group along an axis, members in order of their coordinate.
  [[nodiscard]] std::vector<std::vector<int32_t>> groups(size_t axis) const;
  Status communicate(const Op& op);
  void all_reduce(const Op& op, size_t i, const std::vector<int32_t>& members);
  void all_gather(const Op& op, size_t i, const std::vector<int32_t>& members);
  void reduce_scatter(const Op& op, size_t i, const std::vector<int32_t>& members);

  const Graph& graph_;
  const std::vector<InterpreterAxis>& axes_;
  std::vector<RankState> ranks_;
};

size_t Mesh::find_axis(const std::string& name) const {
  size_t axis = 0;
  while (axis < axes_.size() && axes_[axis].name != name) ++axis;
  return axis;
}

Status Mesh::set_inputs(const std::vector<RankNumbers>& inputs) {
  if (inputs.size() != ranks_.size()) {
    return invalid_argument(fmt::format("inputs of {} ranks for {}", inputs.size(), ranks_.size()));
  }
  for (size_t r = 0; r < ranks_.size(); ++r) {
    if (inputs[r].size() != graph_.inputs().size()) {
      return invalid_argument(fmt::format("rank {} has {} inputs, expected {}", r, inputs[r].size(),
                                          graph_.inputs().size()));
    }
    for (size_t i = 0; i < inputs[r].size(); ++i) {
      const graph::GraphInput& input = graph_.inputs()[i];
      const Tensor& to = ranks_[r][input.value];
      std::vector<double> numbers = inputs[r][i];
      const size_t axis = input.role == graph::Role::kScalar && input.name.ends_with("_index")
                              ? find_axis(input.name.substr(0, input.name.size() - 6))
                              : axes_.size();
      if (numbers.empty() && axis < axes_.size()) {
        numbers = {static_cast<double>(mesh_coordinate(axes_, static_cast<int32_t>(r), axis))};
      }
      if (static_cast<int64_t>(numbers.size()) != to.size()) {
        return invalid_argument(fmt::format("rank {}: input {} is {}, not {} numbers", r,
                                            input.name, to.type->to_string(), numbers.size()));
      }
      write(to, numbers);
    }
  }
  return {};
}

std::vector<std::vector<int32_t>> Mesh::groups(size_t axis) const {
  std::vector<std::vector<int32_t>> found;
  int32_t stride = 1;
  for (size_t a = axis + 1; a < axes_.size(); ++a) stride *= axes_[a].size;
  for (int32_t r = 0; r < static_cast<int32_t>(ranks_.size()); ++r) {
    if (mesh_coordinate(axes_, r, axis) != 0) continue;
    found.emplace_back();
    for (int32_t m = 0; m < axes_[axis].size; ++m) found.back().push_back(r + (m * stride));
  }
  return found;
}

void Mesh::all_reduce(const Op& op, size_t i, const std::vector<int32_t>& members) {
  const bool max = op.attrs.text("reduce") == "max";
  const int64_t size = ranks_[0][op.operands[i]].size();
  for (int64_t e = 0; e < size; ++e) {
    double total = ranks_[static_cast<size_t>(members[0])][op.operands[i]].f64()[e];
    for (size_t m = 1; m < members.size(); ++m) {
      const double x = ranks_[static_cast<size_t>(members[m])][op.operands[i]].f64()[e];
      total = max ? std::max(total, x) : total + x;
    }
    for (const int32_t m : members) ranks_[static_cast<size_t>(m)][op.results[i]].f64()[e] = total;
  }
}

void Mesh::all_gather(const Op& op, size_t i, const std::vector<int32_t>& members) {
  const int64_t size = ranks_[0][op.results[i]].size();
  const int64_t piece = ranks_[0][op.operands[i]].size();
  for (int64_t e = 0; e < size; ++e) {
    const auto from = static_cast<size_t>(members[static_cast<size_t>(e / piece)]);
    // Cells are moved whole, so that integers are as good as floats.
    const int64_t cell = ranks_[from][op.operands[i]].i64()[e % piece];
    for (const int32_t m : members) ranks_[static_cast<size_t>(m)][op.results[i]].i64()[e] = cell;
  }
}

void Mesh::reduce_scatter(const Op& op, size_t i, const std::vector<int32_t>& members) {
  const int64_t size = ranks_[0][op.operands[i]].size();
  const int64_t piece = ranks_[0][op.results[i]].size();
  for (int64_t e = 0; e < piece * static_cast<int64_t>(members.size()); ++e) {
    double total = 0;
    for (const int32_t m : members) {
      if (e < size) total += ranks_[static_cast<size_t>(m)][op.operands[i]].f64()[e];
    }
    const auto to = static_cast<size_t>(members[static_cast<size_t>(e / piece)]);
    ranks_[to][op.results[i]].f64()[e % piece] = total;
  }
}

Status Mesh::communicate(const Op& op) {
  const size_t axis = find_axis(op.attrs.text("group"));
  if (axis == axes_.size()) {
    return invalid_argument(fmt::format("the mesh has no axis \"{}\"", op.attrs.text("group")));
  }
  if (op.kind != OpKind::kAllReduce && op.attrs.i64("members") != axes_[axis].size) {
    return invalid_argument(fmt::format("{} members along {}, which has {} ranks",
                                        op.attrs.i64("members"), axes_[axis].name,
                                        axes_[axis].size));
  }
  for (const std::vector<int32_t>& members : groups(axis)) {
    for (size_t i = 0; i < op.operands.size(); ++i) {
      switch (op.kind) {
        case OpKind::kAllReduce:
          all_reduce(op, i, members);
          break;
        case OpKind::kAllGather:
          all_gather(op, i, members);
          break;
        case OpKind::kReduceScatter:
          reduce_scatter(op, i, members);
          break;
        default:
          return unsupported(fmt::format("{} in a mesh", graph::op_info(op.kind).name));
      }
    }
  }
  return {};
}

Status Mesh::run_op(const Op& op) {
  if (graph::op_info(op.kind).communicates) return communicate(op);
  for (size_t r = 0; r < ranks_.size(); ++r) {
    std::vector<Tensor> operands;
    std::vector<Tensor> results;
    for (ValueId v : op.operands) operands.push_back(ranks_[r][v]);
    for (ValueId v : op.results) results.push_back(ranks_[r][v]);
    SGA_TRY(
        kernels::reference::run_op(op, operands, results).with_context(fmt::format("rank {}", r)));
  }
  return {};
}

std::vector<RankNumbers> Mesh::outputs() const {
  std::vector<RankNumbers> all;
  for (const RankState& rank : ranks_) {
    all.emplace_back();
    for (const graph::GraphOutput& output : graph_.outputs()) {
      all.back().push_back(read(rank[output.value]));
    }
  }
  return all;
}

}  // namespace

int32_t num_mesh_ranks(const std::vector<InterpreterAxis>& axes) {
  int32_t ranks = 1;
  for (const InterpreterAxis& axis : axes) ranks *= axis.size;
  return ranks;
}

int32_t mesh_coordinate(const std::vector<InterpreterAxis>& axes, int32_t rank, size_t axis) {
  for (size_t a = axes.size(); a-- > axis + 1;) rank /= axes[a].size;
  return rank % axes[axis].size;
}

Result<std::vector<RankNumbers>> run_mesh(const Graph& graph,
                                          const std::vector<InterpreterAxis>& axes,
                                          const std::vector<RankNumbers>& inputs) {
  SGA_TRY(graph::verify(graph));
  Mesh mesh(graph, axes);
  SGA_TRY(mesh.set_inputs(inputs));
  for (const Op& op : graph.ops()) SGA_TRY(mesh.run_op(op));
  return mesh.outputs();
}

}  // namespace sgactor::testing
