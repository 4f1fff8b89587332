#include "actors/runtime/staged_channel.h"

#include "actors/runtime/channel_operations.h"
#include "actors/runtime/open_operations.h"
#include "actors/runtime/services.h"

#include <algorithm>
#include <deque>
#include <mutex>
#include <utility>

namespace sgactor::actors {
namespace {

class StagedChannel final : public Channel, private kernels::CompletionSink {
 public:
  StagedChannel(const ChannelSpec& spec, std::vector<Operation> operations,
                std::unique_ptr<Channel> inner)
      : backend_(*spec.backend),
        operations_(std::move(operations)),
        inner_(std::move(inner)),
        copier_(create_thread_service("sga-channel")) {}
  ~StagedChannel() override { wait(); }
  StagedChannel(const StagedChannel&) = delete;
  StagedChannel& operator=(const StagedChannel&) = delete;

  void start(graph::LaunchId launch, int64_t step, int32_t micro_batch,
             std::span<std::byte* const> inputs, std::span<std::byte* const> outputs,
             uint64_t token, kernels::CompletionSink& sink) override;
  void drain(uint64_t token, kernels::CompletionSink& sink) override { open_.drain(token, sink); }
  bool idle() override { return open_.idle() && inner_->idle(); }
  void wait() override {
    open_.wait();
    inner_->wait();
  }
  bool put_below(const Layer& layer) override {
    inner_ = layer(std::move(inner_));
    return true;
  }

  // What else there is to say is said of the host's copies.
  void set_generation(int64_t generation) override { inner_->set_generation(generation); }
  void abort(const Status& why) override { inner_->abort(why); }
  void list(std::vector<ChannelOperation>& out) const override { inner_->list(out); }
  void resume(int64_t generation) override { inner_->resume(generation); }
  void forget(int64_t step) override { inner_->forget(step); }
  [[nodiscard]] uint64_t posted(int64_t step) const override { return inner_->posted(step); }
  void keep_results(const std::vector<Keeps>& launches, int64_t interval) override {
    inner_->keep_results(launches, interval);
  }
  [[nodiscard]] std::shared_ptr<const Results> kept(graph::LaunchId launch, int32_t micro_batch,
                                                    int64_t step) const override {
    return inner_->kept(launch, micro_batch, step);
  }
  void flip_bit() override { inner_->flip_bit(); }
  void on_suspended(std::function<void(const Status&)> listener) override {
    inner_->on_suspended(std::move(listener));
  }
  [[nodiscard]] int64_t log_high_water() const override { return inner_->log_high_water(); }

 private:
  using Bytes = std::vector<std::byte>;
  /// An operation under way.
  struct Flight {
    const Operation* operation = nullptr;
    graph::LaunchId launch = graph::kNoLaunch;
    int64_t step = 0;
    int32_t micro_batch = 0;
    uint64_t token = 0;
    kernels::CompletionSink* sink = nullptr;
    std::vector<std::byte*> inputs, outputs;              // of the device
    std::vector<Bytes> host_inputs, host_outputs;         // one a pair
    std::vector<std::byte*> input_places, output_places;  // in them
    kernels::LaunchTiming timing;
  };

  Flight& open(size_t* index);
  Status copy_in(Flight& flight);
  Status copy_out(Flight& flight);
  void on_complete(uint64_t token, const Status& status,
                   kernels::LaunchTiming timing) noexcept override;
  void finish(size_t index, const Status& status);

