#include "actors/runtime/channel.h"

#include "graph/base/hash.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <limits>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace sgactor::actors {
namespace {

using graph::LaunchKind;
using transport::CollectiveKind;
using transport::CollectiveRequest;
using transport::Element;

int64_t now_ns() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

/// What follows the transport where tensors are hashes: there a part of a tensor is no part of its
/// hash.
enum class HashStep : uint8_t { kNone = 0, kPiece, kGather };

/// One input and output of a launch, but for what differs from firing to firing.
struct Pair {
  CollectiveRequest request;
  HashStep hash_step = HashStep::kNone;
};

struct Operation {
  std::string name;
  int32_t key = -1;
  std::vector<Pair> pairs;
};

CollectiveKind kind_of(LaunchKind kind) {
  switch (kind) {
    case LaunchKind::kReduceScatter:
      return CollectiveKind::kReduceScatter;
    case LaunchKind::kAllGather:
      return CollectiveKind::kAllGather;
    case LaunchKind::kBroadcast:
      return CollectiveKind::kBroadcast;
    case LaunchKind::kAllToAll:
      return CollectiveKind::kAllToAll;
    case LaunchKind::kSend:
      return CollectiveKind::kSend;
    case LaunchKind::kRecv:
      return CollectiveKind::kRecv;
    case LaunchKind::kSubgraph:
    case LaunchKind::kAllReduce:
      break;
  }
  return CollectiveKind::kAllReduce;
}

bool reduces(LaunchKind kind) {
  return kind == LaunchKind::kAllReduce || kind == LaunchKind::kReduceScatter;
}

std::optional<Element> element_of(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return Element::kF64;
    case DType::kF32:
      return Element::kF32;
    case DType::kBF16:
      return Element::kBF16;
    case DType::kI32:
      return Element::kI32;
    case DType::kU8:
      return Element::kU8;
    default:
      return std::nullopt;
  }
}

/// Turns a plan's launches into requests.
class OperationBuilder {
 public:
  OperationBuilder(const ChannelSpec& spec, const graph::RankProgram& program)
      : plan_(*spec.plan), rank_(spec.rank), program_(program) {}

  Result<Operation> build(const graph::Launch& launch) {
    Operation out;
    out.name = launch.name;
    out.key = launch.communication.key;
    CollectiveRequest common;
    SGA_TRY(set_group(launch, common).with_context(launch.name));
    common.kind = kind_of(launch.kind);
    common.reduction = launch.communication.reduction == graph::Reduction::kMax
                           ? transport::Reduction::kMax
                           : transport::Reduction::kSum;
    common.algorithm =
        launch.communication.exact ? transport::Algorithm::kExact : transport::Algorithm::kRing;
    const size_t n = std::max(launch.inputs.size(), launch.outputs.size());
    for (size_t i = 0; i < n; ++i) {
      const graph::BufferId in = i < launch.inputs.size() ? launch.inputs[i].buffer : -1;
      const graph::BufferId to = i < launch.outputs.size() ? launch.outputs[i] : -1;
      Pair pair{common, HashStep::kNone};
      SGA_TRY(set_sizes(launch, in, to, pair).with_context(launch.name));
      out.pairs.push_back(std::move(pair));
    }
    return out;
  }

 private:
  Status set_group(const graph::Launch& launch, CollectiveRequest& request) {
    const graph::Communication& c = launch.communication;
    if (c.group < 0 || static_cast<size_t>(c.group) >= plan_.groups.size()) {
      return invalid_plan(fmt::format("there is no group {}", c.group));
    }
    request.group = graph::group_members(plan_, c.group, rank_);
    const auto place = [&](int32_t rank) {
      const auto it = std::find(request.group.begin(), request.group.end(), rank);
      return it == request.group.end() ? -1 : static_cast<int32_t>(it - request.group.begin());
    };
    request.index = place(rank_);
    if (request.index < 0) return invalid_plan(fmt::format("rank {} is not in its group", rank_));
    const bool has_peer = launch.kind == LaunchKind::kSend || launch.kind == LaunchKind::kRecv ||
                          launch.kind == LaunchKind::kBroadcast;
    if (!has_peer) return {};
    graph::RankPlacement at = plan_.ranks[static_cast<size_t>(rank_)];
    const graph::MeshAxis axis = plan_.groups[static_cast<size_t>(c.group)].axis;
    (axis == graph::MeshAxis::kPp ? at.pp : axis == graph::MeshAxis::kDp ? at.dp : at.tp) = c.peer;
    request.root = place(graph::rank_at(plan_, at.pp, at.dp, at.tp));
    if (request.root < 0) return invalid_plan(fmt::format("its group has no member {}", c.peer));
    return {};
  }

  [[nodiscard]] const TensorType& type(graph::BufferId b) const {
    return program_.buffers[static_cast<size_t>(b)].type;
  }

