#include "actors/runtime/program_context.h"

#include "actors/runtime/channel_log.h"
#include "graph/base/log.h"
#include "graph/base/units.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>
#include <system_error>
#include <thread>

namespace sgactor::actors {
namespace {

using graph::Buffer;
using graph::BufferId;
using graph::BufferKind;

constexpr int64_t kAlign = 256;
constexpr int64_t kMarkerStride = 64;
constexpr size_t kMostCompilers = 8;

double ms_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

class ContextBuilder {
 public:
  ContextBuilder(const ContextSpec& spec, ProgramContext& out) : spec_(spec), out_(out) {}

  Status build() {
    SGA_TRY(find_program());
    SGA_TRY(compile());
    SGA_TRY(lay_out());
    list_tensors();
    return find_roles();
  }

 private:
  Status find_program() {
    const graph::Plan& plan = *spec_.plan;
    if (spec_.rank < 0 || static_cast<size_t>(spec_.rank) >= plan.ranks.size()) {
      return invalid_plan(fmt::format("there is no logical rank {}", spec_.rank));
    }
    const int32_t program = plan.ranks[static_cast<size_t>(spec_.rank)].program;
    SGA_ASSIGN(out_.schedule, build_schedule(plan, program));
    out_.rank = spec_.rank;
    out_.plan = &plan;
    out_.program = &plan.programs[static_cast<size_t>(program)];
    out_.backend = spec_.backend;
    for (const Buffer& b : out_.program->buffers) {
      if (b.kind != BufferKind::kWorkspace && spec_.backend->storage_bytes(b.type) != b.bytes) {
        return invalid_plan(fmt::format(
            "buffer {} has {} bytes, {} stores it in {}: the plan is for another kind of backend",
            b.name, b.bytes, spec_.backend->info().device, spec_.backend->storage_bytes(b.type)));
      }
    }
    return {};
  }

  Status compile() {
    out_.executables.resize(spec_.plan->subgraphs.size());
    std::vector<bool> used(out_.executables.size(), false);
    for (const graph::Launch& l : out_.program->launches) {
      if (l.kind == graph::LaunchKind::kSubgraph) used[static_cast<size_t>(l.subgraph)] = true;
    }
    std::vector<size_t> wanted;
    for (size_t s = 0; s < used.size(); ++s) {
      if (used[s]) wanted.push_back(s);
    }
    return compile_all(wanted);
  }

  /// A device's libraries take their time to choose kernels, on one core each. Where kernels are
  /// the host's own there is nothing to wait for.
  Status compile_all(const std::vector<size_t>& wanted) {
    const size_t most = spec_.backend->host_visible() ? 1 : kMostCompilers;
    std::vector<Status> outcomes(wanted.size());
    std::atomic<size_t> next{0};
    const auto work = [&] {
      for (size_t i = next++; i < wanted.size(); i = next++) outcomes[i] = compile_one(wanted[i]);
    };
    {
      std::vector<std::jthread> helpers;
      try {
        for (size_t t = 1; t < std::min(most, wanted.size()); ++t) helpers.emplace_back(work);
      } catch (const std::system_error& e) {
        log::debug("{} threads compile: {}", helpers.size() + 1, e.what());
      }
      work();
    }
    for (const Status& s : outcomes) SGA_TRY(s);
    return {};
  }

  Status compile_one(size_t s) {
    const auto start = std::chrono::steady_clock::now();
    const graph::Subgraph& subgraph = spec_.plan->subgraphs[s];
    std::vector<kernels::Place> places;
    places.reserve(subgraph.places.size());
    for (const graph::ValuePlace& p : subgraph.places)
      places.push_back({static_cast<kernels::Place::Space>(p.space), p.index, p.offset});
    kernels::CompileRequest request;
    request.body = &subgraph.body;
    request.places = places;
    request.workspace_bytes = subgraph.workspace_bytes;
    request.name = subgraph.name;
    auto executable = spec_.backend->compile(request);
    if (!executable.ok()) return executable.status().with_context("compile " + subgraph.name);
    out_.executables[s] = std::move(executable).value();
    log::debug("compiled {} in {:.1f} ms", subgraph.name, ms_since(start));
    return {};
  }

  /// Address of the parameter `b` in the program that shares its memory, or null.
  Result<std::byte*> shared_address(const Buffer& b) const {
    std::byte* const none = nullptr;
    if (spec_.share_with == nullptr || b.kind != BufferKind::kParameter) return none;
    for (const TensorPlace& t : spec_.share_with->state) {
      if (t.name != b.name) continue;
      if (t.type == b.type && t.bytes == b.bytes) return t.address;
      return invalid_plan(fmt::format("parameter {} is {} in one plan and {} in the other", b.name,
                                      t.type.to_string(), b.type.to_string()));
    }
    return invalid_plan(fmt::format("parameter {} is in one plan only", b.name));
  }

