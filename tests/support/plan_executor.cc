#include "tests/support/plan_executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace sgactor::testing_support {

using graph::Buffer;
using graph::BufferKind;

namespace {

/// Keeps the first failure. Completions may come from the backend's threads, but the caller reads
/// only after synchronize(), which orders them.
class FirstFailure final : public kernels::CompletionSink {
 public:
  void on_complete(uint64_t, const Status& status, kernels::LaunchTiming) noexcept override {
    ++num_completions_;
    if (status_.ok()) status_ = status;
  }
  /// Ok if exactly `expected` completions came, all of them ok.
  [[nodiscard]] Status finish(int expected) const {
    if (!status_.ok() || num_completions_ == expected) return status_;
    return internal_error(fmt::format("{} completions of {}", num_completions_, expected));
  }

 private:
  Status status_;
  int num_completions_ = 0;
};

template <class T>
std::vector<double> to_doubles(std::span<const std::byte> bytes) {
  std::vector<double> out(bytes.size() / sizeof(T));
  for (size_t i = 0; i < out.size(); ++i) {
    T element;
    std::memcpy(&element, bytes.data() + i * sizeof(T), sizeof(T));
    out[i] = static_cast<double>(element);
  }
  return out;
}

}  // namespace

Result<std::unique_ptr<PlanExecutor>> PlanExecutor::create(const graph::Plan& plan,
                                                           kernels::Backend& backend,
                                                           int32_t rank) {
  if (rank < 0 || static_cast<size_t>(rank) >= plan.ranks.size()) {
    return invalid_argument(fmt::format("rank {} of {}", rank, plan.ranks.size()));
  }
  SGA_ASSIGN(auto made, create_member(plan, backend, rank));
  SGA_TRY(made->check_alone());
  return made;
}

Result<std::unique_ptr<PlanExecutor>> PlanExecutor::create_member(const graph::Plan& plan,
                                                                  kernels::Backend& backend,
                                                                  int32_t rank) {
  const auto program = static_cast<size_t>(plan.ranks[static_cast<size_t>(rank)].program);
  std::unique_ptr<PlanExecutor> made(new PlanExecutor(plan, plan.programs[program], backend));
  SGA_TRY(made->check_sizes());
  SGA_TRY(made->compile());
  SGA_ASSIGN(made->arena_, backend.allocate(made->program_.arena_bytes, "arena"));
  SGA_ASSIGN(made->stream_, backend.create_stream());
  return made;
}

Status PlanExecutor::check_alone() const {
  if (program_.lanes.size() != 1) {
    return unsupported(fmt::format("{} lanes: this executor runs one", program_.lanes.size()));
  }
  for (const graph::Launch& launch : program_.launches) {
    if (launch.kind != graph::LaunchKind::kSubgraph) {
      return unsupported(fmt::format("launch {} communicates", launch.name));
    }
  }
  return {};
}

Status PlanExecutor::check_sizes() const {
  for (const Buffer& buffer : program_.buffers) {
    const int64_t bytes = backend_.storage_bytes(buffer.type);
    if (buffer.kind != BufferKind::kWorkspace && bytes > buffer.bytes) {
      return invalid_argument(fmt::format("buffer {}: {} bytes planned, {} needs {}", buffer.name,
                                          buffer.bytes, backend_.info().backend, bytes));
    }
  }
  return {};
}

Status PlanExecutor::compile() {
  int64_t scratch_bytes = 0;
  for (const graph::Subgraph& subgraph : plan_.subgraphs) {
    std::vector<kernels::Place> places;
    for (const graph::ValuePlace& p : subgraph.places) {
      places.push_back({static_cast<kernels::Place::Space>(p.space), p.index, p.offset});
    }
    SGA_ASSIGN(auto executable,
               backend_.compile({&subgraph.body, places, subgraph.workspace_bytes, subgraph.name}));
    scratch_bytes = std::max(scratch_bytes, executable->scratch_bytes());
    executables_.push_back(std::move(executable));
  }
  if (scratch_bytes > 0) {
    SGA_ASSIGN(scratch_, backend_.allocate(scratch_bytes, "scratch"));
  }
  return {};
}

const Buffer* PlanExecutor::find(const std::string& name) const {
  for (const Buffer& buffer : program_.buffers) {
    if (buffer.name == name) return &buffer;
  }
  return nullptr;
}

std::byte* PlanExecutor::address(graph::BufferId id, int32_t micro_batch) const {
  const Buffer& buffer = program_.buffers[static_cast<size_t>(id)];
  return arena_->data() + buffer.offsets[static_cast<size_t>(micro_batch % buffer.num_slots)];
}

Status PlanExecutor::write(const Buffer& buffer, int32_t slot, std::span<const std::byte> native) {
  if (static_cast<int64_t>(native.size()) != buffer.type.bytes()) {
    return invalid_argument(fmt::format("buffer {}: {} bytes given for {}", buffer.name,
                                        native.size(), buffer.type.to_string()));
  }
  std::byte* const to = arena_->data() + buffer.offsets[static_cast<size_t>(slot)];
  return backend_.write_tensor(to, buffer.type, native);
}

