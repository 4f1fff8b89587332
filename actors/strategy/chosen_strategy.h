#pragma once
#include "actors/runtime/behaviours.h"
#include "actors/strategy/strategy.h"

#include <memory>
#include <string>
#include <vector>

namespace sgactor::actors {

/// The strategy that a job names, ready to run it. Exceptions of the strategy's code become a
/// Status that names it, here and in everything that this makes. Immutable.
class ChosenStrategy final : public Behaviours {
 public:
  /// Asks the strategy whether it can run the job. Errors: its own, as kInvalidArgument or
  /// kUnsupported; kInvalidArgument if it throws.
  static Result<std::shared_ptr<ChosenStrategy>> create(Strategy strategy, JobFacts facts);

  [[nodiscard]] const std::string& name() const { return strategy_.name; }
  [[nodiscard]] bool keeps_state() const { return strategy_.keeps_state; }
  /// For the compiler; empty: the model's own table alone.
  [[nodiscard]] const std::vector<graph::ParameterRule>& parameter_rules() const { return rules_; }

  /// Errors: of the strategy's factory; kUnsupported: gradients that are not f32, or hashes.
  Result<std::unique_ptr<Channel>> stand_in(const ChannelSpec& spec,
                                            std::unique_ptr<Channel> channel) override;
  Result<std::shared_ptr<StepHook>> step_hook(const ProgramContext& context,
                                              transport::Collectives* collectives) override;

 private:
  ChosenStrategy(Strategy strategy, JobFacts facts);

  Strategy strategy_;
  JobFacts facts_;
  std::vector<graph::ParameterRule> rules_;
};

}  // namespace sgactor::actors