  /// Alone, a program gets the plan's arena. With shared parameters it gets what is left: its
  /// other persistent buffers one after the other, then the transient part of the plan's arena.
  Status lay_out() {
    const std::vector<Buffer>& buffers = out_.program->buffers;
    out_.addresses.resize(buffers.size());
    const bool alone = spec_.share_with == nullptr;
    std::vector<int64_t> own(buffers.size(), -1);
    int64_t persistent_bytes = 0;
    int64_t first = std::numeric_limits<int64_t>::max();
    int64_t last = 0;
    for (size_t b = 0; b < buffers.size(); ++b) {
      SGA_ASSIGN(std::byte * shared, shared_address(buffers[b]));
      if (shared != nullptr) {
        out_.addresses[b].assign(1, shared);
      } else if (!alone && graph::is_persistent(buffers[b].kind)) {
        own[b] = persistent_bytes;
        persistent_bytes += round_up(buffers[b].bytes, kAlign);
      } else {
        for (int64_t offset : buffers[b].offsets) {
          first = std::min(first, offset);
          last = std::max(last, offset + round_up(buffers[b].bytes, kAlign));
        }
      }
    }
    first = alone ? 0 : std::min(first, last);
    const int64_t bytes = alone ? out_.program->arena_bytes : persistent_bytes + last - first;
    const std::string label = fmt::format("{} arena of rank {}", out_.plan->name, out_.rank);
    const auto start = std::chrono::steady_clock::now();
    SGA_ASSIGN(out_.arena, spec_.backend->allocate(bytes, label));
    log::debug("allocated {} in {:.1f} ms", label, ms_since(start));
    std::byte* const base = out_.arena->data();
    for (size_t b = 0; b < buffers.size(); ++b) {
      if (!out_.addresses[b].empty()) continue;
      if (own[b] >= 0) {
        out_.addresses[b].assign(1, base + own[b]);
        continue;
      }
      for (int64_t offset : buffers[b].offsets) {
        out_.addresses[b].push_back(base + persistent_bytes + offset - first);
      }
    }
    return {};
  }

  [[nodiscard]] TensorPlace place_of(BufferId b) const {
    const Buffer& buffer = out_.buffer(b);
    return {b, buffer.name, buffer.type, out_.address(b, 0), buffer.bytes};
  }

  void list_tensors() {
    for (size_t b = 0; b < out_.program->buffers.size(); ++b) {
      const auto id = static_cast<BufferId>(b);
      const BufferKind kind = out_.program->buffers[b].kind;
      if (kind == BufferKind::kParameter || kind == BufferKind::kMoment) {
        out_.state.push_back(place_of(id));
      } else if (kind == BufferKind::kScalar) {
        out_.scalars.push_back(place_of(id));
      } else if (kind == BufferKind::kAccumulator && is_added_to(id)) {
        out_.accumulators.push_back(place_of(id));
      }
    }
  }

  /// Whether the first launch that touches an accumulator reads it; launches are in the order of a
  /// micro-batch.
  [[nodiscard]] bool is_added_to(BufferId b) const {
    for (const graph::Launch& l : out_.program->launches) {
      const auto reads = [&](const graph::LaunchInput& in) { return in.buffer == b; };
      if (std::any_of(l.inputs.begin(), l.inputs.end(), reads)) return true;
      if (std::find(l.outputs.begin(), l.outputs.end(), b) != l.outputs.end()) return false;
    }
    return false;
  }

  /// What buffers mean is in the bodies' inputs and outputs.
  Status find_roles() {
    for (const graph::Launch& l : out_.program->launches) {
      if (l.kind != graph::LaunchKind::kSubgraph) continue;
      const graph::Graph& body = spec_.plan->subgraphs[static_cast<size_t>(l.subgraph)].body;
      for (size_t i = 0; i < l.inputs.size(); ++i) {
        if (body.inputs()[i].role == graph::Role::kTokens) out_.tokens = l.inputs[i].buffer;
        if (body.inputs()[i].role == graph::Role::kTargets) out_.targets = l.inputs[i].buffer;
      }
      for (size_t j = 0; j < l.outputs.size(); ++j) {
        const graph::Role role = body.outputs()[j].role;
        const bool reported = role == graph::Role::kLoss || role == graph::Role::kLogits ||
                              role == graph::Role::kMetric;
        const bool loss =
            role == graph::Role::kAccumulator && out_.buffer(l.outputs[j]).name == "loss";
        if (reported || loss) out_.reports.emplace_back(role, place_of(l.outputs[j]));
      }
    }
    for (BufferId b : out_.schedule.batch_buffers) {
      if (b != out_.tokens && b != out_.targets) {
        return invalid_plan(
            fmt::format("batch buffer {} is neither tokens nor targets", out_.buffer(b).name));
      }
    }
    return {};
  }

