// Local SGD in the manner of DiLoCo (Douillard et al., "DiLoCo: Distributed Low-Communication
// Training of Language Models", 2023): every logical rank of dp trains on its own samples for
// `interval` steps with the job's optimizer and no exchange of gradients; then the ranks average
// how far their parameters have moved and take one outer step of SGD with Nesterov momentum on it.
//
//   outer gradient  d = average over ranks of (anchor - parameters)
//   momentum        u = momentum * u + d
//   outer step      anchor -= outer_lr * (d + momentum * u)
//   all ranks       parameters = anchor
//
// Moments of the inner optimizer stay with the rank, as in the paper.
#include <actors/strategy/plugin.h>

#include <memory>
#include <utility>
#include <vector>

namespace {

using namespace sgactor::actors;
using sgactor::Result;
using sgactor::Status;

struct Outer {
  int64_t interval = 10;
  double lr = 0.7;
  double momentum = 0.9;
};

Result<Outer> read_options(const StrategyOptions& options) {
  Outer outer;
  SGA_TRY(options.check_known({"interval", "outer_lr", "outer_momentum"}));
  SGA_ASSIGN(outer.interval, options.integer("interval", outer.interval, 1, 1'000'000));
  SGA_ASSIGN(outer.lr, options.number("outer_lr", outer.lr, 0, 10));
  SGA_ASSIGN(outer.momentum, options.number("outer_momentum", outer.momentum, 0, 1));
  return outer;
}

/// Keeps the rank's gradient at home. It is a share of the step's, so that the sum over dp would be
/// whole: times the number of ranks it is a gradient of the rank's own samples.
class LocalGradients final : public ChannelTransform {
 public:
  Status reduce(const Reduction& reduction, DpGroup& group) override {
    const auto scale = static_cast<float>(group.size());
    for (const ReducedTensor& t : reduction.tensors) {
      for (size_t i = 0; i < t.input.size(); ++i) t.output[i] = t.input[i] * scale;
    }
    return {};
  }
};

class OuterStep final : public StepBehaviour {
 public:
  explicit OuterStep(Outer outer) : outer_(outer) {}

  Status start(const StepBoundary& boundary) override {
    for (const ParameterView& p : boundary.parameters) {
      anchors_.emplace_back(p.values.begin(), p.values.end());
      momenta_.emplace_back(p.values.size(), 0.0F);
    }
    return {};
  }

  Status after_step(const StepBoundary& boundary) override {
    if (boundary.step % outer_.interval != 0) return {};
    for (size_t t = 0; t < boundary.parameters.size(); ++t) {
      SGA_TRY(step(boundary.parameters[t].values, anchors_[t], momenta_[t], *boundary.group));
    }
    return {};
  }

 private:
  Status step(std::span<float> values, std::vector<float>& anchor, std::vector<float>& momentum,
              DpGroup& group) {
    delta_.resize(values.size());
    const float share = 1.0F / static_cast<float>(group.size());
    for (size_t i = 0; i < values.size(); ++i) delta_[i] = (anchor[i] - values[i]) * share;
    SGA_TRY(group.all_reduce(delta_));
    const auto m = static_cast<float>(outer_.momentum);
    const auto lr = static_cast<float>(outer_.lr);
    for (size_t i = 0; i < values.size(); ++i) {
      momentum[i] = m * momentum[i] + delta_[i];
      anchor[i] -= lr * (delta_[i] + m * momentum[i]);
      values[i] = anchor[i];
    }
    return {};
  }

  const Outer outer_;
  std::vector<std::vector<float>> anchors_, momenta_;  // by parameter
  std::vector<float> delta_;
};

Status check(const JobFacts& job) {
  SGA_TRY(read_options(job.options).status());
  if (job.zero_stage != 0) {
    return sgactor::unsupported(
        "every rank moves all of its parameters; expected parallelism.zero_stage 0");
  }
  if (job.tp > 1 || job.pp > 1) {
    return sgactor::unsupported(
        "the norm that clips is a rank's own; expected tensor_parallel_degree and "
        "pipeline_parallel_degree 1");
  }
  return {};
}

void add_diloco(StrategyTable& table) {
  Strategy s;
  s.name = "diloco";
  s.summary = "local steps, then an outer Nesterov step on averaged parameter deltas";
  s.keeps_state = true;
  s.check = check;
  s.channel_transform = [](const JobFacts&,
                           const RankFacts&) -> Result<std::unique_ptr<ChannelTransform>> {
    return std::unique_ptr<ChannelTransform>(std::make_unique<LocalGradients>());
  };
  s.step_behaviour = [](const JobFacts& job,
                        const RankFacts&) -> Result<std::unique_ptr<StepBehaviour>> {
    SGA_ASSIGN(const Outer outer, read_options(job.options));
    return std::unique_ptr<StepBehaviour>(std::make_unique<OuterStep>(outer));
  };
  table.add(std::move(s));
}

}  // namespace

SGACTOR_STRATEGY_PLUGIN(add_diloco)