  kernels::Backend& backend_;
  const std::vector<Operation> operations_;  // index: launch
  std::mutex mutex_;
  std::deque<Flight> flights_;
  std::vector<size_t> free_;
  OpenOperations open_;
  std::unique_ptr<Channel> inner_;
  std::unique_ptr<BlockingService> copier_;  // last: its work uses all else
};

StagedChannel::Flight& StagedChannel::open(size_t* index) {
  open_.open();
  const std::lock_guard lock(mutex_);
  if (free_.empty()) {
    free_.push_back(flights_.size());
    flights_.emplace_back();
  }
  *index = free_.back();
  free_.pop_back();
  return flights_[*index];
}

void StagedChannel::start(graph::LaunchId launch, int64_t step, int32_t micro_batch,
                          std::span<std::byte* const> inputs, std::span<std::byte* const> outputs,
                          uint64_t token, kernels::CompletionSink& sink) {
  size_t index = 0;
  // Nobody else touches a flight until it is started below.
  Flight& flight = open(&index);
  flight.operation = &operations_[static_cast<size_t>(launch)];
  flight.launch = launch;
  flight.step = step;
  flight.micro_batch = micro_batch;
  flight.token = token;
  flight.sink = &sink;
  flight.inputs.assign(inputs.begin(), inputs.end());
  flight.outputs.assign(outputs.begin(), outputs.end());
  copier_->submit([this, &flight] { return copy_in(flight); },
                  [this, &flight, index](const Status& status) {
                    if (!status.ok()) return finish(index, status);
                    inner_->start(flight.launch, flight.step, flight.micro_batch,
                                  flight.input_places, flight.output_places, index, *this);
                  });
}

Status StagedChannel::copy_in(Flight& flight) {
  const std::vector<Pair>& pairs = flight.operation->pairs;
  flight.host_inputs.resize(std::max(flight.host_inputs.size(), flight.inputs.size()));
  flight.host_outputs.resize(std::max(flight.host_outputs.size(), flight.outputs.size()));
  flight.input_places.assign(flight.inputs.size(), nullptr);
  flight.output_places.assign(flight.outputs.size(), nullptr);
  for (size_t i = 0; i < flight.inputs.size(); ++i) {
    if (flight.inputs[i] == nullptr) continue;
    flight.host_inputs[i].resize(static_cast<size_t>(pairs[i].input.bytes()));
    flight.input_places[i] = flight.host_inputs[i].data();
    SGA_TRY(backend_.read_tensor(flight.host_inputs[i], pairs[i].input, flight.inputs[i]));
  }
  for (size_t i = 0; i < flight.outputs.size(); ++i) {
    if (flight.outputs[i] == nullptr) continue;
    flight.host_outputs[i].resize(static_cast<size_t>(pairs[i].output.bytes()));
    flight.output_places[i] = flight.host_outputs[i].data();
  }
  return {};
}

Status StagedChannel::copy_out(Flight& flight) {
  const std::vector<Pair>& pairs = flight.operation->pairs;
  for (size_t i = 0; i < flight.outputs.size(); ++i) {
    if (flight.outputs[i] == nullptr) continue;
    SGA_TRY(backend_.write_tensor(flight.outputs[i], pairs[i].output, flight.host_outputs[i]));
  }
  return {};
}

void StagedChannel::on_complete(uint64_t token, const Status& status,
                                kernels::LaunchTiming timing) noexcept {
  Flight* flight = nullptr;
  {
    const std::lock_guard lock(mutex_);
    flight = &flights_[token];
    flight->timing = timing;
  }
  if (!status.ok()) return finish(token, status);
  copier_->submit([this, flight] { return copy_out(*flight); },
                  [this, token](const Status& s) { finish(token, s); });
}

void StagedChannel::finish(size_t index, const Status& status) {
  Flight* flight = nullptr;
  {
    const std::lock_guard lock(mutex_);
    flight = &flights_[index];
  }
  flight->sink->on_complete(flight->token, status, flight->timing);
  {
    const std::lock_guard lock(mutex_);
    free_.push_back(index);
  }
  open_.close(status);
}

}  // namespace

Result<std::unique_ptr<Channel>> create_staged_channel(const ChannelSpec& spec,
                                                       std::unique_ptr<Channel> inner) {
  SGA_ASSIGN(std::vector<Operation> operations, build_operations(spec));
  return std::unique_ptr<Channel>(
      std::make_unique<StagedChannel>(spec, std::move(operations), std::move(inner)));
}

}  // namespace sgactor::actors
