#include "actors/runtime/channel.h"

#include "actors/runtime/channel_operations.h"
#include "actors/runtime/open_operations.h"
#include "actors/runtime/staged_channel.h"
#include "graph/base/hash.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <deque>
#include <mutex>
#include <utility>
#include <vector>

namespace sgactor::actors {
namespace {

int64_t now_ns() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

class CollectiveChannel final : public Channel, private kernels::CompletionSink {
 public:
  CollectiveChannel(const ChannelSpec& spec, std::vector<Operation> operations)
      : collectives_(*spec.collectives),
        rank_(spec.rank),
        operations_(std::move(operations)),
        described_(describe_operations(spec)) {}
  ~CollectiveChannel() override { wait(); }
  CollectiveChannel(const CollectiveChannel&) = delete;
  CollectiveChannel& operator=(const CollectiveChannel&) = delete;

  void start(graph::LaunchId launch, int64_t step, int32_t micro_batch,
             std::span<std::byte* const> inputs, std::span<std::byte* const> outputs,
             uint64_t token, kernels::CompletionSink& sink) override;
  void drain(uint64_t token, kernels::CompletionSink& sink) override { open_.drain(token, sink); }
  void set_generation(int64_t generation) override {
    generation_.store(static_cast<transport::Generation>(generation));
  }
  void abort(const Status& why) override { collectives_.abort(generation_.load(), why); }
  bool idle() override { return open_.idle(); }
  void wait() override { open_.wait(); }
  void list(std::vector<ChannelOperation>& out) const override;

 private:
  /// What an operation is called, in the room of a few words.
  struct Name {
    graph::LaunchId launch = graph::kNoLaunch;
    int64_t step = 0;
    int32_t micro_batch = 0;
    int64_t sequence = 0;
  };
  /// An operation under way.
  struct Flight {
    const Operation* operation = nullptr;
    Name name;
    bool is_open = false;
    uint64_t token = 0;
    kernels::CompletionSink* sink = nullptr;
    size_t num_left = 0;  // pairs
    Status failure;
    int64_t start_ns = 0;
    std::vector<std::byte*> inputs, outputs;
    std::vector<std::vector<uint64_t>> gathered;  // by pair, of hashes
  };
  /// How many that are done are remembered.
  static constexpr size_t kRemembered = 64;

  Flight& open(const Operation& operation, const Name& name, uint64_t token,
               kernels::CompletionSink& sink, size_t* index);
  [[nodiscard]] ChannelOperation describe(const Name& name) const;
  void start_pairs(Flight& flight, size_t index, uint64_t key, transport::Generation generation);
  void on_complete(uint64_t token, const Status& status,
                   kernels::LaunchTiming timing) noexcept override;
  static void finish_hashes(Flight& flight);
  /// The pairs are done, or have failed with `status`.
  void finish(Flight& flight, size_t index, const Status& status);
  void close(size_t index, const Status& failure);

