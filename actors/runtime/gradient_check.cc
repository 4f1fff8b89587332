#include "actors/runtime/gradient_check.h"

#include "actors/runtime/first_failure.h"
#include "actors/runtime/rank_setup.h"
#include "graph/base/hash.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace sgactor::actors {
namespace {

using graph::LaunchKind;

bool communicates(const graph::Launch& launch) { return launch.kind != LaunchKind::kSubgraph; }

/// Between replicas.
bool is_data_parallel(const graph::Plan& plan, const graph::Launch& launch) {
  const auto group = static_cast<size_t>(launch.communication.group);
  return group >= plan.groups.size() || plan.groups[group].axis == graph::MeshAxis::kDp;
}

int32_t replica(const graph::Plan& plan, int32_t rank, int32_t further) {
  const graph::RankPlacement& me = plan.ranks[static_cast<size_t>(rank)];
  return graph::rank_at(plan, me.pp, (me.dp + further) % plan.mesh.dp, me.tp);
}

/// The firing of an input's producer whose result the firing for `micro_batch` reads.
int32_t firing_of(const graph::LaunchInput& in, int32_t num_firings, int32_t micro_batch) {
  const bool each = in.edge == graph::EdgeKind::kSameMicroBatch && num_firings > 1;
  return each ? micro_batch : num_firings - 1;
}

/// Launches before the update that read, through whatever others, what other replicas have sent and
/// no replica has by itself.
std::vector<bool> depend_on_others(const graph::Plan& plan, const graph::RankProgram& program) {
  const std::vector<bool> shared = shared_gathers(program);
  std::vector<bool> out(program.launches.size(), false);
  for (bool grown = true; grown;) {
    grown = false;
    for (size_t l = 0; l < program.launches.size(); ++l) {
      if (out[l] || program.launches[l].phase == graph::Phase::kUpdate) continue;
      for (const graph::LaunchInput& in : program.launches[l].inputs) {
        // State has no producer: who executes this again has it.
        if (in.producer == graph::kNoLaunch) continue;
        const auto p = static_cast<size_t>(in.producer);
        const graph::Launch& producer = program.launches[p];
        const bool mixed = communicates(producer) && is_data_parallel(plan, producer);
        if (out[p] || (mixed && !shared[p])) out[l] = true;
      }
      grown = grown || out[l];
    }
  }
  return out;
}

}  // namespace

std::vector<bool> shared_gathers(const graph::RankProgram& program) {
  const auto same_for_all = [&](const graph::LaunchInput& in) {
    if (in.producer != graph::kNoLaunch) return true;  // as its producer is, below
    const graph::BufferKind kind = program.buffers[static_cast<size_t>(in.buffer)].kind;
    return kind == graph::BufferKind::kParameter || kind == graph::BufferKind::kMoment ||
           kind == graph::BufferKind::kScalar;
  };
  const size_t n = program.launches.size();
  std::vector<bool> of_state(n, false);
  for (size_t l = 0; l < n; ++l) {
    const graph::Launch& launch = program.launches[l];
    of_state[l] = launch.phase != graph::Phase::kUpdate &&
                  (launch.kind == LaunchKind::kSubgraph || launch.kind == LaunchKind::kAllGather) &&
                  std::all_of(launch.inputs.begin(), launch.inputs.end(), same_for_all);
  }
  for (bool shrunk = true; shrunk;) {
    shrunk = false;
    for (size_t l = 0; l < n; ++l) {
      if (!of_state[l]) continue;
      for (const graph::LaunchInput& in : program.launches[l].inputs) {
        if (in.producer == graph::kNoLaunch || of_state[static_cast<size_t>(in.producer)]) continue;
        of_state[l] = false;
        shrunk = true;
      }
    }
  }
  for (size_t l = 0; l < n; ++l) {
    of_state[l] = of_state[l] && program.launches[l].kind == LaunchKind::kAllGather;
  }
  return of_state;
}

std::vector<bool> own_posts(const graph::Plan& plan, const graph::RankProgram& program) {
  const std::vector<bool> shared = shared_gathers(program);
  std::vector<bool> out = depend_on_others(plan, program);
  for (size_t l = 0; l < program.launches.size(); ++l) {
    const graph::Launch& launch = program.launches[l];
    // State is not computed, and what is only handed on is somebody else's.
    const bool computed =
        std::all_of(launch.inputs.begin(), launch.inputs.end(), [&](const graph::LaunchInput& in) {
          return in.producer != graph::kNoLaunch &&
                 !communicates(program.launches[static_cast<size_t>(in.producer)]);
        });
    out[l] = !out[l] && communicates(launch) && !shared[l] && !launch.inputs.empty() && computed &&
             launch.phase != graph::Phase::kUpdate;
  }
  return out;
}

