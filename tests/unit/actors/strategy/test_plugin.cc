// A plug-in that is right, or wrong in the one way that its macro names.
#include "actors/strategy/plugin.h"

#include <memory>
#include <stdexcept>
#include <utility>

namespace {

using namespace sgactor::actors;

/// Sums as sgactor does. Throws in its second step where it is asked to.
class Sum final : public ChannelTransform {
 public:
  explicit Sum(bool throws) : throws_(throws) {}
  sgactor::Status reduce(const Reduction& reduction, DpGroup& group) override {
    if (throws_ && reduction.step == 2) throw std::runtime_error("thrown in step 2");
    for (const ReducedTensor& t : reduction.tensors) {
      for (size_t i = 0; i < t.input.size(); ++i) t.output[i] = t.input[i];
      SGA_TRY(group.all_reduce(t.output));
    }
    return {};
  }

 private:
  bool throws_;
};

[[maybe_unused]] Strategy sum_strategy(const std::string& name) {
  Strategy s;
  s.name = name;
  s.channel_transform = [](const JobFacts& job,
                           const RankFacts&) -> sgactor::Result<std::unique_ptr<ChannelTransform>> {
    SGA_ASSIGN(const int64_t throws, job.options.integer("throws", 0, 0, 1));
    return std::unique_ptr<ChannelTransform>(std::make_unique<Sum>(throws == 1));
  };
  return s;
}

void add([[maybe_unused]] StrategyTable& table) {
#if defined(SGA_TEST_THROWS)
  table.add(sum_strategy("never"));
  throw std::runtime_error("no luck\ntoday");
#elif defined(SGA_TEST_TAKEN)
  table.add(sum_strategy("mesh"));
#elif defined(SGA_TEST_NAMELESS)
  table.add(sum_strategy(""));
#elif !defined(SGA_TEST_EMPTY)
  table.add(sum_strategy("test-sum"));
#endif
}

}  // namespace

#if defined(SGA_TEST_OTHER_VERSION)
extern "C" __attribute__((visibility("default"))) const char* sgactor_strategy_abi() {
  return "strategy SDK 0, gcc 4";
}
extern "C" __attribute__((visibility("default"))) void sgactor_strategy_v1(StrategyTable* table) {
  add(*table);
}
#elif defined(SGA_TEST_NO_SYMBOLS)
extern "C" __attribute__((visibility("default"))) void nothing_of_ours(StrategyTable* table) {
  add(*table);
}
#else
SGACTOR_STRATEGY_PLUGIN(add)
#endif