  transport::Collectives& collectives_;
  int32_t rank_;
  std::vector<Operation> operations_;              // index: launch; empty for those of other lanes
  const std::vector<ChannelOperation> described_;  // index: launch
  std::atomic<transport::Generation> generation_{1};
  mutable std::mutex mutex_;
  Name last_;                              // started
  std::array<Name, kRemembered> ended_{};  // those that were done last, a ring
  size_t num_ended_ = 0;
  std::deque<Flight> flights_;
  std::vector<size_t> free_;
  OpenOperations open_;
};

CollectiveChannel::Flight& CollectiveChannel::open(const Operation& operation, const Name& name,
                                                   uint64_t token, kernels::CompletionSink& sink,
                                                   size_t* index) {
  open_.open();
  const std::lock_guard lock(mutex_);
  if (free_.empty()) {
    free_.push_back(flights_.size());
    flights_.emplace_back();
  }
  *index = free_.back();
  free_.pop_back();
  Flight& flight = flights_[*index];
  flight.operation = &operation;
  flight.name = name;
  flight.name.sequence = last_.step == name.step ? last_.sequence + 1 : 1;
  last_ = flight.name;
  flight.is_open = true;
  flight.token = token;
  flight.sink = &sink;
  flight.num_left = operation.pairs.size();
  flight.failure = {};
  flight.start_ns = now_ns();
  return flight;
}

void CollectiveChannel::start(graph::LaunchId launch, int64_t step, int32_t micro_batch,
                              std::span<std::byte* const> inputs,
                              std::span<std::byte* const> outputs, uint64_t token,
                              kernels::CompletionSink& sink) {
  const Operation& operation = operations_[static_cast<size_t>(launch)];
  const size_t n = operation.pairs.size();
  size_t index = 0;
  // Nobody else touches a flight between its opening and the start of its pairs.
  Flight& flight = open(operation, {launch, step, micro_batch, 0}, token, sink, &index);
  flight.inputs.assign(inputs.begin(), inputs.end());
  flight.outputs.assign(outputs.begin(), outputs.end());
  flight.inputs.resize(n, nullptr);
  flight.outputs.resize(n, nullptr);
  flight.gathered.resize(n);
  for (size_t i = 0; i < n; ++i) {
    const bool gathers = operation.pairs[i].hash_step == HashStep::kGather;
    flight.gathered[i].assign(gathers ? operation.pairs[i].request.group.size() : 0, 0);
  }
  const uint64_t key =
      mix64(mix64(static_cast<uint64_t>(operation.key), static_cast<uint64_t>(step)),
            static_cast<uint64_t>(micro_batch));
  start_pairs(flight, index, key, generation_.load());
}

void CollectiveChannel::start_pairs(Flight& flight, size_t index, uint64_t key,
                                    transport::Generation generation) {
  // Once the last pair is started the flight may be gone.
  const std::vector<Pair>& pairs = flight.operation->pairs;
  for (size_t i = 0; i < pairs.size(); ++i) {
    transport::CollectiveRequest request = pairs[i].request;
    request.input = flight.inputs[i];
    request.output = flight.outputs[i];
    if (pairs[i].hash_step == HashStep::kGather) {
      request.output = reinterpret_cast<std::byte*>(flight.gathered[i].data());
    }
    request.key = mix64(key, i);
    request.generation = generation;
    collectives_.start(std::move(request), index, *this);
  }
}

void CollectiveChannel::on_complete(uint64_t token, const Status& status,
                                    kernels::LaunchTiming /*timing*/) noexcept {
  Flight* flight = nullptr;
  {
    const std::lock_guard lock(mutex_);
    flight = &flights_[token];
    if (!status.ok() && flight->failure.ok()) flight->failure = status;
    if (--flight->num_left > 0) return;
  }
  finish(*flight, token, flight->failure);
}

void CollectiveChannel::finish(Flight& flight, size_t index, const Status& status) {
  Status failure;
  if (status.ok()) {
    finish_hashes(flight);
  } else {
    failure = status.with_context(
        fmt::format("rank {}: {} (key {})", rank_, flight.operation->name, flight.operation->key));
  }
  flight.sink->on_complete(flight.token, failure, {flight.start_ns, now_ns()});
  close(index, failure);
}

void CollectiveChannel::finish_hashes(Flight& flight) {
  for (size_t i = 0; i < flight.operation->pairs.size(); ++i) {
    const Pair& pair = flight.operation->pairs[i];
    if (pair.hash_step == HashStep::kNone) continue;
    auto& out = *reinterpret_cast<uint64_t*>(flight.outputs[i]);
    if (pair.hash_step == HashStep::kPiece) {
      out = mix64(out, static_cast<uint64_t>(pair.request.index));
      continue;
    }
    out = 0;
    for (const uint64_t piece : flight.gathered[i]) out = mix64(out, piece);
  }
}

void CollectiveChannel::close(size_t index, const Status& failure) {
  {
    const std::lock_guard lock(mutex_);
    flights_[index].is_open = false;
    if (failure.ok()) ended_[num_ended_++ % kRemembered] = flights_[index].name;
    free_.push_back(index);
  }
  open_.close(failure);
}

ChannelOperation CollectiveChannel::describe(const Name& name) const {
  ChannelOperation out = described_[static_cast<size_t>(name.launch)];
  out.step = name.step;
  out.micro_batch = name.micro_batch;
  out.sequence = name.sequence;
  return out;
}

void CollectiveChannel::list(std::vector<ChannelOperation>& out) const {
  const std::lock_guard lock(mutex_);
  for (const Flight& flight : flights_) {
    if (!flight.is_open) continue;
    out.push_back(describe(flight.name));
    out.back().start_ns = flight.start_ns;
  }
  for (size_t i = 0; i < std::min(num_ended_, kRemembered); ++i) {
    if (ended_[i].step != last_.step) continue;
    out.push_back(describe(ended_[i]));
    out.back().done = true;
  }
}

}  // namespace

Result<std::unique_ptr<Channel>> create_channel(const ChannelSpec& spec) {
  const auto index = static_cast<size_t>(spec.plan->ranks[static_cast<size_t>(spec.rank)].program);
  const std::string& name = spec.plan->programs[index].lanes[static_cast<size_t>(spec.lane)].name;
  if (spec.collectives == nullptr) {
    return invalid_argument(fmt::format("lane {} communicates, but there is no transport", name));
  }
  SGA_ASSIGN(std::vector<Operation> operations, build_operations(spec));
  std::unique_ptr<Channel> channel =
      std::make_unique<CollectiveChannel>(spec, std::move(operations));
  if (!spec.backend->host_visible()) return create_staged_channel(spec, std::move(channel));
  return channel;
}

}  // namespace sgactor::actors
