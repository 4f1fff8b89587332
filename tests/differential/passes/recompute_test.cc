// Recompute and accumulation on the plans of whole models: the same bits as without, on the cpu and
// reference backends, and the arena that was planned is the arena that is used. Prints the peaks.
#include "graph/base/philox.h"
#include "graph/base/units.h"
#include "graph/compiler/pipeline.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/reference/reference_backend.h"
#include "tests/support/plan_executor.h"
#include "transport/storage/initial_state.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>

namespace sgactor::differential {
namespace {

using graph::BufferKind;
using graph::RecomputeMode;
using testing_support::PlanExecutor;

/// A backend whose arena starts as a pattern that no computation leaves, so that what was written
/// can be seen.
class MarkedArena final : public kernels::Backend {
 public:
  explicit MarkedArena(std::unique_ptr<kernels::Backend> backend) : backend_(std::move(backend)) {}

  const kernels::DeviceInfo& info() const override { return backend_->info(); }
  bool host_visible() const override { return backend_->host_visible(); }
  int64_t storage_bytes(const TensorType& type) const override {
    return backend_->storage_bytes(type);
  }
  Status write_tensor(std::byte* to, const TensorType& type,
                      std::span<const std::byte> native) override {
    return backend_->write_tensor(to, type, native);
  }
  Status read_tensor(std::span<std::byte> native, const TensorType& type,
                     const std::byte* from) override {
    return backend_->read_tensor(native, type, from);
  }
  Result<std::unique_ptr<kernels::Executable>> compile(
      const kernels::CompileRequest& request) override {
    return backend_->compile(request);
  }
  Result<std::unique_ptr<kernels::DeviceMemory>> allocate(int64_t bytes,
                                                          std::string_view label) override {
    SGA_ASSIGN(auto memory, backend_->allocate(bytes, label));
    if (label == "arena") {
      arena_ = std::span(memory->data(), static_cast<size_t>(bytes));
      for (size_t i = 0; i < arena_.size(); ++i) arena_[i] = mark(i);
    }
    if (label == "scratch") scratch_bytes_ = bytes;
    return memory;
  }
  Result<std::unique_ptr<kernels::Stream>> create_stream() override {
    return backend_->create_stream();
  }
  kernels::AllocationStats allocation_stats() const override {
    return backend_->allocation_stats();
  }

  /// End of the last byte that was written.
  [[nodiscard]] int64_t high_water() const {
    size_t end = arena_.size();
    while (end > 0 && arena_[end - 1] == mark(end - 1)) --end;
    return static_cast<int64_t>(end);
  }
  [[nodiscard]] int64_t scratch_bytes() const { return scratch_bytes_; }

 private:
  static std::byte mark(size_t i) { return static_cast<std::byte>((i * 0x9e3779b1U) >> 13); }

