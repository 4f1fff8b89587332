#include "actors/strategy/step_boundary_hook.h"

#include "actors/runtime/program_context.h"
#include "actors/runtime/services.h"
#include "actors/strategy/blocking_group.h"
#include "actors/strategy/host_tensor.h"
#include "graph/base/hash.h"

#include <fmt/format.h>

#include <atomic>
#include <utility>
#include <vector>

namespace sgactor::actors {
namespace {

/// Keys of these collectives are those of no launch.
constexpr uint64_t kKeySeed = 0x53746570486F6F6BULL;

class StepBoundaryHook final : public StepHook {
 public:
  StepBoundaryHook(const ProgramContext& context, transport::Collectives& collectives,
                   std::unique_ptr<StepBehaviour> behaviour)
      : context_(context),
        collectives_(collectives),
        behaviour_(std::move(behaviour)),
        group_(collectives, dp_members(*context.plan, context.rank),
               context.plan->ranks[static_cast<size_t>(context.rank)].dp),
        thread_(create_thread_service("sga-step")) {}
  ~StepBoundaryHook() override { close(); }
  StepBoundaryHook(const StepBoundaryHook&) = delete;
  StepBoundaryHook& operator=(const StepBoundaryHook&) = delete;

  Status start() {
    const bool in_place = seen_by_host(*context_.plan, *context_.backend);
    for (const TensorPlace& place : context_.state) {
      if (context_.buffer(place.buffer).kind != graph::BufferKind::kParameter) continue;
      if (place.type.dtype != DType::kF32) {
        return unsupported(
            fmt::format("parameter {} is {}, expected f32", place.name, place.type.to_string()));
      }
      parameters_.push_back({&place, HostTensor(place.type, in_place)});
    }
    SGA_ASSIGN(const std::vector<ParameterView> views, open_all());
    SGA_TRY(behaviour_->start({0, views, nullptr}));
    return store_all();
  }

  Status after_step(int64_t step, int64_t generation) override {
    const Busy busy(num_busy_);
    generation_.store(generation);
    SGA_ASSIGN(const std::vector<ParameterView> views, open_all());
    group_.open(mix64(mix64(kKeySeed, static_cast<uint64_t>(step)), 0),
                static_cast<transport::Generation>(generation));
    SGA_TRY(behaviour_->after_step({step, views, &group_})
                .with_context(fmt::format("rank {}: after step {}", context_.rank, step)));
    return store_all();
  }
  BlockingService& service() override { return *thread_; }
  void abort(const Status& why) override {
    if (num_busy_.load() == 0) return;
    collectives_.abort(static_cast<transport::Generation>(generation_.load()), why);
  }
  void close() override { thread_.reset(); }

 private:
  struct Parameter {
    const TensorPlace* place;
    HostTensor values;
  };
  /// Counts while it lives.
  class Busy {
   public:
    explicit Busy(std::atomic<int32_t>& count) : count_(count) { ++count_; }
    ~Busy() { --count_; }
    Busy(const Busy&) = delete;
    Busy& operator=(const Busy&) = delete;

   private:
    std::atomic<int32_t>& count_;
  };

  Result<std::vector<ParameterView>> open_all() {
    std::vector<ParameterView> views;
    for (Parameter& p : parameters_) {
      ParameterView view{p.place->name, p.place->type, {}};
      SGA_ASSIGN(view.values, p.values.open(*context_.backend, p.place->address, true));
      views.push_back(std::move(view));
    }
    return views;
  }
  Status store_all() {
    for (Parameter& p : parameters_) {
      SGA_TRY(p.values.store(*context_.backend, p.place->address));
    }
    return {};
  }

  const ProgramContext& context_;
  transport::Collectives& collectives_;
  std::unique_ptr<StepBehaviour> behaviour_;
  std::vector<Parameter> parameters_;
  BlockingGroup group_;
  std::atomic<int64_t> generation_{0};
  std::atomic<int32_t> num_busy_{0};
  std::unique_ptr<BlockingService> thread_;  // last: joined before what it uses goes
};

}  // namespace

Result<std::shared_ptr<StepHook>> create_step_boundary_hook(
    const ProgramContext& context, transport::Collectives& collectives,
    std::unique_ptr<StepBehaviour> behaviour) {
  if (context.plan->storage == graph::StorageModel::kHash) {
    return unsupported("a device that keeps hashes for tensors has no parameters to show");
  }
  auto hook = std::make_shared<StepBoundaryHook>(context, collectives, std::move(behaviour));
  SGA_TRY(hook->start());
  return std::shared_ptr<StepHook>(std::move(hook));
}

}  // namespace sgactor::actors
