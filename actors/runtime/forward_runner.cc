#include "actors/runtime/batch_source.h"
#include "actors/runtime/program_context.h"
#include "actors/runtime/rank_setup.h"
#include "actors/runtime/training.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <mutex>

namespace sgactor::actors {
namespace {

/// Keeps the first failure.
class FirstFailure final : public kernels::CompletionSink {
 public:
  void on_complete(uint64_t /*token*/, const Status& status,
                   kernels::LaunchTiming /*timing*/) noexcept override {
    const std::lock_guard lock(mutex_);
    if (failure_.ok()) failure_ = status;
  }
  Status take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(failure_, Status());
  }

 private:
  std::mutex mutex_;
  Status failure_;
};

std::vector<float> to_floats(const TensorType& type, const std::vector<std::byte>& native) {
  std::vector<float> out(static_cast<size_t>(type.num_elements()));
  if (type.dtype == DType::kF32) {
    std::memcpy(out.data(), native.data(), native.size());
    return out;
  }
  for (size_t i = 0; i < out.size(); ++i) {
    if (type.dtype == DType::kF64) {
      double wide = 0;
      std::memcpy(&wide, native.data() + i * sizeof wide, sizeof wide);
      out[i] = static_cast<float>(wide);
    } else {
      uint16_t bits = 0;
      std::memcpy(&bits, native.data() + i * sizeof bits, sizeof bits);
      out[i] = type.dtype == DType::kBF16 ? bf16_to_float(bits) : f16_to_float(bits);
    }
  }
  return out;
}

class SyncForwardRunner final : public ForwardRunner {
 public:
  explicit SyncForwardRunner(std::shared_ptr<ProgramContext> context)
      : context_(std::move(context)) {}

  Status set_up(const transport::StateSource& state) {
    SGA_TRY(create_lanes({context_.get()}, nullptr));
    SGA_TRY(load_state(*context_, state));
    output_ = context_->find_report(graph::Role::kLogits, "");
    if (output_ == nullptr) output_ = context_->find_report(graph::Role::kLoss, "");
    if (output_ == nullptr) return invalid_plan("a forward plan gives logits or a loss");
    const DType dtype = output_->type.dtype;
    if (dtype != DType::kF32 && dtype != DType::kF64 && dtype != DType::kBF16 &&
        dtype != DType::kF16) {
      return unsupported(fmt::format("output of type {}", output_->type.to_string()));
    }
    native_.resize(static_cast<size_t>(output_->type.bytes()));
    return {};
  }

  Result<std::vector<float>> run(std::span<const int32_t> tokens,
                                 std::span<const int32_t> targets) override {
    SGA_TRY(upload(context_->tokens, tokens, "tokens"));
    SGA_TRY(upload(context_->targets, targets, "targets"));
    SGA_TRY(upload_scalars(targets));
    kernels::Stream& stream = *context_->lanes->lanes[0].stream;
    for (const graph::Firing& f : context_->program->lanes[0].order) {
      enqueue_launch(*context_, f.launch, 1, f.micro_batch, pointers_, 0, sink_);
    }
    stream.synchronize();
    SGA_TRY(sink_.take());
    SGA_TRY(context_->backend->read_tensor(native_, output_->type, output_->address));
    return to_floats(output_->type, native_);
  }

 private:
  Status upload(graph::BufferId buffer, std::span<const int32_t> values, std::string_view what) {
    if (buffer == graph::kNoBuffer) return {};
    const TensorType& type = context_->buffer(buffer).type;
    if (static_cast<int64_t>(values.size()) != type.num_elements()) {
      return invalid_argument(
          fmt::format("{} {}, the plan takes {}", values.size(), what, type.num_elements()));
    }
    return context_->backend->write_tensor(context_->address(buffer, 0), type,
                                           std::as_bytes(values));
  }

  Status upload_scalars(std::span<const int32_t> targets) {
    const auto valid =
        std::count_if(targets.begin(), targets.end(), [](int32_t t) { return t >= 0; });
    for (const TensorPlace& scalar : context_->scalars) {
      if (scalar.name != "inv_valid_tokens" || scalar.type != TensorType{DType::kF32, {}}) {
        return invalid_plan(fmt::format("nobody sets scalar {}", scalar.name));
      }
      if (valid == 0) return invalid_argument("no target counts");
      const float value = static_cast<float>(1.0 / static_cast<double>(valid));
      SGA_TRY(context_->backend->write_tensor(scalar.address, scalar.type,
                                              std::as_bytes(std::span(&value, 1))));
    }
    return {};
  }

  std::shared_ptr<ProgramContext> context_;
  const TensorPlace* output_ = nullptr;
  std::vector<std::byte> native_;
  LaunchPointers pointers_;
  FirstFailure sink_;
};

}  // namespace

Result<std::unique_ptr<ForwardRunner>> ForwardRunner::create(const graph::Plan& plan,
                                                             kernels::Backend& backend,
                                                             const transport::StateSource& state) {
  SGA_TRY(graph::verify_plan(plan));
  SGA_ASSIGN(std::shared_ptr<ProgramContext> context,
             create_context({&plan, 0, &backend, nullptr}));
  if (context->program->lanes.size() != 1) return unsupported("a forward plan has one lane");
  auto runner = std::make_unique<SyncForwardRunner>(std::move(context));
  SGA_TRY(runner->set_up(state));
  return std::unique_ptr<ForwardRunner>(std::move(runner));
}

}  // namespace sgactor::actors
