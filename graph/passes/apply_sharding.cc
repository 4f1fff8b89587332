#include "graph/passes/apply_sharding.h"

#include "graph/ir/op_table.h"
#include "graph/passes/insert_collectives.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>

namespace sgactor::graph {
namespace {

/// Gathering a parameter that is cut would undo the saving: only where nothing else works.
constexpr double kGatherParameter_s = 1e6;
/// What is reduced later may still be added to other partial sums first: worth a tie.
constexpr double kLater = 0.9999;
/// Using the partial form of what was reduced already pays for the reduction twice.
constexpr double kTwice = 0.01;

bool matches(std::string_view pattern, std::string_view name) {
  if (pattern.empty()) return name.empty();
  if (pattern[0] != '*') {
    return !name.empty() && pattern[0] == name[0] && matches(pattern.substr(1), name.substr(1));
  }
  for (size_t skipped = 0; skipped <= name.size(); ++skipped) {
    if (matches(pattern.substr(1), name.substr(skipped))) return true;
  }
  return false;
}

/// The parameter that "grad/<p>#1", "m/<p>" … belong to; empty: none.
std::string_view owner_of(std::string_view name) {
  for (const std::string_view prefix : {"grad/", "m/", "v/"}) {
    if (!name.starts_with(prefix)) continue;
    name.remove_prefix(prefix.size());
    return name.substr(0, name.find('#'));
  }
  return {};
}

class Sharder {
 public:
  Sharder(const Graph& graph, const ShardingOptions& options)
      : graph_(graph), o_(options), forms_(graph.values().size()) {}

  Result<ShardingDecisions> run();

 private:
  Result<ParameterSharding> place_parameter(const GraphInput& input) const;
  [[nodiscard]] Placement placement_of(Role role, const std::string& name) const;
  [[nodiscard]] bool has_form(ValueId v, Placement p) const {
    return std::find(forms_[v].begin(), forms_[v].end(), p) != forms_[v].end();
  }
  [[nodiscard]] double seconds(ValueId v, Placement from, Placement to) const {
    return conversion_seconds(graph_.type(v), from, to, o_.members, o_.costs);
  }
  [[nodiscard]] double reach_cost(ValueId v, Placement wanted) const;
  [[nodiscard]] double result_cost(ValueId v, Placement placed, bool from_whole) const;
  [[nodiscard]] double cost(const Op& op, const ShardingStrategy& s) const;
  Status shard_op(const Op& op);

