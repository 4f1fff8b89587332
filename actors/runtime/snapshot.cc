#include "actors/runtime/snapshot.h"

#include "graph/base/log.h"
#include "graph/base/units.h"

#include <fmt/format.h>

#include <algorithm>

namespace sgactor::actors {
namespace {

constexpr int64_t kAlign = 256;

/// Segment of the launch that writes the tensor.
std::string segment_of(const ProgramContext& context, graph::BufferId buffer) {
  for (const graph::Launch& l : context.program->launches) {
    if (std::find(l.outputs.begin(), l.outputs.end(), buffer) != l.outputs.end()) {
      return context.plan->segments[static_cast<size_t>(l.segment)];
    }
  }
  return {};
}

/// Whether the device can spare `bytes`: not what the backend may still ask for. Unknown: yes.
bool has_room(const kernels::Backend& backend, int64_t bytes) {
  const kernels::DeviceInfo& info = backend.info();
  if (info.free_bytes <= 0) return true;
  const int64_t taken =
      backend.allocation_stats().live_bytes + info.process_bytes + info.scratch_bytes;
  return bytes <= info.free_bytes - taken;
}

/// `on_host`: whether the host sees the device's memory; then whether it sees what is returned.
Result<std::unique_ptr<kernels::DeviceMemory>> allocate_staging(kernels::Backend& backend,
                                                                int64_t bytes, bool& on_host) {
  constexpr const char* kLabel = "snapshot staging";
  if (on_host) return backend.allocate(bytes, kLabel);
  if (has_room(backend, bytes)) {
    auto memory = backend.allocate(bytes, kLabel);
    if (memory.ok() || memory.status().code() != Code::kOutOfMemory) return memory;
  }
  log::info(
      "{} has no room for the copies that checkpoints are written from ({}): they lie in "
      "the host's memory",
      backend.info().device, format_bytes(bytes));
  on_host = true;
  return backend.allocate_host(bytes, kLabel);
}

}  // namespace

int64_t staging_bytes(const graph::Plan& plan, int32_t rank) {
  const auto program = static_cast<size_t>(plan.ranks[static_cast<size_t>(rank)].program);
  int64_t bytes = 0;
  for (const graph::Buffer& b : plan.programs[program].buffers) {
    const bool state =
        b.kind == graph::BufferKind::kParameter || b.kind == graph::BufferKind::kMoment;
    if (state && writes_state(plan, rank, b)) bytes += round_up(b.bytes, kAlign);
  }
  return bytes;
}

std::string checkpoint_path(const std::string& root, int64_t step) {
  return fmt::format("{}/step-{:08}", root, step);
}

Result<std::unique_ptr<SnapshotStaging>> SnapshotStaging::create(const ProgramContext& context) {
  std::unique_ptr<SnapshotStaging> out(new SnapshotStaging(context));
  int64_t bytes = 0;
  std::vector<int64_t> offsets;
  for (const TensorPlace& t : context.state) {
    if (!writes_state(*context.plan, context.rank, context.buffer(t.buffer))) continue;
    offsets.push_back(bytes);
    bytes += round_up(t.bytes, kAlign);
    out->state_.push_back(t);
    out->segments_.push_back(segment_of(context, t.buffer));
  }
  bool on_host = context.backend->host_visible();
  SGA_ASSIGN(out->memory_, allocate_staging(*context.backend, std::max(bytes, kAlign), on_host));
  for (int64_t offset : offsets) out->copies_.push_back(out->memory_->data() + offset);
  out->as_on_host_ = on_host && context.plan->storage == graph::StorageModel::kNative;
  return out;
}

void SnapshotStaging::enqueue_copies(uint64_t token, uint64_t quiet_token,
                                     kernels::CompletionSink& sink) {
  kernels::Stream& stream = *context_.lanes->lanes[0].stream;
  for (size_t i = 0; i < copies_.size(); ++i) {
    const TensorPlace& t = state_[i];
    stream.copy(copies_[i], t.address, t.bytes, quiet_token, sink);
  }
  LaneSet::Lane& lane = context_.lanes->lanes[0];
  stream.fill_zero(lane.marker, sizeof(uint64_t), token, sink);
}

Result<transport::WrittenPart> SnapshotStaging::write(
    const std::string& root, int64_t step, const std::string& writer,
    std::shared_ptr<transport::FileSystem> files) {
  const graph::Plan& plan = *context_.plan;
  std::vector<transport::StoredTensor> tensors;
  if (!as_on_host_ && natives_.empty()) {
    for (const TensorPlace& t : state_) natives_.emplace_back(static_cast<size_t>(t.type.bytes()));
  }
  for (size_t i = 0; i < copies_.size(); ++i) {
    const TensorPlace& t = state_[i];
    std::span<const std::byte> bytes(copies_[i], static_cast<size_t>(t.bytes));
    if (!as_on_host_) {
      SGA_TRY(context_.backend->read_tensor(natives_[i], t.type, copies_[i]).with_context(t.name));
      bytes = natives_[i];
    }
    const graph::Buffer& buffer = context_.buffer(t.buffer);
    tensors.push_back({t.name, whole_type(buffer),
                       slice_of(plan, buffer, plan.ranks[static_cast<size_t>(context_.rank)]),
                       bytes, segments_[i]});
  }
  transport::WriteOptions options;
  options.writer = writer;
  return transport::write_part(root, step, tensors, options, std::move(files));
}

Result<transport::WrittenPart> write_replica(const ProgramContext& context, const std::string& root,
                                             int64_t step, const std::string& writer) {
  const graph::Plan& plan = *context.plan;
  const graph::RankPlacement& place = plan.ranks[static_cast<size_t>(context.rank)];
  const int32_t first = graph::rank_at(plan, place.pp, 0, place.tp);
  if (first < 0 || plan.zero_stage != 0) return unsupported("the rank has no replica");
  const bool native =
      plan.storage == graph::StorageModel::kNative && context.backend->host_visible();
  std::vector<transport::StoredTensor> tensors;
  std::vector<std::vector<std::byte>> natives;
  natives.reserve(context.state.size());  // the tensors point into it
  for (const TensorPlace& t : context.state) {
    const graph::Buffer& buffer = context.buffer(t.buffer);
    if (!writes_state(plan, first, buffer)) continue;
    std::span<const std::byte> bytes(t.address, static_cast<size_t>(t.bytes));
    if (!native) {
      natives.emplace_back(static_cast<size_t>(t.type.bytes()));
      SGA_TRY(context.backend->read_tensor(natives.back(), t.type, t.address).with_context(t.name));
      bytes = natives.back();
    }
    tensors.push_back({t.name, whole_type(buffer), slice_of(plan, buffer, place), bytes,
                       segment_of(context, t.buffer)});
  }
  transport::WriteOptions options;
  options.writer = writer;
  return transport::write_part(root, step, tensors, options);
}

}  // namespace sgactor::actors
