// A device that draws a fresh model's numbers itself: nothing is loaded, and the losses are those
// of a run whose host made them.
#include "actors/runtime/training.h"
#include "graph/base/standard_normal.h"
#include "tests/actor/faulty_backend.h"
#include "tests/actor/training_rig.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>

namespace sgactor::actors {
namespace {

using testing_support::bits;
using testing_support::FaultyBackend;
using testing_support::losses;
using testing_support::RecordingObserver;
using testing_support::TrainingRig;

/// Memory that the host does not see, and numbers drawn in it. Refuses every `refused`-th tensor.
class DrawingBackend final : public FaultyBackend {
 public:
  DrawingBackend(kernels::Backend& inner, int64_t refused)
      : FaultyBackend(inner, INT64_MAX), refused_(refused) {}
  [[nodiscard]] bool host_visible() const override { return false; }
  Status fill_normal(std::byte* to, const TensorType& type, const NormalNumbers& rule) override {
    ++asked;
    if (refused_ > 0 && asked % refused_ == 0) return unsupported("not this one");
    std::vector<std::byte> native(static_cast<size_t>(type.bytes()));
    for (int64_t i = 0; i < type.num_elements(); ++i) {
      const auto x = static_cast<float>(normal_number(rule, static_cast<uint64_t>(i)));
      std::memcpy(native.data() + static_cast<size_t>(i) * sizeof x, &x, sizeof x);
    }
    return write_tensor(to, type, native);
  }

  int64_t asked = 0;

 private:
  int64_t refused_;
};

/// Counts what is loaded.
class CountingState final : public transport::StateSource {
 public:
  explicit CountingState(const transport::StateSource& source) : source_(source) {}
  Status load(const std::string& name, const TensorType& type,
              std::span<std::byte> out) const override {
    ++loads;
    return source_.load(name, type, out);
  }
  [[nodiscard]] bool is_zero(const std::string& name) const override {
    return source_.is_zero(name);
  }
  [[nodiscard]] std::optional<NormalNumbers> numbers(const std::string& name,
                                                     const TensorType& type) const override {
    return source_.numbers(name, type);
  }
  mutable std::atomic<int64_t> loads{0};

 private:
  const transport::StateSource& source_;
};

TEST(DrawnState, HasTheLossesOfALoadedOne) {
  TrainingRig::Options options;
  options.backend = "cpu";
  const auto rig = TrainingRig::create(options);
  ASSERT_TRUE(rig.ok()) << rig.status().to_string();
  TrainingSpec spec;
  spec.last_step = 2;
  RecordingObserver loaded;
  ASSERT_TRUE(run_training(spec, (*rig)->inputs(&loaded)).ok());
  for (const int64_t refused : {0, 3}) {
    DrawingBackend backend(*(*rig)->backend, refused);
    const CountingState state(*(*rig)->state);
    RecordingObserver drawn;
    TrainingInputs inputs = (*rig)->inputs(&drawn);
    inputs.backend = &backend;
    inputs.initial_state = &state;
    const auto summary = run_training(spec, inputs);
    ASSERT_TRUE(summary.ok()) << summary.status().to_string();
    EXPECT_GT(backend.asked, 0);
    EXPECT_EQ(state.loads.load(), refused == 0 ? 0 : backend.asked / refused);
    EXPECT_EQ(bits(losses(drawn.steps)), bits(losses(loaded.steps)));
  }
}

}  // namespace
}  // namespace sgactor::actors