uint64_t post_hash(int32_t key, int32_t micro_batch, uint64_t hash_of_inputs) {
  const uint64_t name = mix64(static_cast<uint64_t>(key), static_cast<uint64_t>(micro_batch));
  return mix64(name, hash_of_inputs);
}

int32_t buddy_of(const graph::Plan& plan, int32_t rank) {
  return replica(plan, rank, plan.mesh.dp / 2);
}

int32_t checker_of(const graph::Plan& plan, int32_t rank) {
  return replica(plan, rank, plan.mesh.dp - plan.mesh.dp / 2);
}

int32_t umpire_of(const graph::Plan& plan, int32_t rank) {
  return plan.mesh.dp < 3 ? rank : replica(plan, rank, 1);
}

Liar find_liar(uint64_t own, uint64_t checker, uint64_t umpire) {
  return umpire == own && checker != own ? Liar::kChecker : Liar::kRank;
}

Status check_verifiable(const graph::Plan& plan) {
  for (const graph::RankProgram& program : plan.programs) {
    const std::vector<bool> own = own_posts(plan, program);
    if (std::none_of(own.begin(), own.end(), [](bool b) { return b; })) {
      return unsupported("a rank computes nothing alone that it sends");
    }
  }
  return {};
}

Result<std::unique_ptr<GradientCheck>> GradientCheck::create(
    const std::shared_ptr<const ProgramContext>& training, const transport::Sampler& sampler,
    transport::Collectives* collectives, int64_t interval) {
  SGA_TRY(check_verifiable(*training->plan));
  std::unique_ptr<GradientCheck> out(new GradientCheck);
  out->training_ = training;
  out->sampler_ = &sampler;
  const ContextSpec spec{training->plan, training->rank, training->backend, training.get()};
  SGA_ASSIGN(out->context_, create_context(spec));
  SGA_ASSIGN(out->staging_, create_staging(*out->context_));
  SGA_TRY(create_streams(*out->context_));
  out->list_items();
  out->keep_results(interval);
  if (out->exchanges()) {
    if (collectives == nullptr) return invalid_argument("ranks communicate without a transport");
    out->exchange_ = std::make_unique<RecordExchange>(*collectives, training->rank);
  }
  out->service_ = create_thread_service("sga-check");
  return out;
}

GradientCheck::GradientCheck() = default;
GradientCheck::~GradientCheck() = default;

void GradientCheck::submit(int32_t rank, int64_t step, int64_t generation,
                           std::function<void(const Result<uint64_t>&)> done) {
  auto hash = std::make_shared<Result<uint64_t>>(internal_error("not executed"));
  service_->submit(
      [this, rank, step, generation, hash] {
        *hash = execute(rank, step, generation);
        return hash->status();
      },
      [hash, done = std::move(done)](const Status& status) {
        done(status.ok() ? *hash : Result<uint64_t>(status));
      });
}

void GradientCheck::offer(int32_t to, int64_t step, int64_t generation,
                          std::function<void(const Status&)> failed) {
  service_->submit(
      [this, to, step, generation]() -> Status {
        SGA_ASSIGN(std::vector<std::byte> record, own_record(step));
        exchange_->send(to, step, generation, std::move(record));
        return {};
      },
      [failed = std::move(failed)](const Status& status) {
        if (!status.ok()) failed(status);
      });
}

// --- what was heard ---

size_t GradientCheck::bytes_of(graph::BufferId buffer) const {
  const graph::Buffer& b = context_->buffer(buffer);
  return static_cast<size_t>(context_->backend->host_visible() ? b.bytes : b.type.bytes());
}

void GradientCheck::keep_results(int64_t interval) {
  std::vector<Channel::Keeps> keeps(context_->program->launches.size(), Channel::Keeps::kNone);
  const std::vector<bool> shared = shared_gathers(*context_->program);
  for (size_t l = 0; l < keeps.size(); ++l) {
    if (shared[l]) keeps[l] = Channel::Keeps::kOnce;
  }
  for (const auto& [firing, offset] : heard_) {
    keeps[static_cast<size_t>(firing.first)] = Channel::Keeps::kEach;
  }
  for (LaneSet::Lane& lane : training_->lanes->lanes) {
    if (lane.channel) lane.channel->keep_results(keeps, interval);
  }
}

Result<std::shared_ptr<const Channel::Results>> GradientCheck::kept(const LaunchFiring& firing,
                                                                    int64_t step) const {
  const graph::Launch& launch = context_->launch(firing.first);
  const auto& channel = training_->lanes->lanes[static_cast<size_t>(launch.lane)].channel;
  auto kept = channel ? channel->kept(firing.first, firing.second, step) : nullptr;
  if (!kept) return internal_error(launch.name + ": its results were not kept");
  return kept;
}

