#include "actors/runtime/gradient_check.h"

#include "actors/runtime/first_failure.h"
#include "actors/runtime/rank_setup.h"
#include "graph/base/hash.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

namespace sgactor::actors {
namespace {

using graph::LaunchKind;

bool reduces(const graph::Launch& launch) {
  return launch.kind == LaunchKind::kAllReduce || launch.kind == LaunchKind::kReduceScatter;
}

int32_t replica(const graph::Plan& plan, int32_t rank, int32_t further) {
  const graph::RankPlacement& me = plan.ranks[static_cast<size_t>(rank)];
  return graph::rank_at(plan, me.pp, (me.dp + further) % plan.mesh.dp, me.tp);
}

/// Launches before the update that read, through whatever others, what communication has brought.
std::vector<bool> depend_on_others(const graph::RankProgram& program) {
  std::vector<bool> out(program.launches.size(), false);
  for (bool grown = true; grown;) {
    grown = false;
    for (size_t l = 0; l < program.launches.size(); ++l) {
      if (out[l] || program.launches[l].phase == graph::Phase::kUpdate) continue;
      for (const graph::LaunchInput& in : program.launches[l].inputs) {
        // State has no producer: who executes this again has it.
        if (in.producer == graph::kNoLaunch) continue;
        const auto p = static_cast<size_t>(in.producer);
        if (out[p] || program.launches[p].kind != LaunchKind::kSubgraph) out[l] = true;
      }
      grown = grown || out[l];
    }
  }
  return out;
}

}  // namespace

std::vector<bool> own_posts(const graph::RankProgram& program) {
  std::vector<bool> out = depend_on_others(program);
  for (size_t l = 0; l < program.launches.size(); ++l) {
    const graph::Launch& launch = program.launches[l];
    out[l] = !out[l] && reduces(launch) && launch.phase != graph::Phase::kUpdate;
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

int32_t umpire_of(const graph::Plan& plan, int32_t rank) {
  return plan.mesh.dp < 3 ? rank : replica(plan, rank, 1);
}

Liar find_liar(uint64_t own, uint64_t checker, uint64_t umpire) {
  return umpire == own && checker != own ? Liar::kChecker : Liar::kRank;
}

Status check_verifiable(const graph::Plan& plan) {
  if (plan.mesh.pp > 1) return unsupported("stages of a pipeline wait for each other");
  if (plan.mesh.tp > 1) return unsupported("tensor-parallel ranks wait for each other");
  for (const graph::RankProgram& program : plan.programs) {
    const std::vector<bool> own = own_posts(program);
    if (std::none_of(own.begin(), own.end(), [](bool b) { return b; })) {
      return unsupported("a rank computes nothing alone that it sends");
    }
  }
  return {};
}

Result<std::unique_ptr<GradientCheck>> GradientCheck::create(
    const std::shared_ptr<const ProgramContext>& training, const transport::Sampler& sampler) {
  SGA_TRY(check_verifiable(*training->plan));
  std::unique_ptr<GradientCheck> out(new GradientCheck);
  out->training_ = training;
  out->sampler_ = &sampler;
  const ContextSpec spec{training->plan, training->rank, training->backend, training.get()};
  SGA_ASSIGN(out->context_, create_context(spec));
  SGA_ASSIGN(out->staging_, create_staging(*out->context_));
  SGA_TRY(create_streams(*out->context_));
  out->list_items();
  out->service_ = create_thread_service("sga-check");
  return out;
}

GradientCheck::GradientCheck() = default;
GradientCheck::~GradientCheck() = default;

void GradientCheck::submit(int32_t rank, int64_t step,
                           std::function<void(const Result<uint64_t>&)> done) {
  auto hash = std::make_shared<Result<uint64_t>>(internal_error("not executed"));
  service_->submit(
      [this, rank, step, hash] {
        *hash = execute(rank, step);
        return hash->status();
      },
      [hash, done = std::move(done)](const Status& status) {
        done(status.ok() ? *hash : Result<uint64_t>(status));
      });
}

void GradientCheck::list_items() {
  const ProgramContext& c = *context_;
  const std::vector<bool> own = own_posts(*c.program);
  const std::vector<bool> skipped = depend_on_others(*c.program);
  // Place in items_ of each firing of lane 0.
  std::map<std::pair<graph::LaunchId, int32_t>, size_t> places;
  for (const LaneItem& item : c.schedule.lanes[0]) {
    if (item.kind == ItemKind::kCommit) break;
    if (item.kind == ItemKind::kFeed)
      items_.push_back({true, graph::kNoLaunch, item.micro_batch, {}});
    if (item.kind != ItemKind::kLaunch || skipped[static_cast<size_t>(item.launch)]) continue;
    places[{item.launch, item.micro_batch}] = items_.size();
    items_.push_back({false, item.launch, item.micro_batch, {}});
  }
  for (size_t lane = 1; lane < c.schedule.lanes.size(); ++lane) {
    for (const LaneItem& item : c.schedule.lanes[lane]) {
      if (item.kind != ItemKind::kLaunch || !own[static_cast<size_t>(item.launch)]) continue;
      size_t last = 0;
      for (const graph::LaunchInput& in : c.launch(item.launch).inputs) {
        if (in.producer == graph::kNoLaunch) continue;
        const int32_t firings = c.schedule.launches[static_cast<size_t>(in.producer)].num_firings;
        const bool each = in.edge == graph::EdgeKind::kSameMicroBatch && firings > 1;
        const int32_t m = each ? item.micro_batch : firings - 1;
        if (const auto it = places.find({in.producer, m}); it != places.end()) {
          last = std::max(last, it->second);
        }
      }
      items_[last].posts.emplace_back(item.launch, item.micro_batch);
    }
  }
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

Result<uint64_t> GradientCheck::execute(int32_t rank, int64_t step) {
  const ProgramContext& c = *context_;
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