  /// Elements as the storage model keeps them; what is only moved may travel as bytes.
  Status set_sizes(const graph::Launch& launch, graph::BufferId in, graph::BufferId to,
                   Pair& pair) {
    CollectiveRequest& r = pair.request;
    const auto members = static_cast<int64_t>(r.group.size());
    if (plan_.storage == graph::StorageModel::kHash) return set_hash(launch.kind, members, pair);
    const DType dtype = type(in >= 0 ? in : to).dtype;
    if (in >= 0 && to >= 0 && type(to).dtype != dtype) {
      return invalid_plan(fmt::format("{} becomes {}", type(in).to_string(), type(to).to_string()));
    }
    const int64_t num_in = in >= 0 ? type(in).num_elements() : 0;
    const int64_t num_to = to >= 0 ? type(to).num_elements() : 0;
    std::optional<Element> element = Element::kF64;
    int64_t scale = 1;
    if (plan_.storage == graph::StorageModel::kNative) element = element_of(dtype);
    if (!element && !reduces(launch.kind)) {
      element = Element::kU8;
      scale = dtype_bytes(dtype);
    }
    if (!element) return unsupported(fmt::format("reduction of {}", dtype_name(dtype)));
    r.element = *element;
    r.total = scale * (launch.kind == LaunchKind::kAllGather || in < 0 ? num_to : num_in);
    if (launch.kind == LaunchKind::kReduceScatter) r.piece = scale * num_to;
    if (launch.kind == LaunchKind::kAllGather) r.piece = scale * num_in;
    if (launch.kind == LaunchKind::kAllToAll) r.piece = scale * num_in / members;
    return {};
  }

  static Status set_hash(LaunchKind kind, int64_t members, Pair& pair) {
    CollectiveRequest& r = pair.request;
    r.element = Element::kHash;
    r.total = 1;
    r.piece = 1;
    if (kind == LaunchKind::kReduceScatter) {
      r.kind = CollectiveKind::kAllReduce;
      pair.hash_step = HashStep::kPiece;
    } else if (kind == LaunchKind::kAllGather) {
      r.total = members;
      pair.hash_step = HashStep::kGather;
    } else if (kind == LaunchKind::kAllToAll) {
      return unsupported("all_to_all of hashes");
    }
    return {};
  }

  const graph::Plan& plan_;
  int32_t rank_;
  const graph::RankProgram& program_;
};

class CollectiveChannel final : public Channel, private kernels::CompletionSink {
 public:
  CollectiveChannel(const ChannelSpec& spec, std::vector<Operation> operations)
      : collectives_(*spec.collectives), rank_(spec.rank), operations_(std::move(operations)) {}
  ~CollectiveChannel() override { wait(); }
  CollectiveChannel(const CollectiveChannel&) = delete;
  CollectiveChannel& operator=(const CollectiveChannel&) = delete;

  void start(graph::LaunchId launch, int64_t step, int32_t micro_batch,
             std::span<std::byte* const> inputs, std::span<std::byte* const> outputs,
             uint64_t token, kernels::CompletionSink& sink) override;
  void drain(uint64_t token, kernels::CompletionSink& sink) override;
  void set_generation(int64_t generation) override {
    generation_.store(static_cast<transport::Generation>(generation));
  }
  void abort(const Status& why) override { collectives_.abort(generation_.load(), why); }
  bool idle() override {
    const std::lock_guard lock(mutex_);
    return num_open_ == 0 && num_telling_ == 0;
  }
  void wait() override {
    std::unique_lock lock(mutex_);
    idle_.wait(lock, [this] { return num_open_ == 0 && num_telling_ == 0; });
  }

 private:
  /// An operation under way.
  struct Flight {
    const Operation* operation = nullptr;
    uint64_t token = 0;
    kernels::CompletionSink* sink = nullptr;
    size_t num_left = 0;  // pairs
    Status failure;
    int64_t start_ns = 0;
    std::vector<std::byte*> outputs;
    std::vector<std::vector<uint64_t>> gathered;  // by pair, of hashes
  };
  struct Drain {
    uint64_t token = 0;
    kernels::CompletionSink* sink = nullptr;
  };
  size_t open(const Operation& operation, std::span<std::byte* const> outputs, uint64_t token,
              kernels::CompletionSink& sink);
  void on_complete(uint64_t token, const Status& status,
                   kernels::LaunchTiming timing) noexcept override;
  static void finish_hashes(Flight& flight);
  void close(size_t index, const Status& failure);

  transport::Collectives& collectives_;
  int32_t rank_;
  std::vector<Operation> operations_;  // index: launch; empty for those of other lanes
  std::atomic<transport::Generation> generation_{1};
  std::mutex mutex_;
  std::condition_variable idle_;
  std::deque<Flight> flights_;
  std::vector<size_t> free_;
  int64_t num_open_ = 0;
  int64_t num_telling_ = 0;
  Status failure_;
  std::optional<Drain> drain_;
};