  const Graph& graph_;
  const ShardingOptions& o_;
  ShardingDecisions d_;
  std::map<std::string, Placement, std::less<>> parameters_;
  std::vector<std::vector<Placement>> forms_;  ///< of each value; the first is how it is made
  std::map<ValueId, Placement> demanded_;      ///< of values that are outputs
};

Result<ParameterSharding> Sharder::place_parameter(const GraphInput& input) const {
  const TensorType& type = graph_.type(input.value);
  ParameterSharding p{input.name, -1, type, type};
  for (const ParameterRule& rule : o_.rules) {
    if (!matches(rule.pattern, input.name)) continue;
    if (rule.dim < 0) return p;
    if (rule.dim >= type.shape.rank()) {
      return invalid_argument(fmt::format("rule \"{}\" cuts dim {} of {}, which is {}",
                                          rule.pattern, rule.dim, input.name, type.to_string()));
    }
    if (rule.num_units > 0 && rule.num_units % o_.members != 0) {
      return invalid_argument(fmt::format("{} {} do not divide over the {} ranks of group {} ({})",
                                          rule.num_units, rule.unit, o_.members, o_.group,
                                          input.name));
    }
    p.tp_dim = rule.dim;
    p.local = local_type(type, Placement::shard(rule.dim), o_.members);
    return p;
  }
  return p;
}

Placement Sharder::placement_of(Role role, const std::string& name) const {
  const bool belongs = role == Role::kAccumulator || role == Role::kMoment;
  const std::string_view owner = belongs ? owner_of(name) : std::string_view(name);
  if (!belongs && role != Role::kParameter) return Placement::replicate();
  const auto found = parameters_.find(owner);
  return found == parameters_.end() ? Placement::replicate() : found->second;
}

/// Of the cheapest way from a form that is there. What is cut now has to be put together later
/// (twice as much as a guess, so that values that are whole stay whole).
double Sharder::reach_cost(ValueId v, Placement wanted) const {
  if (has_form(v, wanted)) {
    const bool paid = wanted.is_partial() && has_form(v, Placement::replicate());
    return paid ? kTwice * seconds(v, wanted, Placement::replicate()) : 0;
  }
  double best = std::numeric_limits<double>::infinity();
  for (const Placement from : forms_[v]) {
    double c = seconds(v, from, wanted);
    if (wanted.is_shard() && !from.is_shard()) {
      c += 2 * seconds(v, wanted, Placement::replicate());
    }
    const Value& value = graph_.value(v);
    const bool parameter =
        value.producer == kNoOp && graph_.inputs()[value.result].role == Role::kParameter;
    if (parameter && from.is_shard()) c += kGatherParameter_s;
    best = std::min(best, c);
  }
  return best;
}

double Sharder::result_cost(ValueId v, Placement placed, bool from_whole) const {
  const auto demanded = demanded_.find(v);
  if (demanded != demanded_.end()) return seconds(v, placed, demanded->second);
  const double whole = seconds(v, placed, Placement::replicate());
  return placed.is_partial() || from_whole ? kLater * whole : 0;
}

double Sharder::cost(const Op& op, const ShardingStrategy& s) const {
  double total = 0;
  bool whole = true;
  bool cut = false;
  for (size_t i = 0; i < op.operands.size(); ++i) {
    total += reach_cost(op.operands[i], s.operands[i]);
    whole = whole && s.operands[i].is_replicate();
    cut = cut || s.operands[i].is_shard();
  }
  for (size_t i = 0; i < op.results.size(); ++i) {
    total += result_cost(op.results[i], s.results[i], whole);
    cut = cut || s.results[i].is_shard();
  }
  const double flops = op_flops(graph_, op) / (cut ? o_.members : 1);
  return total + flops / o_.costs.flops_per_s;
}

Status Sharder::shard_op(const Op& op) {
  ShardedOp best;
  best.cost_s = std::numeric_limits<double>::infinity();
  for (ShardingStrategy& s : sharding_strategies(graph_, op, o_.members)) {
    const double c = cost(op, s);
    if (c < best.cost_s) best = {std::move(s), c};
  }
  if (best.strategy.operands.size() != op.operands.size() || best.strategy.results.empty()) {
    return unsupported(fmt::format("{} cannot be sharded", op_info(op.kind).name));
  }
  for (size_t i = 0; i < op.operands.size(); ++i) {
    const ValueId v = op.operands[i];
    if (!has_form(v, best.strategy.operands[i])) forms_[v].push_back(best.strategy.operands[i]);
  }
  for (size_t i = 0; i < op.results.size(); ++i) {
    forms_[op.results[i]] = {best.strategy.results[i]};
  }
  d_.ops.push_back(std::move(best));
  return {};
}

Result<ShardingDecisions> Sharder::run() {
  if (o_.members < 1) return invalid_argument(fmt::format("{} members", o_.members));
  for (const GraphInput& input : graph_.inputs()) {
    if (input.role != Role::kParameter) continue;
    SGA_ASSIGN(ParameterSharding p, place_parameter(input));
    if (p.tp_dim >= 0) parameters_[p.name] = Placement::shard(p.tp_dim);
    d_.parameters.push_back(std::move(p));
  }
  for (const GraphInput& input : graph_.inputs()) {
    d_.inputs.push_back(placement_of(input.role, input.name));
    forms_[input.value] = {d_.inputs.back()};
  }
  for (const GraphOutput& output : graph_.outputs()) {
    d_.outputs.push_back(placement_of(output.role, output.name));
    demanded_.emplace(output.value, d_.outputs.back());
  }
  for (const Op& op : graph_.ops()) SGA_TRY(shard_op(op));
  return std::move(d_);
}

std::string placements_text(const std::vector<Placement>& list) {
  std::string text;
  for (const Placement p : list) text += (text.empty() ? "" : ", ") + p.to_string();
  return "(" + text + ")";
}

}  // namespace

std::vector<ParameterRule> llama_parameter_rules(int64_t num_heads, int64_t num_key_value_heads) {
  const std::string heads = "attention heads";
  const std::string groups = "key/value heads";
  return {{"*.q_proj.weight", 0, num_heads, heads},
          {"*.q_proj.bias", 0, num_heads, heads},
          {"*.k_proj.weight", 0, num_key_value_heads, groups},
          {"*.k_proj.bias", 0, num_key_value_heads, groups},
          {"*.v_proj.weight", 0, num_key_value_heads, groups},
          {"*.v_proj.bias", 0, num_key_value_heads, groups},
          {"*.o_proj.weight", 1, num_heads, heads},
          {"*.gate_proj.weight", 0, 0, ""},
          {"*.up_proj.weight", 0, 0, ""},
          {"*.down_proj.weight", 1, 0, ""},
          {"*.embed_tokens.weight", 0, 0, ""},
          {"lm_head.weight", 0, 0, ""}};
}

Result<ShardingDecisions> apply_sharding(const Graph& training, const ShardingOptions& options) {
  return Sharder(training, options).run();
}

Result<ShardedTraining> shard_training(const Graph& training, const ShardingOptions& options) {
  SGA_ASSIGN(const ShardingDecisions decisions, apply_sharding(training, options));
  return insert_collectives(training, decisions, options);
}

std::vector<std::string> explain_sharding(const Graph& training,
                                          const ShardingDecisions& decisions) {
  std::vector<std::string> lines;
  for (const ParameterSharding& p : decisions.parameters) {
    if (p.tp_dim < 0) continue;
    lines.push_back(
        fmt::format("{}: dim {} cut, {} a rank", p.name, p.tp_dim, p.local.to_string()));
  }
  std::map<ValueId, Placement> placed;
  for (size_t i = 0; i < decisions.inputs.size(); ++i) {
    placed[training.inputs()[i].value] = decisions.inputs[i];
  }
  for (OpId o = 0; o < training.ops().size() && o < decisions.ops.size(); ++o) {
    const Op& op = training.op(o);
    const ShardingStrategy& s = decisions.ops[o].strategy;
    for (size_t i = 0; i < op.results.size(); ++i) placed[op.results[i]] = s.results[i];
    bool converted = s.local.has_value();
    for (size_t i = 0; i < op.operands.size(); ++i) {
      converted = converted || placed[op.operands[i]] != s.operands[i];
    }
    if (!converted) continue;
    lines.push_back(fmt::format("op {} {}: {} -> {}", o, op_info(op.kind).name,
                                placements_text(s.operands), placements_text(s.results)));
  }
  return lines;
}

}  // namespace sgactor::graph