  const ContextSpec& spec_;
  ProgramContext& out_;
};

}  // namespace

LaneSet::~LaneSet() { synchronize(); }

void LaneSet::synchronize() {
  for (Lane& lane : lanes) {
    if (lane.stream) lane.stream->synchronize();
    if (lane.channel) lane.channel->wait();
  }
}

void LaneSet::abort(const Status& why) {
  for (Lane& lane : lanes) {
    if (lane.channel && !lane.channel->idle()) lane.channel->abort(why);
  }
}

const TensorPlace* ProgramContext::find_report(graph::Role role, std::string_view name) const {
  for (const auto& [r, place] : reports) {
    if (r == role && (name.empty() || place.name == name)) return &place;
  }
  return nullptr;
}

Result<std::shared_ptr<ProgramContext>> create_context(const ContextSpec& spec) {
  auto context = std::make_shared<ProgramContext>();
  SGA_TRY(ContextBuilder(spec, *context).build());
  return context;
}

Status create_lanes(const std::vector<ProgramContext*>& contexts,
                    transport::Collectives* collectives, Behaviours* behaviours, bool logged) {
  auto set = std::make_shared<LaneSet>();
  size_t num_lanes = 0;
  int64_t scratch_bytes = 0;
  for (const ProgramContext* c : contexts) {
    num_lanes = std::max(num_lanes, c->program->lanes.size());
    for (const auto& e : c->executables) {
      if (e) scratch_bytes = std::max(scratch_bytes, e->scratch_bytes());
    }
  }
  kernels::Backend& backend = *contexts.front()->backend;
  SGA_ASSIGN(set->markers,
             backend.allocate(kMarkerStride * static_cast<int64_t>(num_lanes), "lane markers"));
  for (size_t i = 0; i < num_lanes; ++i) {
    LaneSet::Lane& lane = set->lanes.emplace_back();
    lane.marker = set->markers->data() + kMarkerStride * static_cast<int64_t>(i);
    const ProgramContext& first = *contexts.front();
    if (i < first.program->lanes.size() &&
        first.program->lanes[i].kind == graph::LaneKind::kCommunication) {
      const ChannelSpec spec{first.plan, first.rank, static_cast<int32_t>(i), first.backend,
                             collectives};
      SGA_ASSIGN(lane.channel, create_channel(spec));
      if (logged) lane.channel = create_logged_channel(spec, std::move(lane.channel));
      if (behaviours == nullptr) continue;
      SGA_ASSIGN(lane.channel, behaviours->stand_in(spec, std::move(lane.channel)));
      continue;
    }
    if (scratch_bytes > 0) {
      SGA_ASSIGN(lane.scratch,
                 backend.allocate(scratch_bytes, fmt::format("scratch of lane {}", i)));
    }
    SGA_ASSIGN(lane.stream, backend.create_stream());
  }
  for (ProgramContext* c : contexts) c->lanes = set;
  return {};
}

Status create_streams(ProgramContext& context) {
  auto set = std::make_shared<LaneSet>();
  kernels::Backend& backend = *context.backend;
  int64_t scratch_bytes = 0;
  for (const auto& e : context.executables) {
    if (e) scratch_bytes = std::max(scratch_bytes, e->scratch_bytes());
  }
  for (const graph::Lane& planned : context.program->lanes) {
    LaneSet::Lane& lane = set->lanes.emplace_back();
    if (planned.kind == graph::LaneKind::kCommunication) continue;
    if (scratch_bytes > 0) {
      SGA_ASSIGN(lane.scratch, backend.allocate(scratch_bytes, "scratch of " + planned.name));
    }
    SGA_ASSIGN(lane.stream, backend.create_stream());
  }
  context.lanes = set;
  return {};
}

TensorType whole_type(const Buffer& buffer) {
  return buffer.slice.sharded() ? TensorType{buffer.type.dtype, buffer.slice.full} : buffer.type;
}

std::optional<transport::TensorSlice> slice_of(const graph::Plan& plan, const Buffer& buffer,
                                               const graph::RankPlacement& place) {
  const graph::StateSlice& s = buffer.slice;
  if (!s.sharded()) return std::nullopt;
  transport::TensorSlice out;
  if (s.tp_dim >= 0) {
    out.dim = s.tp_dim;
    out.extent = (s.full.dim(s.tp_dim) + plan.mesh.tp - 1) / plan.mesh.tp;
    out.begin = place.tp * out.extent;
  }
  out.count = buffer.type.num_elements();
  out.first = s.dp_piece > 0 ? place.dp * s.dp_piece : 0;
  return out;
}

bool writes_state(const graph::Plan& plan, int32_t rank, const Buffer& buffer) {
  const graph::RankPlacement& me = plan.ranks[static_cast<size_t>(rank)];
  if (buffer.slice.dp_piece == 0 && me.dp > 0) return false;
  if (buffer.slice.tp_dim < 0 && me.tp > 0) return false;
  // Tied parameters lie on two stages.
  return std::none_of(plan.ranks.begin(), plan.ranks.end(), [&](const graph::RankPlacement& p) {
    if (p.pp >= me.pp) return false;
    const std::vector<Buffer>& buffers = plan.programs[static_cast<size_t>(p.program)].buffers;
    return std::any_of(buffers.begin(), buffers.end(), [&](const Buffer& b) {
      return b.kind == buffer.kind && b.name == buffer.name;
    });
  });
}

namespace {

/// Zeros put into a device's memory by the device.
class ZeroFill final : private kernels::CompletionSink {
 public:
  Status add(kernels::Backend& backend, const TensorPlace& place) {
    if (!stream_) {
      SGA_ASSIGN(stream_, backend.create_stream());
    }
    stream_->fill_zero(place.address, place.bytes, 0, *this);
    return {};
  }
  Status finish() {
    if (stream_) stream_->synchronize();
    return status_;
  }

