#include "kernels/cpu/lowering.h"

#include <fmt/format.h>

#include <cstring>

namespace sgactor::kernels::cpu {

using graph::Op;
using graph::OpId;
using graph::ValueId;

Result<std::unique_ptr<CpuExecutable>> Lowering::build() {
  const graph::Graph& graph = body();
  const size_t num_values = graph.values().size();
  if (request_.places.size() != num_values) {
    return invalid_argument(fmt::format("{}: {} places for {} values", request_.name,
                                        request_.places.size(), num_values));
  }
  result_ = std::make_unique<CpuExecutable>();
  result_->name_ = request_.name;
  result_->resolved_.resize(num_values);
  result_->recipes_.resize(num_values);
  for (size_t v = 0; v < num_values; ++v) result_->recipes_[v].place = request_.places[v];
  skipped_.assign(graph.ops().size(), false);
  is_output_.assign(num_values, false);
  for (const graph::GraphOutput& out : graph.outputs()) is_output_[out.value] = true;
  num_uses_ = graph.use_counts();

  for (OpId i = 0; i < graph.ops().size(); ++i) {
    if (skipped_[i]) continue;
    current_ = i;
    const Op& op = graph.op(i);
    const LowerFn lower = lowering_of(op.kind);
    if (lower == nullptr) return no_kernel(op);
    if (Status s = lower(*this, op); !s.ok()) return s.with_context(request_.name);
  }
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
    result_->recipes_[v] = {.place = {}, .constant = data};
  }
  return data;
}

void Lowering::view(ValueId result, ValueId operand) {
  Recipe& to = result_->recipes_[result];
  const Recipe& from = result_->recipes_[operand];
  const bool same = from.constant == nullptr && from.place.space == to.place.space &&
                    from.place.index == to.place.index && from.place.offset == to.place.offset;
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