Result<std::vector<std::byte>> GradientCheck::own_record(int64_t step) const {
  std::vector<std::byte> out(record_bytes_);
  for (const auto& [firing, offset] : heard_) {
    SGA_ASSIGN(const auto results, kept(firing, step));
    size_t at = offset;
    for (const std::vector<std::byte>& bytes : *results) {
      std::copy(bytes.begin(), bytes.end(), out.begin() + static_cast<std::ptrdiff_t>(at));
      at += bytes.size();
    }
  }
  return out;
}

void GradientCheck::list_items() {
  const ProgramContext& c = *context_;
  const std::vector<bool> skipped = depend_on_others(*c.plan, *c.program);
  for (const LaneItem& item : c.schedule.lanes[0]) {
    if (item.kind == ItemKind::kCommit) break;
    if (item.kind == ItemKind::kFeed)
      items_.push_back({true, graph::kNoLaunch, item.micro_batch, {}, {}});
    if (item.kind != ItemKind::kLaunch || skipped[static_cast<size_t>(item.launch)]) continue;
    items_.push_back({false, item.launch, item.micro_batch, {}, {}});
  }
  list_fills();
  list_posts();
}

/// The plan gives results their place from before their first reader to behind their last one.
void GradientCheck::list_fills() {
  const ProgramContext& c = *context_;
  const std::vector<bool> shared = shared_gathers(*c.program);
  std::set<LaunchFiring> filled;
  for (Item& item : items_) {
    if (item.feeds) continue;
    for (const graph::LaunchInput& in : c.launch(item.launch).inputs) {
      if (in.producer == graph::kNoLaunch || !communicates(c.launch(in.producer))) continue;
      const int32_t firings = c.schedule.launches[static_cast<size_t>(in.producer)].num_firings;
      const LaunchFiring firing(in.producer, firing_of(in, firings, item.micro_batch));
      if (!filled.insert(firing).second) continue;
      item.fills.push_back(firing);
      if (shared[static_cast<size_t>(in.producer)]) continue;
      heard_[firing] = record_bytes_;
      for (const graph::BufferId b : c.launch(in.producer).outputs) record_bytes_ += bytes_of(b);
    }
  }
}

void GradientCheck::list_posts() {
  const ProgramContext& c = *context_;
  const std::vector<bool> own = own_posts(*c.plan, *c.program);
  // Place in items_ of each firing of lane 0.
  std::map<std::pair<graph::LaunchId, int32_t>, size_t> places;
  for (size_t i = 0; i < items_.size(); ++i) {
    if (!items_[i].feeds) places[{items_[i].launch, items_[i].micro_batch}] = i;
  }
  for (size_t lane = 1; lane < c.schedule.lanes.size(); ++lane) {
    for (const LaneItem& item : c.schedule.lanes[lane]) {
      if (item.kind != ItemKind::kLaunch || !own[static_cast<size_t>(item.launch)]) continue;
      size_t last = 0;
      for (const graph::LaunchInput& in : c.launch(item.launch).inputs) {
        if (in.producer == graph::kNoLaunch) continue;
        const int32_t firings = c.schedule.launches[static_cast<size_t>(in.producer)].num_firings;
        const int32_t m = firing_of(in, firings, item.micro_batch);
        if (const auto it = places.find({in.producer, m}); it != places.end()) {
          last = std::max(last, it->second);
        }
      }
      items_[last].posts.emplace_back(item.launch, item.micro_batch);
    }
  }
}

/// What shared gathers bring this rank has heard itself; all else is in the other one's record.
Status GradientCheck::fill(const LaunchFiring& firing, int64_t step,
                           const std::vector<std::byte>& record) {
  const graph::Launch& launch = context_->launch(firing.first);
  const auto recorded = heard_.find(firing);
  std::shared_ptr<const Channel::Results> results;
  if (recorded == heard_.end()) {
    SGA_ASSIGN(results, kept(firing, step));
  }
  size_t at = recorded == heard_.end() ? 0 : recorded->second;
  kernels::Stream& stream = *context_->lanes->lanes[0].stream;
  FirstFailure failure;
  for (size_t i = 0; i < launch.outputs.size(); ++i) {
    const graph::Buffer& buffer = context_->buffer(launch.outputs[i]);
    const size_t bytes = bytes_of(launch.outputs[i]);
    const std::byte* from = results != nullptr ? (*results)[i].data() : record.data() + at;
    at += bytes;
    std::byte* to = context_->address(launch.outputs[i], firing.second % buffer.num_slots);
    if (context_->backend->host_visible()) {
      stream.copy(to, from, buffer.bytes, 0, failure);
      continue;
    }
    // Earlier launches may read what lies there.
    stream.synchronize();
    SGA_TRY(context_->backend->write_tensor(to, buffer.type, std::span(from, bytes)));
  }
  stream.synchronize();
  return failure.status();
}

