// Strategies in runs of several logical ranks: one that does what the runtime does leaves every bit
// as it is; errors and exceptions of one rank end the run with their message.
#include "actors/strategy/chosen_strategy.h"
#include "tests/actor/faulty_backend.h"
#include "tests/actor/training_rig.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <stdexcept>

namespace sgactor::actors {
namespace {

using testing_support::bits;
using testing_support::grad_norms;
using testing_support::HiddenBackend;
using testing_support::losses;
using testing_support::RecordingObserver;
using testing_support::TrainingRig;

using Reduce = std::function<Status(const RankFacts&, const Reduction&, DpGroup&)>;
using AfterStep = std::function<Status(const RankFacts&, const StepBoundary&)>;

class CallingTransform final : public ChannelTransform {
 public:
  CallingTransform(RankFacts rank, Reduce reduce) : rank_(rank), reduce_(std::move(reduce)) {}
  Status reduce(const Reduction& reduction, DpGroup& group) override {
    return reduce_(rank_, reduction, group);
  }

 private:
  RankFacts rank_;
  Reduce reduce_;
};

class CallingBehaviour final : public StepBehaviour {
 public:
  CallingBehaviour(RankFacts rank, AfterStep after) : rank_(rank), after_(std::move(after)) {}
  Status start(const StepBoundary& boundary) override { return after_(rank_, boundary); }
  Status after_step(const StepBoundary& boundary) override { return after_(rank_, boundary); }

