#include "actors/runtime/rank_setup.h"

#include "graph/base/log.h"
#include "graph/base/units.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace sgactor::actors {
namespace {

constexpr int64_t kAlign = 256;
// Enough to hide preparation; more would only hold memory.
constexpr int32_t kMostFeedSlots = 4;
// What WorkName packs.
constexpr int64_t kMostSteps = int64_t{1} << 36;
constexpr int32_t kMostMicroBatches = 65536;
constexpr size_t kMostLanes = 64;

/// Native bytes of a number as the scalar's type wants it.
Result<std::vector<std::byte>> scalar_bytes(const TensorPlace& scalar, double value) {
  std::vector<std::byte> out(static_cast<size_t>(scalar.type.bytes()));
  if (scalar.type == TensorType{DType::kF64, {}}) {
    std::memcpy(out.data(), &value, sizeof value);
  } else if (scalar.type == TensorType{DType::kF32, {}}) {
    const auto narrow = static_cast<float>(value);
    std::memcpy(out.data(), &narrow, sizeof narrow);
  } else if (scalar.type == TensorType{DType::kI32, {}}) {
    const auto whole = static_cast<int32_t>(value);
    std::memcpy(out.data(), &whole, sizeof whole);
  } else {
    return invalid_plan(fmt::format("scalar {} is {}", scalar.name, scalar.type.to_string()));
  }
  return out;
}

Result<double> scalar_value(const ProgramContext& context, const TensorPlace& scalar, int64_t step,
                            const BatchSource::StepNumbers& numbers) {
  if (scalar.name == "step") return static_cast<double>(step);
  if (scalar.name == "inv_valid_tokens") return 1.0 / static_cast<double>(numbers.valid_tokens);
  if (scalar.name == "tp_index") {
    return context.plan->ranks[static_cast<size_t>(context.rank)].tp;
  }
  return invalid_plan(fmt::format("nobody sets scalar {}", scalar.name));
}

std::span<const std::byte> bytes_of(const std::vector<int32_t>& v) {
  return std::as_bytes(std::span<const int32_t>(v));
}

Status check_batch_buffer(const ProgramContext& c, graph::BufferId b) {
  const TensorType& type = c.buffer(b).type;
  if (type.dtype == DType::kI32 && type.shape.rank() == 2) return {};
  return invalid_plan(fmt::format("batch buffer {} is {}, expected i32[rows, tokens]",
                                  c.buffer(b).name, type.to_string()));
}

Result<ProgramSetup> set_up_program(const ContextSpec& spec) {
  ProgramSetup out;
  SGA_ASSIGN(out.context, create_context(spec));
  SGA_ASSIGN(out.staging, create_staging(*out.context));
  return out;
}

Status check_plan(const graph::Plan& plan) {
  SGA_TRY(graph::verify_plan(plan));
  for (const graph::RankProgram& p : plan.programs) {
    if (p.num_micro_batches > kMostMicroBatches || p.lanes.size() > kMostLanes) {
      return invalid_plan(fmt::format("{} micro-batches on {} lanes, at most {} on {}",
                                      p.num_micro_batches, p.lanes.size(), kMostMicroBatches,
                                      kMostLanes));
    }
  }
  return {};
}

/// Update inputs to be kept, and those of steps before the first, whose updates are done again.
Status set_up_mirror(const TrainingSpec& spec, RankSetup& rank) {
  if (spec.mirror_root.empty() || spec.replicas) return {};
  if (spec.behaviours) {
    // What a strategy's channels keep, or its hook does behind a step, is in no update's inputs.
    return spec.redo_from == 0 ? Status() : unsupported("a strategy's updates cannot be redone");
  }
  auto inputs = UpdateInputs::create(rank.training.context, spec.mirror_root);
  if (!inputs.ok() && inputs.status().code() == Code::kUnsupported && spec.redo_from == 0) {
    log::info("update inputs are not kept: {}", inputs.status().message());
    return {};
  }
  SGA_TRY(inputs.status());
  rank.update_inputs = std::move(*inputs);
  if (spec.redo_from == 0 || spec.redo_from >= spec.first_step) return {};
  SGA_ASSIGN(rank.redone, rank.update_inputs->load_and_redo(spec.redo_from, spec.first_step - 1));
  return {};
}

}  // namespace

Status check_run(const TrainingSpec& spec, const TrainingInputs& inputs) {
  if (spec.first_step < 1 || spec.last_step >= kMostSteps) {
    return invalid_argument(
        fmt::format("steps {} to {}: the first is 1", spec.first_step, spec.last_step));
  }
  if (spec.scheduler_threads < 1) return invalid_argument("a run needs a scheduler thread");
  SGA_TRY(check_plan(*inputs.plan));
  if (validation_rank(spec, inputs) < 0) return {};
  return check_plan(*inputs.validation_plan).with_context("validation plan");
}

int32_t validation_rank(const TrainingSpec& spec, const TrainingInputs& inputs) {
  const bool asked = inputs.validation_plan != nullptr && spec.validation_interval > 0;
  return asked ? whole_model_rank(*inputs.plan) : -1;
}

int32_t whole_model_rank(const graph::Plan& plan) {
  const int32_t rank = graph::rank_at(plan, 0, 0, 0);
  if (rank < 0 || plan.mesh.pp > 1 || plan.mesh.tp > 1) return -1;
  const auto program = static_cast<size_t>(plan.ranks[static_cast<size_t>(rank)].program);
  const std::vector<graph::Buffer>& buffers = plan.programs[program].buffers;
  const bool whole = std::none_of(buffers.begin(), buffers.end(), [](const graph::Buffer& b) {
    return b.kind == graph::BufferKind::kParameter && b.slice.sharded();
  });
  return whole ? rank : -1;
}

