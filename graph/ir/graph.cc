#include "graph/ir/graph.h"

#include <algorithm>
#include <array>

namespace sgactor::graph {
namespace {

constexpr std::array<std::string_view, kNumPhases> kPhaseNames = {"prepare", "forward", "backward",
                                                                  "reduce", "update"};
constexpr std::array<std::string_view, kNumRoles> kRoleNames = {
    "parameter", "moment", "accumulator", "tokens", "targets",
    "scalar",    "loss",   "logits",      "metric", "activation"};

template <class Enum, size_t N>
std::optional<Enum> parse_name(const std::array<std::string_view, N>& names,
                               std::string_view text) {
  const auto found = std::find(names.begin(), names.end(), text);
  if (found == names.end()) return std::nullopt;
  return static_cast<Enum>(found - names.begin());
}

template <class T>
const T& get_attr(const Attrs& attrs, std::string_view name) {
  const Attr* attr = attrs.find(name);
  SGA_CHECK(attr != nullptr && std::holds_alternative<T>(*attr),
            "attribute " + std::string(name) + " is missing or of another type");
  return std::get<T>(*attr);
}

bool name_less(const std::pair<std::string, Attr>& entry, std::string_view name) {
  return entry.first < name;
}

}  // namespace

std::string_view to_string(Phase phase) {
  const auto index = static_cast<size_t>(phase);
  return index < kPhaseNames.size() ? kPhaseNames[index] : "?";
}
std::optional<Phase> parse_phase(std::string_view text) {
  return parse_name<Phase>(kPhaseNames, text);
}

std::string_view to_string(Role role) {
  const auto index = static_cast<size_t>(role);
  return index < kRoleNames.size() ? kRoleNames[index] : "?";
}
std::optional<Role> parse_role(std::string_view text) { return parse_name<Role>(kRoleNames, text); }

void Attrs::set(std::string_view name, Attr value) {
  auto at = std::lower_bound(entries_.begin(), entries_.end(), name, name_less);
  if (at != entries_.end() && at->first == name) {
    at->second = std::move(value);
  } else {
    entries_.emplace(at, std::string(name), std::move(value));
  }
}

const Attr* Attrs::find(std::string_view name) const {
  const auto at = std::lower_bound(entries_.begin(), entries_.end(), name, name_less);
  return at != entries_.end() && at->first == name ? &at->second : nullptr;
}

int64_t Attrs::i64(std::string_view name) const { return get_attr<int64_t>(*this, name); }
double Attrs::f64(std::string_view name) const { return get_attr<double>(*this, name); }
bool Attrs::flag(std::string_view name) const { return get_attr<bool>(*this, name); }
const std::string& Attrs::text(std::string_view name) const {
  return get_attr<std::string>(*this, name);
}
const std::vector<int64_t>& Attrs::list(std::string_view name) const {
  return get_attr<std::vector<int64_t>>(*this, name);
}
DType Attrs::dtype(std::string_view name) const { return get_attr<DType>(*this, name); }

ValueId Graph::find_input(Role role, std::string_view input_name) const {
  for (const GraphInput& input : inputs_) {
    if (input.role == role && input.name == input_name) return input.value;
  }
  return kNoValue;
}

ValueId Graph::find_output(Role role, std::string_view output_name) const {
  for (const GraphOutput& output : outputs_) {
    if (output.role == role && output.name == output_name) return output.value;
  }
  return kNoValue;
}

ValueId Graph::add_input(TensorType type, Role role, std::string input_name) {
  const auto value = static_cast<ValueId>(values_.size());
  values_.push_back({std::move(type), kNoOp, static_cast<uint32_t>(inputs_.size())});
  inputs_.push_back({value, role, std::move(input_name)});
  return value;
}

OpId Graph::add_op(OpKind kind, std::vector<ValueId> operands, Attrs attrs,
                   const std::vector<TensorType>& types, Phase phase, int32_t segment) {
  const auto id = static_cast<OpId>(ops_.size());
  Op op{kind, std::move(operands), {}, std::move(attrs), phase, segment};
  op.results.reserve(types.size());
  for (uint32_t result = 0; result < types.size(); ++result) {
    op.results.push_back(static_cast<ValueId>(values_.size()));
    values_.push_back({types[result], id, result});
  }
  ops_.push_back(std::move(op));
  return id;
}

void Graph::add_output(ValueId value, Role role, std::string output_name) {
  outputs_.push_back({value, role, std::move(output_name)});
}

int32_t Graph::segment_index(std::string_view segment_name) {
  const auto found = std::find(segments_.begin(), segments_.end(), segment_name);
  if (found != segments_.end()) return static_cast<int32_t>(found - segments_.begin());
  segments_.emplace_back(segment_name);
  return static_cast<int32_t>(segments_.size()) - 1;
}

std::vector<int32_t> Graph::use_counts() const {
  std::vector<int32_t> counts(values_.size(), 0);
  for (const Op& op : ops_) {
    for (ValueId v : op.operands) ++counts[v];
  }
  return counts;
}

}  // namespace sgactor::graph
