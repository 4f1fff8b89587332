#include "graph/passes/plan_recompute_choose.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace sgactor::graph {
namespace {

/// A partial choice; `step` leads back to the decisions made so far.
struct Label {
  int64_t bytes = 0;
  double flops = 0;
  int32_t step = -1;
};

/// By rising flops, each with fewer bytes than all before it.
template <class T>
void keep_undominated(std::vector<T>& labels) {
  std::stable_sort(labels.begin(), labels.end(), [](const T& a, const T& b) {
    return std::tie(a.flops, a.bytes) < std::tie(b.flops, b.bytes);
  });
  size_t kept = 0;
  for (size_t i = 0; i < labels.size(); ++i) {
    if (kept > 0 && labels[i].bytes >= labels[kept - 1].bytes) continue;
    if (kept != i) labels[kept] = std::move(labels[i]);
    ++kept;
  }
  labels.erase(labels.begin() + static_cast<std::ptrdiff_t>(kept), labels.end());
}

/// Drops every second label but the two ends.
template <class T>
void thin_out(std::vector<T>& labels) {
  size_t kept = 0;
  for (size_t i = 0; i < labels.size(); ++i) {
    if (i % 2 == 1 && i + 1 != labels.size()) continue;
    if (kept != i) labels[kept] = std::move(labels[i]);
    ++kept;
  }
  labels.erase(labels.begin() + static_cast<std::ptrdiff_t>(kept), labels.end());
}

/// Options a segment of which combine_choices makes sums.
constexpr size_t kMaxOptions = 64;

class Chooser {
 public:
  explicit Chooser(const RecomputeProblem& problem)
      : problem_(problem), last_reader_(problem.size(), -1) {
    for (size_t i = 0; i < problem.size(); ++i) {
      for (int32_t operand : problem[i].operands) {
        last_reader_[static_cast<size_t>(operand)] = static_cast<int32_t>(i);
      }
    }
  }

  std::vector<RecomputeChoice> run() {
    fronts_[{}].push_back({});
    for (size_t i = 0; i < problem_.size(); ++i) advance(static_cast<int32_t>(i));
    std::vector<Label> all;
    for (auto& [available, labels] : fronts_) all.insert(all.end(), labels.begin(), labels.end());
    keep_undominated(all);
    std::vector<RecomputeChoice> choices;
    for (const Label& label : all) choices.push_back(unwind(label));
    return choices;
  }

 private:
  /// Ops that later ones read and that the backward pass will have, ascending.
  using Available = std::vector<int32_t>;
  struct Step {
    int32_t before = -1;
    int32_t op = 0;
  };

  void advance(int32_t i) {
    const RecomputeOp& op = problem_[static_cast<size_t>(i)];
    std::map<Available, std::vector<Label>> next;
    for (auto& [available, labels] : fronts_) {
      const bool computable =
          std::all_of(op.operands.begin(), op.operands.end(), [&](int32_t operand) {
            return std::binary_search(available.begin(), available.end(), operand);
          });
      const bool again = !op.fixed && computable;
      Available without;
      for (int32_t o : available) {
        if (last_reader_[static_cast<size_t>(o)] > i) without.push_back(o);
      }
      Available with = without;
      if (last_reader_[static_cast<size_t>(i)] > i) with.push_back(i);
      for (const Label& label : labels) {
        if (again) {
          steps_.push_back({label.step, i});
          next[with].push_back({label.bytes, label.flops + (op.free ? 0 : op.flops),
                                static_cast<int32_t>(steps_.size()) - 1});
        }
        if (!op.free) next[with].push_back({label.bytes + op.bytes, label.flops, label.step});
        // What costs nothing is best had.
        if (!op.needed && !(op.free && again)) next[without].push_back(label);
      }
    }
    fronts_ = std::move(next);
    size_t total = 0;
    for (auto& [available, labels] : fronts_) {
      keep_undominated(labels);
      total += labels.size();
    }
    while (total > kMaxChoices) {
      size_t left = 0;
      for (auto& [available, labels] : fronts_) {
        thin_out(labels);
        left += labels.size();
      }
      if (left == total) break;
      total = left;
    }
  }

  [[nodiscard]] RecomputeChoice unwind(const Label& label) const {
    RecomputeChoice choice{label.bytes, label.flops, std::vector<bool>(problem_.size(), false)};
    for (int32_t s = label.step; s >= 0; s = steps_[static_cast<size_t>(s)].before) {
      choice.again[static_cast<size_t>(steps_[static_cast<size_t>(s)].op)] = true;
    }
    return choice;
  }

  const RecomputeProblem& problem_;
  std::vector<int32_t> last_reader_;
  std::map<Available, std::vector<Label>> fronts_;
  std::vector<Step> steps_;
};

}  // namespace

std::vector<RecomputeChoice> choose_recompute(const RecomputeProblem& problem) {
  return Chooser(problem).run();
}

RecomputeChoice recompute_everything(const RecomputeProblem& problem) {
  RecomputeChoice choice;
  choice.again.assign(problem.size(), false);
  std::vector<bool> wanted(problem.size(), false);
  for (size_t i = problem.size(); i-- > 0;) {
    const RecomputeOp& op = problem[i];
    if (!op.needed && !wanted[i]) continue;
    if (op.fixed) {
      choice.bytes += op.bytes;
      continue;
    }
    choice.again[i] = true;
    if (!op.free) choice.flops += op.flops;
    for (int32_t operand : op.operands) wanted[static_cast<size_t>(operand)] = true;
  }
  return choice;
}

std::vector<RecomputeCombination> combine_choices(
    const std::vector<const std::vector<RecomputeChoice>*>& segments) {
  struct Step {
    int32_t before = -1;
    int32_t option = 0;
  };
  std::vector<Step> steps;
  std::vector<Label> labels(1);
  for (const std::vector<RecomputeChoice>* choices : segments) {
    std::vector<Label> next;
    const size_t stride = (choices->size() + kMaxOptions - 1) / kMaxOptions;
    for (const Label& label : labels) {
      for (size_t o = 0; o < choices->size(); ++o) {
        if (o % stride != 0 && o + 1 != choices->size()) continue;
        steps.push_back({label.step, static_cast<int32_t>(o)});
        next.push_back({label.bytes + (*choices)[o].bytes, label.flops + (*choices)[o].flops,
                        static_cast<int32_t>(steps.size()) - 1});
      }
    }
    keep_undominated(next);
    while (next.size() > kMaxChoices) thin_out(next);
    labels = std::move(next);
  }
  std::vector<RecomputeCombination> combinations;
  for (const Label& label : labels) {
    RecomputeCombination c{label.bytes, label.flops, std::vector<int32_t>(segments.size(), 0)};
    size_t at = segments.size();
    for (int32_t s = label.step; s >= 0; s = steps[static_cast<size_t>(s)].before) {
      c.options[--at] = steps[static_cast<size_t>(s)].option;
    }
    combinations.push_back(std::move(c));
  }
  return combinations;
}

}  // namespace sgactor::graph