Status FeedStaging::prepare(const ProgramContext& context, BatchSource& source, int64_t step,
                            int32_t micro_batch, int32_t slot) {
  Slot& s = slots[static_cast<size_t>(slot)];
  if (!s.buffers.empty()) SGA_TRY(source.fill(step, micro_batch, s.tokens, s.targets));
  for (size_t b = 0; b < s.buffers.size(); ++b) {
    const graph::BufferId id = context.schedule.batch_buffers[b];
    SGA_TRY(context.backend->write_tensor(s.buffers[b], context.buffer(id).type,
                                          bytes_of(id == context.tokens ? s.tokens : s.targets)));
  }
  if (micro_batch != 0) return {};
  const auto parity = static_cast<size_t>(step % 2);
  SGA_ASSIGN(numbers[parity], source.numbers(step));
  for (size_t i = 0; i < context.scalars.size(); ++i) {
    const TensorPlace& scalar = context.scalars[i];
    SGA_ASSIGN(const double value, scalar_value(context, scalar, step, numbers[parity]));
    SGA_ASSIGN(const std::vector<std::byte> native, scalar_bytes(scalar, value));
    SGA_TRY(context.backend->write_tensor(scalars[parity][i], scalar.type, native));
  }
  return {};
}

Result<std::unique_ptr<FeedStaging>> create_staging(const ProgramContext& context) {
  auto out = std::make_unique<FeedStaging>();
  const auto num_feeds = static_cast<int32_t>(context.schedule.feed_positions.size());
  const int32_t num_slots = std::min(2 * num_feeds, kMostFeedSlots);
  int64_t bytes = 0;
  std::vector<std::byte**> places;
  std::vector<int64_t> offsets;
  const auto reserve = [&](std::byte** place, int64_t n) {
    places.push_back(place);
    offsets.push_back(bytes);
    bytes += round_up(n, kAlign);
  };
  out->slots.resize(static_cast<size_t>(num_slots));
  for (FeedStaging::Slot& slot : out->slots) {
    slot.buffers.resize(context.schedule.batch_buffers.size());
    for (size_t b = 0; b < slot.buffers.size(); ++b) {
      const graph::BufferId id = context.schedule.batch_buffers[b];
      SGA_TRY(check_batch_buffer(context, id));
      const auto n = static_cast<size_t>(context.buffer(id).type.num_elements());
      (id == context.tokens ? slot.tokens : slot.targets).resize(n);
      reserve(&slot.buffers[b], context.buffer(id).bytes);
    }
  }
  for (std::vector<std::byte*>& scalars : out->scalars) {
    scalars.resize(context.scalars.size());
    for (size_t i = 0; i < scalars.size(); ++i) reserve(&scalars[i], context.scalars[i].bytes);
  }
  SGA_ASSIGN(out->memory, context.backend->allocate(std::max(bytes, kAlign), "feed staging"));
  for (size_t i = 0; i < places.size(); ++i) *places[i] = out->memory->data() + offsets[i];
  return out;
}

Result<RankSetup> set_up_rank(const TrainingSpec& spec, const TrainingInputs& inputs,
                              int32_t rank) {
  RankSetup out;
  out.rank = rank;
  ContextSpec training{inputs.plan, rank, inputs.backend, nullptr};
  SGA_ASSIGN(out.training, set_up_program(training));
  std::vector<ProgramContext*> contexts = {out.training.context.get()};
  if (rank == validation_rank(spec, inputs)) {
    ContextSpec validation{inputs.validation_plan, 0, inputs.backend, out.training.context.get()};
    SGA_ASSIGN(out.validation, set_up_program(validation));
    contexts.push_back(out.validation.context.get());
    out.validation.source =
        create_validation_source(*inputs.validation_sampler, spec.validation_batches);
  }
  // What a strategy keeps between operations no log describes.
  const bool logged = !spec.mirror_root.empty() && !spec.behaviours;
  SGA_TRY(create_lanes(contexts, inputs.collectives, spec.behaviours.get(), logged));
  const ProgramContext& c = *out.training.context;
  // The stages of a pipeline: the first reads tokens, the last targets, those between neither.
  const graph::BufferId fed = c.tokens != graph::kNoBuffer ? c.tokens : c.targets;
  const int64_t rows = fed == graph::kNoBuffer ? 0 : c.buffer(fed).type.shape.dim(0);
  out.training.source =
      create_training_source(*inputs.sampler, inputs.plan->ranks[static_cast<size_t>(rank)].dp,
                             c.schedule.num_micro_batches, rows);
  SGA_TRY(load_state(c, *inputs.initial_state));
  if (spec.behaviours) {
    SGA_ASSIGN(out.step_hook, spec.behaviours->step_hook(c, inputs.collectives));
  }
  SGA_TRY(set_up_mirror(spec, out));
  if (spec.verify_interval > 0) {
    if (!logged) return unsupported("steps can be verified only where posts are kept");
    SGA_ASSIGN(out.check, GradientCheck::create(out.training.context, *inputs.sampler,
                                                inputs.collectives, spec.verify_interval));
  }
  return out;
}

}  // namespace sgactor::actors