size_t CollectiveChannel::open(const Operation& operation, std::span<std::byte* const> outputs,
                               uint64_t token, kernels::CompletionSink& sink) {
  const std::lock_guard lock(mutex_);
  if (free_.empty()) {
    free_.push_back(flights_.size());
    flights_.emplace_back();
  }
  const size_t index = free_.back();
  free_.pop_back();
  Flight& flight = flights_[index];
  flight.operation = &operation;
  flight.token = token;
  flight.sink = &sink;
  flight.num_left = operation.pairs.size();
  flight.failure = {};
  flight.start_ns = now_ns();
  flight.outputs.assign(outputs.begin(), outputs.end());
  flight.gathered.resize(operation.pairs.size());
  for (size_t i = 0; i < operation.pairs.size(); ++i) {
    const bool gathers = operation.pairs[i].hash_step == HashStep::kGather;
    flight.gathered[i].assign(gathers ? operation.pairs[i].request.group.size() : 0, 0);
  }
  ++num_open_;
  return index;
}

void CollectiveChannel::start(graph::LaunchId launch, int64_t step, int32_t micro_batch,
                              std::span<std::byte* const> inputs,
                              std::span<std::byte* const> outputs, uint64_t token,
                              kernels::CompletionSink& sink) {
  const Operation& operation = operations_[static_cast<size_t>(launch)];
  const size_t index = open(operation, outputs, token, sink);
  const transport::Generation generation = generation_.load();
  const uint64_t key =
      mix64(mix64(static_cast<uint64_t>(operation.key), static_cast<uint64_t>(step)),
            static_cast<uint64_t>(micro_batch));
  // Only its own completions touch a flight once it is open, and none comes before its start.
  for (size_t i = 0; i < operation.pairs.size(); ++i) {
    CollectiveRequest request = operation.pairs[i].request;
    request.input = i < inputs.size() ? inputs[i] : nullptr;
    request.output = i < outputs.size() ? outputs[i] : nullptr;
    if (operation.pairs[i].hash_step == HashStep::kGather) {
      const std::lock_guard lock(mutex_);
      request.output = reinterpret_cast<std::byte*>(flights_[index].gathered[i].data());
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
  Status failure;
  if (flight->failure.ok()) {
    finish_hashes(*flight);
  } else {
    failure = flight->failure.with_context(fmt::format(
        "rank {}: {} (key {})", rank_, flight->operation->name, flight->operation->key));
  }
  flight->sink->on_complete(flight->token, failure, {flight->start_ns, now_ns()});
  close(token, failure);
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
  std::optional<Drain> drained;
  Status first;
  {
    const std::lock_guard lock(mutex_);
    free_.push_back(index);
    if (failure_.ok()) failure_ = failure;
    first = failure_;
    if (--num_open_ == 0) drained = std::exchange(drain_, std::nullopt);
    ++num_telling_;  // wait() must not return while a sink is used
  }
  if (drained) drained->sink->on_complete(drained->token, first, {});
  const std::lock_guard lock(mutex_);
  --num_telling_;
  if (num_open_ == 0 && num_telling_ == 0) idle_.notify_all();
}

void CollectiveChannel::drain(uint64_t token, kernels::CompletionSink& sink) {
  Status first;
  {
    const std::lock_guard lock(mutex_);
    if (num_open_ > 0) {
      drain_ = Drain{token, &sink};
      return;
    }
    first = failure_;
  }
  sink.on_complete(token, first, {});
}

}  // namespace

Result<std::unique_ptr<Channel>> create_channel(const ChannelSpec& spec) {
  const auto index = static_cast<size_t>(spec.plan->ranks[static_cast<size_t>(spec.rank)].program);
  const graph::RankProgram& program = spec.plan->programs[index];
  const std::string& name = program.lanes[static_cast<size_t>(spec.lane)].name;
  if (spec.collectives == nullptr) {
    return invalid_argument(fmt::format("lane {} communicates, but there is no transport", name));
  }
  if (!spec.backend->host_visible()) {
    return unsupported(
        fmt::format("lane {}: memory of {} does not travel", name, spec.backend->info().device));
  }
  OperationBuilder builder(spec, program);
  std::vector<Operation> operations(program.launches.size());
  for (size_t l = 0; l < program.launches.size(); ++l) {
    if (program.launches[l].lane != spec.lane) continue;
    SGA_ASSIGN(operations[l], builder.build(program.launches[l]));
  }
  return std::unique_ptr<Channel>(std::make_unique<CollectiveChannel>(spec, std::move(operations)));
}

}  // namespace sgactor::actors