Status GradientCheck::begin(BatchSource& source, int64_t step) {
  // The numbers of the step come with its first micro-batch.
  SGA_TRY(staging_->prepare(*context_, source, step, 0, 0));
  FirstFailure failure;
  kernels::Stream& stream = *context_->lanes->lanes[0].stream;
  const std::vector<std::byte*>& staged = staging_->scalars[static_cast<size_t>(step % 2)];
  for (size_t i = 0; i < context_->scalars.size(); ++i) {
    const TensorPlace& scalar = context_->scalars[i];
    stream.copy(scalar.address, staged[i], scalar.bytes, 0, failure);
  }
  for (const TensorPlace& t : context_->accumulators) {
    stream.fill_zero(t.address, t.bytes, 0, failure);
  }
  stream.synchronize();
  return failure.status();
}

Status GradientCheck::feed(BatchSource& source, int64_t step, int32_t micro_batch) {
  const FeedStaging::Slot& slot = staging_->slots.front();
  if (slot.buffers.empty()) return {};
  SGA_TRY(staging_->prepare(*context_, source, step, micro_batch, 0));
  FirstFailure failure;
  kernels::Stream& stream = *context_->lanes->lanes[0].stream;
  for (size_t b = 0; b < slot.buffers.size(); ++b) {
    const graph::BufferId id = context_->schedule.batch_buffers[b];
    const graph::Buffer& buffer = context_->buffer(id);
    stream.copy(context_->address(id, micro_batch % buffer.num_slots), slot.buffers[b],
                buffer.bytes, 0, failure);
  }
  stream.synchronize();
  return failure.status();
}

Result<uint64_t> GradientCheck::hash_inputs(graph::LaunchId launch, int32_t micro_batch) const {
  uint64_t hash = 0;
  std::vector<std::byte> native;
  for (const graph::LaunchInput& in : context_->launch(launch).inputs) {
    const graph::Buffer& buffer = context_->buffer(in.buffer);
    const std::byte* at = context_->address(in.buffer, micro_batch % buffer.num_slots);
    auto bytes = std::span(at, static_cast<size_t>(buffer.bytes));
    if (!context_->backend->host_visible()) {
      native.resize(static_cast<size_t>(buffer.type.bytes()));
      SGA_TRY(context_->backend->read_tensor(native, buffer.type, at));
      bytes = native;
    }
    hash = mix64(hash, hash64(bytes));
  }
  return hash;
}

Result<uint64_t> GradientCheck::execute(int32_t rank, int64_t step, int64_t generation) {
  const ProgramContext& c = *context_;
  std::vector<std::byte> record;
  if (exchanges() && rank == c.rank) {
    SGA_ASSIGN(record, own_record(step));
  } else if (exchanges()) {
    SGA_ASSIGN(record, exchange_->receive(rank, step, generation, record_bytes_));
  }
  const graph::BufferId fed = c.tokens != graph::kNoBuffer ? c.tokens : c.targets;
  const int64_t rows = fed == graph::kNoBuffer ? 0 : c.buffer(fed).type.shape.dim(0);
  const auto source = create_training_source(*sampler_, c.plan->ranks[static_cast<size_t>(rank)].dp,
                                             c.schedule.num_micro_batches, rows);
  SGA_TRY(begin(*source, step));
  uint64_t out = 0;
  FirstFailure failure;
  LaunchPointers pointers;
  for (const Item& item : items_) {
    if (item.feeds) {
      SGA_TRY(feed(*source, step, item.micro_batch));
      continue;
    }
    for (const LaunchFiring& firing : item.fills) SGA_TRY(fill(firing, step, record));
    enqueue_launch(c, item.launch, step, item.micro_batch, pointers, 0, failure);
    if (item.posts.empty()) continue;
    c.lanes->lanes[0].stream->synchronize();
    SGA_TRY(failure.status());
    for (const auto& [launch, micro_batch] : item.posts) {
      SGA_ASSIGN(const uint64_t hash, hash_inputs(launch, micro_batch));
      out += post_hash(c.launch(launch).communication.key, micro_batch, hash);
    }
  }
  c.lanes->lanes[0].stream->synchronize();
  SGA_TRY(failure.status());
  return out;
}

}  // namespace sgactor::actors
