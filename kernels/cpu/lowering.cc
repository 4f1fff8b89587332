#include "kernels/cpu/lowering.h"

#include <fmt/format.h>

#include <cstring>

namespace sgactor::kernels::cpu {

using graph::Op;
using graph::OpId;
using graph::ValueId;

Status Lowering::start() {
  body_ = request_.body;
  if (request_.places.size() != body_->values().size()) {
    return invalid_argument(fmt::format("{}: {} places for {} values", request_.name,
                                        request_.places.size(), body_->values().size()));
  }
  result_ = std::make_unique<CpuExecutable>();
  result_->name_ = request_.name;
  if (needs_widening(*body_)) {
    SGA_ASSIGN(widened_, widen_body(*body_, request_.places));
    body_ = &widened_.graph;
    request_.places = widened_.places;
    result_->step_scratch_offset_ = widened_.scratch_bytes;
  }
  const size_t num_values = body_->values().size();
  result_->resolved_.resize(num_values);
  result_->recipes_.resize(num_values);
  for (size_t v = 0; v < num_values; ++v) {
    result_->recipes_[v].place = request_.places[v];
    if (body_ != &widened_.graph || widened_.scratch_offsets[v] == WidenedBody::kPlaced) continue;
    result_->recipes_[v] = {.place = {.offset = widened_.scratch_offsets[v]}, .in_scratch = true};
  }
  skipped_.assign(body_->ops().size(), false);
  is_output_.assign(num_values, false);
  for (const graph::GraphOutput& out : body_->outputs()) is_output_[out.value] = true;
  num_uses_ = body_->use_counts();
  return {};
}

Status Lowering::lower_ops() {
  // All ops that are missing are named at once.
  std::string missing;
  for (OpId i = 0; i < body_->ops().size(); ++i) {
    if (skipped_[i]) continue;
    current_ = i;
    const Op& op = body_->op(i);
    const LowerFn lower = lowering_of(op.kind);
    const Status s = lower == nullptr ? no_kernel(op) : lower(*this, op);
    if (s.ok()) continue;
    if (s.code() != Code::kUnsupported) return s;
    if (missing.size() < 500) missing += (missing.empty() ? "" : "; ") + s.message();
  }
  return missing.empty() ? Status() : unsupported(missing);
}

Result<std::unique_ptr<CpuExecutable>> Lowering::build() {
  SGA_TRY(start());
  if (Status s = lower_ops(); !s.ok()) return s.with_context(request_.name);
  result_->scratch_bytes_ += result_->step_scratch_offset_;
  return std::move(result_);
}

void Lowering::add(Step step) {
  result_->steps_.push_back({.op = graph::op_info(body().op(current_).kind).name.data(),
                             .op_id = current_,
                             .run = std::move(step)});
}

void Lowering::need_scratch(int64_t bytes) {
  result_->scratch_bytes_ = std::max(result_->scratch_bytes_, round_up(bytes, 64));
}

Result<std::byte*> Lowering::make_constant(ValueId v) {
  SGA_ASSIGN(auto memory, allocate_aligned(device_->counter, type(v).bytes(), "constants"));
  std::byte* data = memory->data();
  result_->constants_.push_back(std::move(memory));
  if (is_output(v)) {
    const auto bytes = static_cast<size_t>(type(v).bytes());
    add([v, data, bytes](const Frame& f) -> Status {
      std::memcpy(f.ptr<std::byte>(v), data, bytes);
      return {};
    });
  } else {
    result_->recipes_[v] = {.place = {}, .in_scratch = false, .constant = data};
  }
  return data;
}

void Lowering::view(ValueId result, ValueId operand) {
  Recipe& to = result_->recipes_[result];
  const Recipe& from = result_->recipes_[operand];
  const bool same = from.constant == nullptr && !from.in_scratch &&
                    from.place.space == to.place.space && from.place.index == to.place.index &&
                    from.place.offset == to.place.offset;
  if (same) return;
  if (from.constant != nullptr && !is_output(result)) {
    to = from;
    return;
  }
  copy_value(result, operand);
}

void Lowering::copy_value(ValueId to, ValueId from) {
  const int64_t bytes = type(to).bytes();
  constexpr int64_t kBlock = 256 * kKiB;
  add([=](const Frame& f) -> Status {
    auto* y = f.ptr<std::byte>(to);
    const auto* x = f.ptr<std::byte>(from);
    if (x == y) return {};
    for_blocks(f, bytes, kBlock, [&](int64_t begin, int64_t end) {
      std::memcpy(y + begin, x + begin, static_cast<size_t>(end - begin));
    });
    return {};
  });
}

OpId Lowering::only_user(ValueId v) const {
  if (is_output(v) || num_uses(v) != 1) return graph::kNoOp;
  const OpId first = body().value(v).producer == graph::kNoOp ? 0 : body().value(v).producer + 1;
  for (OpId i = first; i < body().ops().size(); ++i) {
    const auto& operands = body().op(i).operands;
    if (std::find(operands.begin(), operands.end(), v) != operands.end()) return i;
  }
  return graph::kNoOp;
}

bool Lowering::starts_sum(ValueId v) const {
  const OpId made_by = body().value(v).producer;
  if (made_by == graph::kNoOp) return false;
  const Op& constant = body().op(made_by);
  if (constant.kind != graph::OpKind::kConstant || constant.attrs.f64("value") != 0) return false;
  const OpId user = only_user(v);
  if (user == graph::kNoOp || body().op(user).operands[0] != v) return false;
  switch (body().op(user).kind) {
    case graph::OpKind::kAccumulate:
    case graph::OpKind::kMatmulAccumulate:
    case graph::OpKind::kScaledMatmulAccumulate:
    case graph::OpKind::kLinearCrossEntropyGrad:
      return true;
    default:
      return false;
  }
}

Status Lowering::no_kernel(const Op& op) const {
  std::string types;
  for (ValueId v : op.operands) {
    types += types.empty() ? "" : ", ";
    types += type(v).to_string();
  }
  return unsupported(fmt::format("cpu has no kernel for op {} {}({})", current_,
                                 graph::op_info(op.kind).name, types));
}

}  // namespace sgactor::kernels::cpu
