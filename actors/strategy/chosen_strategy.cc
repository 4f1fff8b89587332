#include "actors/strategy/chosen_strategy.h"

#include "actors/runtime/channel.h"
#include "actors/runtime/program_context.h"
#include "actors/strategy/gradient_operations.h"
#include "actors/strategy/step_boundary_hook.h"
#include "actors/strategy/transformed_channel.h"

#include <fmt/format.h>

#include <exception>
#include <type_traits>
#include <utility>

namespace sgactor::actors {
namespace {

std::string head(const std::string& name) { return "strategy \"" + name + "\""; }

/// Calls code of a strategy, whose exceptions end here.
template <class Call>
auto guarded(const std::string& name, Code code, Call&& call) -> decltype(call()) {
  try {
    if constexpr (std::is_same_v<decltype(call()), Status>) {
      return call().with_context(head(name));
    } else {
      auto result = call();
      if (!result.ok()) return result.status().with_context(head(name));
      return result;
    }
  } catch (const std::exception& error) {
    return make_status(code, head(name) + " threw: " + error.what(), Scope::kJob);
  } catch (...) {
    return make_status(code, head(name) + " threw something that is no std::exception",
                       Scope::kJob);
  }
}

class GuardedTransform final : public ChannelTransform {
 public:
  GuardedTransform(std::string name, std::unique_ptr<ChannelTransform> inner)
      : name_(std::move(name)), inner_(std::move(inner)) {}
  Status reduce(const Reduction& reduction, DpGroup& group) override {
    return guarded(name_, Code::kInternal, [&] { return inner_->reduce(reduction, group); });
  }

 private:
  std::string name_;
  std::unique_ptr<ChannelTransform> inner_;
};

class GuardedBehaviour final : public StepBehaviour {
 public:
  GuardedBehaviour(std::string name, std::unique_ptr<StepBehaviour> inner)
      : name_(std::move(name)), inner_(std::move(inner)) {}
  Status start(const StepBoundary& boundary) override {
    return guarded(name_, Code::kInternal, [&] { return inner_->start(boundary); });
  }
  Status after_step(const StepBoundary& boundary) override {
    return guarded(name_, Code::kInternal, [&] { return inner_->after_step(boundary); });
  }

 private:
  std::string name_;
  std::unique_ptr<StepBehaviour> inner_;
};

RankFacts rank_facts(const graph::Plan& plan, int32_t rank) {
  const graph::RankPlacement& at = plan.ranks[static_cast<size_t>(rank)];
  return {rank, at.pp, at.dp, at.tp};
}

}  // namespace

ChosenStrategy::ChosenStrategy(Strategy strategy, JobFacts facts)
    : strategy_(std::move(strategy)), facts_(std::move(facts)) {}

Result<std::shared_ptr<ChosenStrategy>> ChosenStrategy::create(Strategy strategy, JobFacts facts) {
  std::shared_ptr<ChosenStrategy> out(new ChosenStrategy(std::move(strategy), std::move(facts)));
  const Strategy& s = out->strategy_;
  if (s.check) {
    SGA_TRY(guarded(s.name, Code::kInvalidArgument, [&] { return s.check(out->facts_); }));
  }
  if (s.parameter_rules) {
    SGA_ASSIGN(out->rules_, guarded(s.name, Code::kInvalidArgument,
                                    [&] { return s.parameter_rules(out->facts_); }));
  }
  return out;
}

Result<std::unique_ptr<Channel>> ChosenStrategy::stand_in(const ChannelSpec& spec,
                                                          std::unique_ptr<Channel> channel) {
  if (!strategy_.channel_transform) return channel;
  const graph::Plan& plan = *spec.plan;
  const auto program = static_cast<size_t>(plan.ranks[static_cast<size_t>(spec.rank)].program);
  auto operations = find_gradient_operations(plan, plan.programs[program], spec.lane);
  if (!operations.ok()) return operations.status().with_context(head(name()));
  if (operations->empty()) return channel;
  if (plan.storage == graph::StorageModel::kHash) {
    return unsupported(head(name()) + ": a device that keeps hashes for tensors has no gradients");
  }
  SGA_ASSIGN(auto transform, guarded(name(), Code::kInternal, [&] {
               return strategy_.channel_transform(facts_, rank_facts(plan, spec.rank));
             }));
  if (transform == nullptr) return internal_error(head(name()) + " made no channel transform");
  return create_transformed_channel(
      spec, std::move(channel), std::move(*operations),
      std::make_unique<GuardedTransform>(name(), std::move(transform)));
}

Result<std::shared_ptr<StepHook>> ChosenStrategy::step_hook(const ProgramContext& context,
                                                            transport::Collectives* collectives) {
  if (!strategy_.step_behaviour) return std::shared_ptr<StepHook>();
  if (collectives == nullptr) {
    return invalid_argument(head(name()) + ": there is no transport between ranks");
  }
  SGA_ASSIGN(auto behaviour, guarded(name(), Code::kInternal, [&] {
               return strategy_.step_behaviour(facts_, rank_facts(*context.plan, context.rank));
             }));
  if (behaviour == nullptr) return internal_error(head(name()) + " made no step behaviour");
  return create_step_boundary_hook(
      context, *collectives, std::make_unique<GuardedBehaviour>(name(), std::move(behaviour)));
}

}  // namespace sgactor::actors
