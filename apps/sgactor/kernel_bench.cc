#include "apps/sgactor/kernel_bench.h"

#include "graph/base/philox.h"
#include "graph/base/units.h"
#include "graph/ir/op_table.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

namespace sgactor::apps {
namespace {

using graph::ValueId;
using kernels::Place;

constexpr int64_t kIdLimit = 32000;
constexpr size_t kDrawn = size_t{1} << 16;  // numbers that inputs repeat

class Last final : public kernels::CompletionSink {
 public:
  void on_complete(uint64_t, const Status& s, kernels::LaunchTiming) noexcept override {
    if (status.ok()) status = s;
  }
  Status status;
};

/// A case with each value at its own place; what updates its operand does so in place.
class Rig {
 public:
  Rig(kernels::Backend& backend, const graph::Graph& graph) : backend_(backend), graph_(graph) {}

  Status init() {
    SGA_TRY(place_values());
    SGA_TRY(place_outputs());
    SGA_TRY(fill_inputs());
    kernels::CompileRequest request;
    request.body = &graph_;
    request.places = places_;
    request.workspace_bytes = workspace_bytes_;
    request.name = "bench";
    SGA_ASSIGN(executable_, backend_.compile(request));
    SGA_ASSIGN(workspace_, allocate(workspace_bytes_));
    SGA_ASSIGN(scratch_, allocate(executable_->scratch_bytes()));
    SGA_ASSIGN(stream_, backend_.create_stream());
    return {};
  }

  /// Seconds for `count` launches in a row.
  Result<double> launch(int64_t count) {
    Last sink;
    kernels::LaunchArgs args;
    args.inputs = inputs_;
    args.outputs = outputs_;
    args.workspace = workspace_;
    args.scratch = scratch_;
    const auto start = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < count; ++i) stream_->launch(*executable_, args, 0, sink);
    stream_->synchronize();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    SGA_TRY(sink.status);
    return took.count();
  }

 private:
  Result<std::byte*> allocate(int64_t bytes) {
    SGA_ASSIGN(auto memory, backend_.allocate(std::max<int64_t>(bytes, 256), "bench"));
    memory_.push_back(std::move(memory));
    return memory_.back()->data();
  }

  Status place_values() {
    places_.resize(graph_.values().size());
    for (size_t i = 0; i < graph_.inputs().size(); ++i) {
      const ValueId v = graph_.inputs()[i].value;
      places_[v] = {.space = Place::Space::kInput, .index = static_cast<int32_t>(i)};
      SGA_ASSIGN(std::byte* const at, allocate(backend_.storage_bytes(graph_.type(v))));
      inputs_.push_back(at);
    }
    for (const graph::Op& op : graph_.ops()) {
      for (const ValueId v : op.results) {
        places_[v] = {.offset = workspace_bytes_};
        workspace_bytes_ += round_up(backend_.storage_bytes(graph_.type(v)), 256);
      }
      for (const graph::AliasSpec& alias : graph::op_info(op.kind).aliases) {
        if (alias.kind == graph::AliasSpec::Kind::kMay) continue;
        places_[op.results[static_cast<size_t>(alias.result)]] =
            places_[op.operands[static_cast<size_t>(alias.operand)]];
      }
    }
    return {};
  }

  Status place_outputs() {
    for (const graph::GraphOutput& out : graph_.outputs()) {
      const Place at = places_[out.value];
      if (at.space == Place::Space::kInput) {
        outputs_.push_back(inputs_[static_cast<size_t>(at.index)]);
        continue;
      }
      SGA_ASSIGN(std::byte* const memory, allocate(backend_.storage_bytes(graph_.type(out.value))));
      outputs_.push_back(memory);
      places_[out.value] = {.space = Place::Space::kOutput,
                            .index = static_cast<int32_t>(outputs_.size() - 1)};
    }
    return {};
  }

  /// Small random numbers, and ids: a product of zeros is faster than one of numbers.
  Status fill_inputs() {
    for (size_t i = 0; i < inputs_.size(); ++i) {
      const TensorType& type = graph_.type(graph_.inputs()[i].value);
      std::vector<std::byte> bytes(static_cast<size_t>(type.bytes()));
      const PhiloxStream rng{.seed = 1, .stream = i};
      std::vector<double> drawn(kDrawn);
      for (size_t e = 0; e < drawn.size(); ++e) drawn[e] = rng.uniform(e);
      const auto put = [&](int64_t e, const auto& value) {
        std::memcpy(bytes.data() + static_cast<size_t>(e) * sizeof value, &value, sizeof value);
      };
      for (int64_t e = 0; e < type.num_elements(); ++e) {
        const double u = drawn[static_cast<size_t>(e) % kDrawn];
        const auto small = static_cast<float>(0.1 * (u - 0.5));
        if (type.dtype == DType::kF32) put(e, small);
        if (type.dtype == DType::kBF16) put(e, float_to_bf16(small));
        if (type.dtype == DType::kI32) put(e, static_cast<int32_t>(u * double{kIdLimit}));
      }
      SGA_TRY(backend_.write_tensor(inputs_[i], type, bytes));
    }
    return {};
  }

  kernels::Backend& backend_;
  const graph::Graph& graph_;
  std::vector<std::unique_ptr<kernels::DeviceMemory>> memory_;
  std::vector<Place> places_;
  std::vector<std::byte*> inputs_, outputs_;
  int64_t workspace_bytes_ = 0;
  std::byte* workspace_ = nullptr;
  std::byte* scratch_ = nullptr;
  std::unique_ptr<kernels::Executable> executable_;
  std::unique_ptr<kernels::Stream> stream_;
};

}  // namespace

Result<double> time_kernel(kernels::Backend& backend, const KernelCase& kernel, double budget_s) {
  constexpr double kRoundSeconds = 0.005;  // far beyond what a clock or a launch costs
  constexpr double kMostLaunches = 200;
  Rig rig(backend, kernel.graph);
  SGA_TRY(rig.init());
  SGA_TRY(rig.launch(1).status());
  SGA_ASSIGN(const double first, rig.launch(1));
  const double wanted = kRoundSeconds / std::max(first, 1e-9);
  const auto count = static_cast<int64_t>(std::clamp(wanted, 1.0, kMostLaunches));
  double best = first;
  for (double spent = first; spent < budget_s;) {
    SGA_ASSIGN(const double took, rig.launch(count));
    best = std::min(best, took / static_cast<double>(count));
    spent += took;
  }
  return best;
}

Result<DeviceSpeed> measure_device(kernels::Backend& backend, DType dtype, double budget_s) {
  const bool large = dtype != DType::kF32;  // a GPU
  const int64_t side = large ? 8192 : 768;
  const int64_t elements = large ? int64_t{1} << 28 : int64_t{1} << 24;
  SGA_ASSIGN(const KernelCase product, product_kernel(side, side, side, dtype));
  SGA_ASSIGN(const KernelCase sum, add_kernel(elements));
  SGA_ASSIGN(const double product_s, time_kernel(backend, product, budget_s / 2));
  SGA_ASSIGN(const double sum_s, time_kernel(backend, sum, budget_s / 2));
  return DeviceSpeed{product.flops / product_s, sum.bytes / sum_s};
}

}  // namespace sgactor::apps
