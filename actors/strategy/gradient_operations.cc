#include "actors/strategy/gradient_operations.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <unordered_set>

namespace sgactor::actors {
namespace {

using graph::BufferId;
using graph::Launch;
using graph::LaunchKind;
using graph::ValueId;

constexpr std::string_view kGradient = "grad/";

/// "grad/<p>" and "grad/<p>#k" are accumulators of parameter <p>; empty for other names.
std::string parameter_of_name(std::string_view name) {
  if (!name.starts_with(kGradient)) return {};
  name.remove_prefix(kGradient.size());
  return std::string(name.substr(0, name.find('#')));
}

class GradientFinder {
 public:
  GradientFinder(const graph::Plan& plan, const graph::RankProgram& program)
      : plan_(plan), program_(program) {}

  /// Empty if none is found.
  [[nodiscard]] std::string parameter(const Launch& launch, size_t pair) const {
    const BufferId from = launch.inputs[pair].buffer;
    std::string name = parameter_of_name(buffer(from).name);
    // Reduced as it is made: the sum is the accumulator.
    if (name.empty()) name = parameter_of_name(buffer(launch.outputs[pair]).name);
    if (name.empty()) name = behind(from);
    return name;
  }

 private:
  [[nodiscard]] const graph::Buffer& buffer(BufferId b) const {
    return program_.buffers[static_cast<size_t>(b)];
  }

  /// A parameter with several uses: the subgraph that makes `from` adds its accumulators up.
  [[nodiscard]] std::string behind(BufferId from) const {
    for (const Launch& l : program_.launches) {
      const auto at = std::find(l.outputs.begin(), l.outputs.end(), from);
      if (l.kind != LaunchKind::kSubgraph || at == l.outputs.end()) continue;
      const graph::Graph& body = plan_.subgraphs[static_cast<size_t>(l.subgraph)].body;
      return search(l, body, body.outputs()[static_cast<size_t>(at - l.outputs.begin())].value);
    }
    return {};
  }
  [[nodiscard]] std::string search(const Launch& launch, const graph::Graph& body,
                                   ValueId start) const {
    std::vector<ValueId> open = {start};
    std::unordered_set<ValueId> seen;
    while (!open.empty()) {
      const ValueId v = open.back();
      open.pop_back();
      if (!seen.insert(v).second) continue;
      const graph::Value& value = body.value(v);
      if (value.producer == graph::kNoOp) {
        std::string name = parameter_of_name(buffer(launch.inputs[value.result].buffer).name);
        if (!name.empty()) return name;
        continue;
      }
      const graph::Op& op = body.ops()[static_cast<size_t>(value.producer)];
      open.insert(open.end(), op.operands.begin(), op.operands.end());
    }
    return {};
  }

  const graph::Plan& plan_;
  const graph::RankProgram& program_;
};

bool sums_over_dp(const graph::Plan& plan, const Launch& launch) {
  if (launch.kind != LaunchKind::kAllReduce && launch.kind != LaunchKind::kReduceScatter) {
    return false;
  }
  const graph::Communication& c = launch.communication;
  if (c.reduction != graph::Reduction::kSum) return false;
  const graph::RankGroup& group = plan.groups[static_cast<size_t>(c.group)];
  return group.axis == graph::MeshAxis::kDp && group.coordinates.empty();
}

}  // namespace

Result<std::vector<GradientOperation>> find_gradient_operations(const graph::Plan& plan,
                                                                const graph::RankProgram& program,
                                                                int32_t lane) {
  const GradientFinder finder(plan, program);
  std::vector<GradientOperation> out;
  for (size_t l = 0; l < program.launches.size(); ++l) {
    const Launch& launch = program.launches[l];
    if (launch.lane != lane || !sums_over_dp(plan, launch)) continue;
    GradientOperation operation;
    operation.launch = static_cast<graph::LaunchId>(l);
    operation.key = launch.communication.key;
    operation.scatters = launch.kind == LaunchKind::kReduceScatter;
    operation.name = launch.name;
    for (size_t i = 0; i < launch.outputs.size(); ++i) {
      GradientPair pair;
      pair.parameter = finder.parameter(launch, i);
      // What is summed over dp and belongs to no parameter is left to the runtime.
      if (pair.parameter.empty()) break;
      pair.input = program.buffers[static_cast<size_t>(launch.inputs[i].buffer)].type;
      pair.output = program.buffers[static_cast<size_t>(launch.outputs[i])].type;
      if (pair.input.dtype != DType::kF32 || pair.output.dtype != DType::kF32) {
        return unsupported(fmt::format("{}: the gradient of {} is {}, expected f32", launch.name,
                                       pair.parameter, pair.input.to_string()));
      }
      operation.pairs.push_back(std::move(pair));
    }
    if (operation.pairs.size() == launch.outputs.size()) out.push_back(std::move(operation));
  }
  return out;
}

}  // namespace sgactor::actors