Status PlanExecutor::load_state(const transport::StateSource& source) {
  std::vector<std::byte> native;
  for (const Buffer& buffer : program_.buffers) {
    if (buffer.kind != BufferKind::kParameter && buffer.kind != BufferKind::kMoment) continue;
    native.resize(static_cast<size_t>(buffer.type.bytes()));
    SGA_TRY(source.load(buffer.name, buffer.type, native));
    SGA_TRY(write(buffer, 0, native));
  }
  return {};
}

Status PlanExecutor::set_scalar(const std::string& name, double value) {
  const Buffer* buffer = find(name);
  if (buffer == nullptr || buffer->kind != BufferKind::kScalar) {
    return invalid_argument(fmt::format("no scalar {}", name));
  }
  if (buffer->type.dtype == DType::kF64) {
    return write(*buffer, 0, std::as_bytes(std::span(&value, 1)));
  }
  const auto rounded = static_cast<float>(value);
  return write(*buffer, 0, std::as_bytes(std::span(&rounded, 1)));
}

Status PlanExecutor::zero_accumulators() {
  std::vector<std::byte> zeros;
  for (const Buffer& buffer : program_.buffers) {
    if (buffer.kind != BufferKind::kAccumulator) continue;
    zeros.assign(static_cast<size_t>(buffer.type.bytes()), std::byte{0});
    for (int32_t slot = 0; slot < buffer.num_slots; ++slot) SGA_TRY(write(buffer, slot, zeros));
  }
  return {};
}

Status PlanExecutor::fill_batch(int32_t micro_batch, const MicroBatch& data) {
  for (const Buffer& buffer : program_.buffers) {
    if (buffer.kind != BufferKind::kBatch) continue;
    const auto ids = buffer.name == "tokens" ? data.tokens : data.targets;
    SGA_TRY(write(buffer, micro_batch % buffer.num_slots, std::as_bytes(ids)));
  }
  return {};
}

Status PlanExecutor::fire(const graph::Firing& firing) {
  const graph::Launch& launch = program_.launches[static_cast<size_t>(firing.launch)];
  std::vector<std::byte*> inputs;
  std::vector<std::byte*> outputs;
  for (const graph::LaunchInput& input : launch.inputs) {
    inputs.push_back(address(input.buffer, firing.micro_batch));
  }
  for (const graph::BufferId output : launch.outputs) {
    outputs.push_back(address(output, firing.micro_batch));
  }
  kernels::LaunchArgs args;
  args.inputs = inputs;
  args.outputs = outputs;
  if (launch.workspace != graph::kNoBuffer) {
    args.workspace = address(launch.workspace, firing.micro_batch);
  }
  if (scratch_) args.scratch = scratch_->data();
  FirstFailure sink;
  stream_->launch(*executables_[static_cast<size_t>(launch.subgraph)], args, 0, sink);
  stream_->synchronize();
  return sink.finish(1).with_context(launch.name);
}

Status PlanExecutor::run_step(int64_t step, double inv_valid_tokens,
                              std::span<const MicroBatch> micro_batches) {
  if (static_cast<int64_t>(micro_batches.size()) != program_.num_micro_batches) {
    return invalid_argument(fmt::format("{} micro-batches given, the plan has {}",
                                        micro_batches.size(), program_.num_micro_batches));
  }
  SGA_TRY(zero_accumulators());
  if (find("step") != nullptr) SGA_TRY(set_scalar("step", static_cast<double>(step)));
  if (find("inv_valid_tokens") != nullptr) {
    SGA_TRY(set_scalar("inv_valid_tokens", inv_valid_tokens));
  }
  // A batch is filled before the first firing of its micro-batch, when the one whose slot it takes
  // has been used up; phases after the backward fire as micro-batch 0 and need none.
  std::vector<bool> filled(micro_batches.size());
  for (const graph::Firing& firing : program_.lanes[0].order) {
    const auto m = static_cast<size_t>(firing.micro_batch);
    if (!filled[m]) SGA_TRY(fill_batch(firing.micro_batch, micro_batches[m]));
    filled[m] = true;
    SGA_TRY(fire(firing));
  }
  return {};
}

Result<std::vector<std::byte>> PlanExecutor::read_bytes(const std::string& name,
                                                        int32_t slot) const {
  const Buffer* buffer = find(name);
  if (buffer == nullptr || slot < 0 || slot >= buffer->num_slots) {
    return invalid_argument(fmt::format("no buffer {} with a slot {}", name, slot));
  }
  std::vector<std::byte> native(static_cast<size_t>(buffer->type.bytes()));
  const std::byte* const from = arena_->data() + buffer->offsets[static_cast<size_t>(slot)];
  SGA_TRY(backend_.read_tensor(native, buffer->type, from));
  return native;
}

Result<std::vector<double>> PlanExecutor::read(const std::string& name, int32_t slot) const {
  SGA_ASSIGN(const auto native, read_bytes(name, slot));
  switch (find(name)->type.dtype) {
    case DType::kF64:
      return to_doubles<double>(native);
    case DType::kF32:
      return to_doubles<float>(native);
    case DType::kI64:
      return to_doubles<int64_t>(native);
    case DType::kI32:
      return to_doubles<int32_t>(native);
    case DType::kU8:
      return to_doubles<uint8_t>(native);
    default:
      return unsupported(fmt::format("buffer {}: {} as f64", name, find(name)->type.to_string()));
  }
}

}  // namespace sgactor::testing_support