  std::unique_ptr<kernels::Backend> backend_;
  std::span<std::byte> arena_;
  int64_t scratch_bytes_ = 0;
};

struct Job {
  std::string preset;
  int64_t global_batch = 4;
  int64_t seq_len = 32;
};

struct StepRun {
  graph::MemoryStats memory;
  int64_t arena_bytes = 0;
  int64_t high_water = 0;
  int64_t scratch_bytes = 0;
  double recomputed = 0;
  std::map<std::string, std::vector<std::byte>> state;  ///< accumulators, parameters, moments
};

graph::LlamaConfig config_of(const Job& job) {
  graph::LlamaConfig config = graph::llama_preset(job.preset).value();
  config.max_position_embeddings = std::max(config.max_position_embeddings, job.seq_len);
  return config;
}

Status run_steps(const Job& job, const graph::Plan& plan, MarkedArena& backend, StepRun& run) {
  const graph::LlamaConfig config = config_of(job);
  SGA_ASSIGN(const auto executor, PlanExecutor::create(plan, backend));
  std::vector<transport::InitialParameter> parameters;
  for (const graph::ParameterSpec& p : graph::llama_parameters(config)) {
    parameters.push_back({p.name, p.type, p.init_std, p.init_one});
  }
  SGA_TRY(executor->load_state(
      *transport::with_zero_moments(transport::make_initial_state(std::move(parameters), 3))));
  const int32_t num = plan.programs[0].num_micro_batches;
  const auto size = static_cast<size_t>(job.global_batch / num * job.seq_len);
  std::vector<int32_t> tokens(size * static_cast<size_t>(num));
  std::vector<int32_t> targets(tokens.size());
  const auto vocab = static_cast<uint64_t>(config.vocab_size);
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<int32_t>(PhiloxStream{7, 1}.below(i, vocab));
    targets[i] = i % 7 == 6 ? -1 : static_cast<int32_t>(PhiloxStream{7, 2}.below(i, vocab));
  }
  std::vector<PlanExecutor::MicroBatch> batches;
  for (size_t m = 0; m < static_cast<size_t>(num); ++m) {
    batches.push_back(
        {std::span(tokens).subspan(m * size, size), std::span(targets).subspan(m * size, size)});
  }
  SGA_TRY(executor->run_step(1, 1.0 / static_cast<double>(tokens.size()), batches));
  for (const graph::Buffer& b : plan.programs[0].buffers) {
    if (!is_persistent(b.kind) || b.kind == BufferKind::kScalar) continue;
    SGA_ASSIGN(run.state[b.name], executor->read_bytes(b.name));
  }
  run.high_water = backend.high_water();  // while the executor holds the arena
  return {};
}

Result<StepRun> run_job(const Job& job, const std::string& backend_name, int32_t num_micro_batches,
                        RecomputeMode mode) {
  const bool reference = backend_name == "reference";
  graph::CompileOptions options;
  options.micro_batch_size = job.global_batch / num_micro_batches;
  options.num_micro_batches = num_micro_batches;
  options.seq_len = job.seq_len;
  options.recompute.mode = mode;
  options.storage = reference ? graph::StorageModel::kFloat64 : graph::StorageModel::kNative;
  SGA_ASSIGN(const graph::Compiled compiled, graph::compile_training(config_of(job), options));
  SGA_ASSIGN(auto backend,
             reference ? kernels::create_reference_backend({}) : kernels::create_cpu_backend({}));
  MarkedArena marked(std::move(backend));
  StepRun run;
  run.memory = compiled.plan.memory;
  run.arena_bytes = compiled.plan.programs[0].arena_bytes;
  SGA_TRY(run_steps(job, compiled.plan, marked, run));
  run.scratch_bytes = marked.scratch_bytes();
  return run;
}

class RecomputeDifferential : public testing::TestWithParam<const char*> {};

TEST_P(RecomputeDifferential, StepKeepsEveryBit) {
  const bool reference = GetParam() == std::string("reference");
  const Job job{"llama-tiny", 4, reference ? 8 : 32};
  const Result<StepRun> none = run_job(job, GetParam(), 2, RecomputeMode::kNone);
  ASSERT_TRUE(none.ok()) << none.status().to_string();
  for (RecomputeMode mode : {RecomputeMode::kSelective, RecomputeMode::kFull}) {
    const Result<StepRun> again = run_job(job, GetParam(), 2, mode);
    ASSERT_TRUE(again.ok()) << again.status().to_string();
    EXPECT_LT(again->memory.activation_peak_bytes, none->memory.activation_peak_bytes);
    ASSERT_EQ(again->state.size(), none->state.size());
    for (const auto& [name, bytes] : none->state) {
      EXPECT_TRUE(again->state.at(name) == bytes) << name << " with " << to_string(mode);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Backends, RecomputeDifferential, testing::Values("cpu", "reference"),
                         [](const auto& info) { return std::string(info.param); });

/// Peak of activations with `num` micro-batches, planned; checks that as much was used.
int64_t peak_of(const Job& job, int32_t num, RecomputeMode mode) {
  const Result<StepRun> run = run_job(job, "cpu", num, mode);
  EXPECT_TRUE(run.ok()) << run.status().to_string();
  if (!run.ok()) return 0;
  // Offsets and sizes are multiples of the alignment; what was written ends in the last of them.
  constexpr int64_t kAlign = 256;
  EXPECT_EQ(round_up(run->high_water, kAlign), run->arena_bytes);
  const int64_t persistent = run->arena_bytes - run->memory.activation_peak_bytes;
  fmt::print(
      "  {:11} N = {} recompute {:9}: planned {:>10}, measured {:>10}, kernels' scratch {}\n",
      job.preset, num, to_string(mode), format_bytes(run->memory.activation_peak_bytes),
      format_bytes(run->high_water - persistent), format_bytes(run->scratch_bytes));
  return run->memory.activation_peak_bytes;
}

class PeakActivations : public testing::TestWithParam<Job> {};

TEST_P(PeakActivations, FourMicroBatchesAndRecomputeTakeThirtyPercent) {
  const Job& job = GetParam();
  const auto none = static_cast<double>(peak_of(job, 1, RecomputeMode::kNone));
  const auto accumulated = static_cast<double>(peak_of(job, 4, RecomputeMode::kNone));
  const auto selective = static_cast<double>(peak_of(job, 4, RecomputeMode::kSelective));
  const auto full = static_cast<double>(peak_of(job, 4, RecomputeMode::kFull));
  fmt::print("  of none: accumulation {:.1f} %, with selective {:.1f} %, with full {:.1f} %\n",
             100 * accumulated / none, 100 * selective / none, 100 * full / none);
  // Not always less: below some size the gradient of the embedding, made whole before it is added
  // up, is the peak.
  EXPECT_LE(selective, accumulated);
  EXPECT_LE(full, selective);
  EXPECT_LE(full, 0.30 * none);
}
INSTANTIATE_TEST_SUITE_P(Models, PeakActivations,
                         testing::Values(Job{"llama-tiny", 8, 128}, Job{"llama-15m", 16, 128}),
                         [](const auto& info) {
                           return info.param.preset == "llama-15m" ? "llama_15m" : "llama_tiny";
                         });

}  // namespace
}  // namespace sgactor::differential
