#include "actors/strategy/transformed_channel.h"

#include "actors/runtime/open_operations.h"
#include "actors/runtime/services.h"
#include "actors/strategy/blocking_group.h"
#include "actors/strategy/host_tensor.h"
#include "graph/base/hash.h"

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <utility>

namespace sgactor::actors {
namespace {

/// Keys of a transform's collectives are those of no launch.
constexpr uint64_t kKeySeed = 0x5472616E73666F72ULL;

int64_t now_ns() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

/// An operation with its host memory, where that is needed.
struct Prepared {
  GradientOperation operation;
  std::vector<HostTensor> inputs, outputs;
};

/// What start() was told.
struct Started {
  const Prepared* what = nullptr;
  int64_t step = 0;
  int32_t micro_batch = 0;
  std::vector<std::byte*> inputs, outputs;
  uint64_t token = 0;
  kernels::CompletionSink* sink = nullptr;
  int64_t start_ns = 0;
  transport::Generation generation = 0;
};

class TransformedChannel final : public Channel {
 public:
  TransformedChannel(const ChannelSpec& spec, std::unique_ptr<Channel> inner,
                     std::vector<GradientOperation> operations,
                     std::unique_ptr<ChannelTransform> transform);
  ~TransformedChannel() override { wait(); }
  TransformedChannel(const TransformedChannel&) = delete;
  TransformedChannel& operator=(const TransformedChannel&) = delete;

  void start(graph::LaunchId launch, int64_t step, int32_t micro_batch,
             std::span<std::byte* const> inputs, std::span<std::byte* const> outputs,
             uint64_t token, kernels::CompletionSink& sink) override;
  void drain(uint64_t token, kernels::CompletionSink& sink) override;
  void set_generation(int64_t generation) override {
    generation_.store(static_cast<transport::Generation>(generation));
    inner_->set_generation(generation);
  }
  void abort(const Status& why) override {
    inner_->abort(why);  // ends the transform's collectives too: they are of the same generation
  }
  bool idle() override { return open_.idle() && inner_->idle(); }
  void wait() override {
    open_.wait();
    inner_->wait();
  }
  void list(std::vector<ChannelOperation>& out) const override { inner_->list(out); }

 private:
  Status run(Prepared& prepared, const Started& started);
  void finish(const Started& started, const Status& status);
  /// Behind the transform's operations comes the drain of all others.
  auto drain_inner() {
    return [this](const Status& first, uint64_t token, kernels::CompletionSink& sink) {
      if (first.ok()) return inner_->drain(token, sink);
      sink.on_complete(token, first, {});
    };
  }

  kernels::Backend& backend_;
  const int32_t rank_;
  const bool in_place_;
  std::unique_ptr<Channel> inner_;
  std::vector<Prepared> operations_;
  std::unique_ptr<ChannelTransform> transform_;
  BlockingGroup group_;
  std::atomic<transport::Generation> generation_{1};
  OpenOperations open_;
  std::unique_ptr<BlockingService> thread_;  // last: joined before what it uses goes
};

TransformedChannel::TransformedChannel(const ChannelSpec& spec, std::unique_ptr<Channel> inner,
                                       std::vector<GradientOperation> operations,
                                       std::unique_ptr<ChannelTransform> transform)
    : backend_(*spec.backend),
      rank_(spec.rank),
      in_place_(seen_by_host(*spec.plan, *spec.backend)),
      inner_(std::move(inner)),
      transform_(std::move(transform)),
      group_(*spec.collectives, dp_members(*spec.plan, spec.rank),
             spec.plan->ranks[static_cast<size_t>(spec.rank)].dp),
      thread_(create_thread_service("sga-strategy")) {
  for (GradientOperation& operation : operations) {
    Prepared& prepared = operations_.emplace_back();
    prepared.operation = std::move(operation);
    for (const GradientPair& pair : prepared.operation.pairs) {
      prepared.inputs.emplace_back(pair.input, in_place_);
      prepared.outputs.emplace_back(pair.output, in_place_);
    }
  }
}

void TransformedChannel::start(graph::LaunchId launch, int64_t step, int32_t micro_batch,
                               std::span<std::byte* const> inputs,
                               std::span<std::byte* const> outputs, uint64_t token,
                               kernels::CompletionSink& sink) {
  Prepared* found = nullptr;
  for (Prepared& p : operations_) {
    if (p.operation.launch == launch) found = &p;
  }
  if (found == nullptr) {
    return inner_->start(launch, step, micro_batch, inputs, outputs, token, sink);
  }
  Started started{found,
                  step,
                  micro_batch,
                  {inputs.begin(), inputs.end()},
                  {outputs.begin(), outputs.end()},
                  token,
                  &sink,
                  now_ns(),
                  generation_.load()};
  open_.open();
  thread_->submit([this, found, started] { return run(*found, started); },
                  [this, started](const Status& status) { finish(started, status); });
}

Status TransformedChannel::run(Prepared& prepared, const Started& started) {
  const GradientOperation& operation = prepared.operation;
  Reduction reduction;
  reduction.name = operation.name;
  reduction.step = started.step;
  reduction.micro_batch = started.micro_batch;
  reduction.scatters = operation.scatters;
  for (size_t i = 0; i < operation.pairs.size(); ++i) {
    ReducedTensor tensor;
    tensor.parameter = operation.pairs[i].parameter;
    SGA_ASSIGN(tensor.input, prepared.inputs[i].open(backend_, started.inputs[i], true));
    SGA_ASSIGN(tensor.output, prepared.outputs[i].open(backend_, started.outputs[i], false));
    reduction.tensors.push_back(std::move(tensor));
  }
  const uint64_t key = mix64(mix64(mix64(kKeySeed, static_cast<uint64_t>(operation.key)),
                                   static_cast<uint64_t>(started.step)),
                             static_cast<uint64_t>(started.micro_batch));
  group_.open(key, started.generation);
  SGA_TRY(transform_->reduce(reduction, group_));
  for (size_t i = 0; i < operation.pairs.size(); ++i) {
    SGA_TRY(prepared.outputs[i].store(backend_, started.outputs[i]));
  }
  return {};
}

void TransformedChannel::finish(const Started& started, const Status& status) {
  const Status failure =
      status.with_context(fmt::format("rank {}: {}", rank_, started.what->operation.name));
  started.sink->on_complete(started.token, failure, {started.start_ns, now_ns()});
  open_.close(failure, drain_inner());
}

void TransformedChannel::drain(uint64_t token, kernels::CompletionSink& sink) {
  open_.drain(token, sink, drain_inner());
}

}  // namespace

std::unique_ptr<Channel> create_transformed_channel(const ChannelSpec& spec,
                                                    std::unique_ptr<Channel> inner,
                                                    std::vector<GradientOperation> operations,
                                                    std::unique_ptr<ChannelTransform> transform) {
  return std::make_unique<TransformedChannel>(spec, std::move(inner), std::move(operations),
                                              std::move(transform));
}

}  // namespace sgactor::actors