 private:
  RankFacts rank_;
  AfterStep after_;
};

Strategy transforming(Reduce reduce) {
  Strategy s;
  s.name = "test";
  s.channel_transform = [reduce](
                            const JobFacts&,
                            const RankFacts& rank) -> Result<std::unique_ptr<ChannelTransform>> {
    return std::unique_ptr<ChannelTransform>(std::make_unique<CallingTransform>(rank, reduce));
  };
  return s;
}

Strategy stepping(AfterStep after) {
  Strategy s;
  s.name = "test";
  s.step_behaviour = [after](const JobFacts&,
                             const RankFacts& rank) -> Result<std::unique_ptr<StepBehaviour>> {
    return std::unique_ptr<StepBehaviour>(std::make_unique<CallingBehaviour>(rank, after));
  };
  return s;
}

/// What the runtime does itself, by the calls that a strategy has.
Status sum(const RankFacts& rank, const Reduction& reduction, DpGroup& group) {
  EXPECT_EQ(group.index(), rank.dp);
  for (const ReducedTensor& t : reduction.tensors) {
    const auto length = static_cast<size_t>(group.size()) * t.output.size();
    std::vector<float> all(reduction.scatters ? length : t.input.size(), 0.0F);
    std::copy(t.input.begin(), t.input.end(), all.begin());
    SGA_TRY(group.all_reduce(all));
    const auto first = reduction.scatters ? static_cast<size_t>(rank.dp) * t.output.size() : 0;
    std::copy_n(all.begin() + static_cast<std::ptrdiff_t>(first), t.output.size(),
                t.output.begin());
  }
  return {};
}

struct Case {
  const char* name;
  graph::MeshShape mesh;
  int32_t zero_stage = 0;
  int32_t num_micro_batches = 2;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

std::unique_ptr<TrainingRig> create_rig(const Case& c) {
  TrainingRig::Options options;
  options.backend = "cpu";
  options.mesh = c.mesh;
  options.zero_stage = c.zero_stage;
  options.num_micro_batches = c.num_micro_batches;
  auto rig = TrainingRig::create(options);
  EXPECT_TRUE(rig.ok()) << rig.status().to_string();
  return rig.ok() ? std::move(*rig) : nullptr;
}

struct Outcome {
  Status status;
  RecordingObserver observer;
};

/// On a rig of its own: the end of a run closes its generation on the rig's collectives, where work
/// is under way yet.
void run(const Case& c, Strategy strategy, Outcome& out, bool hidden = false) {
  const auto rig = create_rig(c);
  ASSERT_NE(rig, nullptr);
  auto chosen = ChosenStrategy::create(std::move(strategy), {});
  ASSERT_TRUE(chosen.ok()) << chosen.status().to_string();
  TrainingSpec spec;
  spec.last_step = 4;
  spec.behaviours = *chosen;
  HiddenBackend hiding(*rig->backend);
  TrainingInputs inputs = rig->inputs(&out.observer);
  if (hidden) inputs.backend = &hiding;
  out.status = run_training(spec, inputs).status();
}

class SummingStrategy : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Meshes, SummingStrategy,
                         testing::Values(Case{"dp4", {1, 4, 1}}, Case{"dp3", {1, 3, 1}},
                                         Case{"dp2z1", {1, 2, 1}, 1},
                                         Case{"dp2z2", {1, 2, 1}, 2, 1},
                                         Case{"dp2z3", {1, 2, 1}, 3}, Case{"dp2pp2", {2, 2, 1}}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(SummingStrategy, KeepsEveryBit) {
  const auto rig = create_rig(GetParam());
  ASSERT_NE(rig, nullptr);
  const auto expected = rig->run_without_actors(4);
  ASSERT_TRUE(expected.ok()) << expected.status().to_string();
  for (const bool hidden : {false, true}) {
    Outcome out;
    run(GetParam(), transforming(sum), out, hidden);
    ASSERT_TRUE(out.status.ok()) << out.status.to_string();
    EXPECT_EQ(bits(losses(out.observer.steps)), bits(expected->losses)) << hidden;
    EXPECT_EQ(bits(grad_norms(out.observer.steps)), bits(expected->grad_norms)) << hidden;
  }
}

TEST(ChannelTransform, OutputsAreWhatTheOptimizerSees) {
  Outcome out;
  run({"dp2", {1, 2, 1}}, transforming([](const RankFacts&, const Reduction& reduction, DpGroup&) {
        for (const ReducedTensor& t : reduction.tensors)
          std::fill(t.output.begin(), t.output.end(), 0.0F);
        return Status();
      }),
      out);
  ASSERT_TRUE(out.status.ok()) << out.status.to_string();
  for (const StepReport& step : out.observer.steps) EXPECT_EQ(step.grad_norm, 0.0F);
}

TEST(ChannelTransform, ErrorOfOneRankEndsTheRun) {
  Outcome out;
  run({"dp4", {1, 4, 1}},
      transforming([](const RankFacts& rank, const Reduction& reduction, DpGroup& group) {
        // The others wait for this one, which never comes.
        if (rank.dp == 2 && reduction.step == 3) return unsupported("no third step");
        return sum(rank, reduction, group);
      }),
      out);
  EXPECT_EQ(out.status.code(), Code::kUnsupported) << out.status.to_string();
  EXPECT_NE(out.status.message().find("strategy \"test\": no third step"), std::string::npos)
      << out.status.message();
  EXPECT_NE(out.status.message().find("rank 2: "), std::string::npos) << out.status.message();
  EXPECT_EQ(out.observer.steps.size(), 2U);
}

TEST(ChannelTransform, ExceptionEndsTheRun) {
  Outcome out;
  run({"dp2", {1, 2, 1}}, transforming([](const RankFacts&, const Reduction&, DpGroup&) -> Status {
        throw std::runtime_error("out of luck");
      }),
      out);
  EXPECT_EQ(out.status.code(), Code::kInternal);
  EXPECT_NE(out.status.message().find("strategy \"test\" threw: out of luck"), std::string::npos)
      << out.status.message();
}

TEST(StepBehaviour, SeesParametersAndWaitsForItsGroup) {
  const Case c{"dp4", {1, 4, 1}};
  const auto rig = create_rig(c);
  ASSERT_NE(rig, nullptr);
  const auto expected = rig->run_without_actors(4);
  ASSERT_TRUE(expected.ok()) << expected.status().to_string();
  for (const bool hidden : {false, true}) {
    std::mutex mutex;
    std::map<std::string, std::vector<float>> last;  // of rank 3
    std::map<int64_t, int> calls;
    Outcome out;
    run(c, stepping([&](const RankFacts& rank, const StepBoundary& boundary) {
          // A broadcast of what is equal changes nothing.
          for (const ParameterView& p : boundary.parameters) {
            if (boundary.group != nullptr) SGA_TRY(boundary.group->broadcast(p.values, 1));
          }
          const std::lock_guard lock(mutex);
          ++calls[boundary.step];
          if (rank.rank != 3) return Status();
          for (const ParameterView& p : boundary.parameters)
            last[p.name].assign(p.values.begin(), p.values.end());
          return Status();
        }),
        out, hidden);
    ASSERT_TRUE(out.status.ok()) << out.status.to_string();
    EXPECT_EQ(bits(losses(out.observer.steps)), bits(expected->losses)) << hidden;
    EXPECT_EQ(calls, (std::map<int64_t, int>{{0, 4}, {1, 4}, {2, 4}, {3, 4}, {4, 4}}));
    EXPECT_FALSE(last.empty());
    for (const auto& [name, values] : last) {
      const auto state = expected->mesh->state(name);
      ASSERT_TRUE(state.ok()) << state.status().to_string();
      EXPECT_EQ(bits(values), bits(*state)) << name;
    }
  }
}

TEST(StepBehaviour, WritesReachTheNextStep) {
  for (const bool hidden : {false, true}) {
    Outcome out;
    // Logits of zeros say nothing: the loss is that of a guess.
    run({"dp2", {1, 2, 1}}, stepping([](const RankFacts&, const StepBoundary& boundary) {
          for (const ParameterView& p : boundary.parameters)
            std::fill(p.values.begin(), p.values.end(), 0.0F);
          return Status();
        }),
        out, hidden);
    ASSERT_TRUE(out.status.ok()) << out.status.to_string();
    ASSERT_EQ(out.observer.steps.size(), 4U);
    for (const StepReport& step : out.observer.steps)
      EXPECT_EQ(step.loss, out.observer.steps[0].loss) << hidden << " " << step.step;
  }
}

TEST(StepBehaviour, ErrorOfOneRankEndsTheRun) {
  Outcome out;
  run({"dp4", {1, 4, 1}},
      stepping([](const RankFacts& rank, const StepBoundary& boundary) -> Status {
        if (boundary.group == nullptr) return {};
        if (rank.dp == 1 && boundary.step == 2) throw std::runtime_error("thrown by rank 1");
        return boundary.group->barrier();
      }),
      out);
  EXPECT_EQ(out.status.code(), Code::kInternal) << out.status.to_string();
  EXPECT_NE(out.status.message().find("strategy \"test\" threw: thrown by rank 1"),
            std::string::npos)
      << out.status.message();
  EXPECT_EQ(out.observer.steps.size(), 1U);
}

TEST(ChosenStrategy, ChecksBeforeItRuns) {
  Strategy s;
  s.name = "picky";
  s.check = [](const JobFacts& job) {
    return job.dp == 4 ? Status() : unsupported("expected four ranks");
  };
  s.parameter_rules = [](const JobFacts&) -> Result<std::vector<graph::ParameterRule>> {
    return std::vector<graph::ParameterRule>{{"*", -1, 0, ""}};
  };
  EXPECT_EQ(ChosenStrategy::create(s, {}).status().message(),
            "strategy \"picky\": expected four ranks");
  JobFacts four;
  four.dp = 4;
  const auto chosen = ChosenStrategy::create(s, four);
  ASSERT_TRUE(chosen.ok()) << chosen.status().to_string();
  ASSERT_EQ((*chosen)->parameter_rules().size(), 1U);
  s.check = [](const JobFacts&) -> Status { throw std::logic_error("no"); };
  const auto thrown = ChosenStrategy::create(s, four);
  EXPECT_EQ(thrown.status().code(), Code::kInvalidArgument);
  EXPECT_EQ(thrown.status().message(), "strategy \"picky\" threw: no");
}

}  // namespace
}  // namespace sgactor::actors