 private:
  /// All on the stream's one thread of completions; read after synchronize().
  void on_complete(uint64_t /*token*/, const Status& status,
                   kernels::LaunchTiming /*timing*/) noexcept override {
    if (status_.ok()) status_ = status;
  }
  Status status_;
  std::unique_ptr<kernels::Stream> stream_;
};

/// Whether `place` was filled by the device itself.
Result<bool> draw(kernels::Backend& backend, const TensorPlace& place,
                  const transport::StateSource& source) {
  const auto numbers = source.numbers(place.name, place.type);
  if (!numbers) return false;
  const Status s = backend.fill_normal(place.address, place.type, *numbers);
  if (!s.ok() && s.code() != Code::kUnsupported) return s.with_context(place.name);
  return s.ok();
}

}  // namespace

Status load_state(const ProgramContext& context, const transport::StateSource& source) {
  const graph::Plan& plan = *context.plan;
  std::vector<std::byte> whole;
  std::vector<std::byte> part;
  ZeroFill zeros;
  for (const TensorPlace& t : context.state) {
    if (source.is_zero(t.name)) {
      SGA_TRY(zeros.add(*context.backend, t));
      continue;
    }
    const Buffer& buffer = context.buffer(t.buffer);
    const TensorType type = whole_type(buffer);
    const auto slice = slice_of(plan, buffer, plan.ranks[static_cast<size_t>(context.rank)]);
    if (!slice && type == t.type) {
      // A device that can draw the numbers saves the host their making and their way.
      SGA_ASSIGN(const bool drawn, draw(*context.backend, t, source));
      if (drawn) continue;
    }
    whole.resize(static_cast<size_t>(type.bytes()));
    SGA_TRY(source.load(t.name, type, whole));
    if (slice) {
      SGA_TRY(transport::check_slice(type.shape, *slice).with_context(t.name));
      part.resize(static_cast<size_t>(t.type.bytes()));
      transport::cut_slice(whole, type, *slice, part);
    }
    const std::vector<std::byte>& native = slice ? part : whole;
    SGA_TRY(context.backend->write_tensor(t.address, t.type, native).with_context(t.name));
  }
  return zeros.finish();
}

void enqueue_launch(const ProgramContext& context, graph::LaunchId l, int64_t step,
                    int32_t micro_batch, LaunchPointers& pointers, uint64_t token,
                    kernels::CompletionSink& sink) {
  const graph::Launch& launch = context.launch(l);
  const auto at = [&](BufferId b) {
    return context.address(b, micro_batch % context.buffer(b).num_slots);
  };
  pointers.inputs.resize(launch.inputs.size());
  pointers.outputs.resize(launch.outputs.size());
  for (size_t i = 0; i < launch.inputs.size(); ++i)
    pointers.inputs[i] = at(launch.inputs[i].buffer);
  for (size_t j = 0; j < launch.outputs.size(); ++j) pointers.outputs[j] = at(launch.outputs[j]);
  LaneSet::Lane& lane = context.lanes->lanes[static_cast<size_t>(launch.lane)];
  if (lane.channel) {
    return lane.channel->start(l, step, micro_batch, pointers.inputs, pointers.outputs, token,
                               sink);
  }
  kernels::LaunchArgs args;
  args.inputs = pointers.inputs;
  args.outputs = pointers.outputs;
  args.workspace = launch.workspace == graph::kNoBuffer ? nullptr : at(launch.workspace);
  args.scratch = lane.scratch ? lane.scratch->data() : nullptr;
  lane.stream->launch(*context.executables[static_cast<size_t>(launch.subgraph)], args, token,
                      sink);
}

}  // namespace sgactor::actors
