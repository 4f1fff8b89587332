// The same logical ranks compute the same bits on every mesh of dp, pp and ZeRO; tp changes the
// shape of sums, so its numbers agree within rounding.
#include "graph/compiler/pipeline.h"
#include "kernels/cpu/cpu_backend.h"
#include "tests/support/mesh_executor.h"
#include "transport/storage/initial_state.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>

namespace sgactor::differential {
namespace {

using graph::CompileOptions;
using graph::LlamaConfig;
using graph::PipelineSchedule;
using testing_support::MeshExecutor;
using testing_support::PlanExecutor;

constexpr int64_t kSeqLen = 8;
constexpr int64_t kRows = 2;
constexpr int kSteps = 3;

LlamaConfig small_model(bool tied) {
  LlamaConfig c;
  c.vocab_size = 50;
  c.hidden_size = 32;
  c.intermediate_size = 48;
  c.num_hidden_layers = 4;
  c.num_attention_heads = 4;
  c.num_key_value_heads = 2;
  c.head_dim = 8;
  c.tie_word_embeddings = tied;
  return c;
}

struct Mesh {
  const char* name;
  int32_t dp = 1, pp = 1, tp = 1, zero = 0;
  int32_t micro_batches = 1;
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  int32_t chunks = 1;
  bool tied = true;
  DType precision = DType::kF32;
  int64_t bucket_bytes = -1;  ///< -1: chosen by the cost model
};

struct Outcome {
  std::vector<float> losses, norms;
  std::map<std::string, std::vector<float>> state;
  int64_t state_bytes = 0;
};

CompileOptions options_of(const Mesh& mesh) {
  CompileOptions o;
  o.micro_batch_size = kRows;
  o.num_micro_batches = mesh.micro_batches;
  o.seq_len = kSeqLen;
  o.optimizer.norm_chunk = 64;
  o.mesh = {mesh.pp, mesh.dp, mesh.tp};
  o.zero_stage = mesh.zero;
  o.pipeline = mesh.schedule;
  o.chunks_per_stage = mesh.chunks;
  o.precision = mesh.precision;
  o.choose_buckets = mesh.bucket_bytes < 0;
  o.schedule.bucket_bytes = std::max<int64_t>(mesh.bucket_bytes, 0);
  return o;
}

/// The token of a place is a function of step, rank, micro-batch and place.
std::vector<int32_t> draw(int64_t step, int64_t rank, int64_t m, int64_t shift) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < kRows * kSeqLen; ++i) {
    ids.push_back(static_cast<int32_t>(
        ((step * 7919 + rank * 104729 + m * 1299709 + (i + shift) * 15485863) % 50 + 50) % 50));
  }
  return ids;
}

std::shared_ptr<const transport::StateSource> initial_state(const LlamaConfig& model) {
  std::vector<transport::InitialParameter> parameters;
  for (const graph::ParameterSpec& p : graph::llama_parameters(model)) {
    parameters.push_back({p.name, p.type, p.init_std, p.init_one});
  }
  return std::shared_ptr<const transport::StateSource>(
      transport::make_initial_state(std::move(parameters), 7));
}

Status run_steps(MeshExecutor& executor, const Mesh& mesh, Outcome* out) {
  for (int64_t step = 1; step <= kSteps; ++step) {
    std::vector<std::vector<std::vector<int32_t>>> data(static_cast<size_t>(mesh.dp));
    std::vector<std::vector<PlanExecutor::MicroBatch>> batches(data.size());
    for (int32_t dp = 0; dp < mesh.dp; ++dp) {
      auto& mine = data[static_cast<size_t>(dp)];
      for (int32_t m = 0; m < mesh.micro_batches; ++m) {
        mine.push_back(draw(step, dp, m, 0));
        mine.push_back(draw(step, dp, m, 1));
      }
      for (size_t m = 0; m < mine.size(); m += 2) {
        batches[static_cast<size_t>(dp)].push_back({mine[m], mine[m + 1]});
      }
    }
    const double tokens = static_cast<double>(kRows * kSeqLen) * mesh.dp * mesh.micro_batches;
    SGA_TRY(executor.run_step(step, 1 / tokens, batches));
    SGA_ASSIGN(const float loss, executor.loss());
    SGA_ASSIGN(const float norm, executor.metric("grad_norm"));
    out->losses.push_back(loss);
    out->norms.push_back(norm);
  }
  return {};
}

Result<Outcome> train(const Mesh& mesh) {
  const LlamaConfig model = small_model(mesh.tied);
  SGA_ASSIGN(const graph::Compiled compiled, compile_training(model, options_of(mesh)));
  SGA_ASSIGN(const auto backend, kernels::create_cpu_backend({}));
  SGA_ASSIGN(const auto executor, MeshExecutor::create(compiled.plan, *backend));
  SGA_TRY(executor->load_state(*transport::with_zero_moments(initial_state(model))));
  Outcome out;
  SGA_TRY(run_steps(*executor, mesh, &out));
  for (const graph::ParameterSpec& p : graph::llama_parameters(model)) {
    for (const char* prefix : {"", "m/", "v/"}) {
      SGA_ASSIGN(out.state[prefix + p.name], executor->state(prefix + p.name));
    }
  }
  out.state_bytes = executor->state_bytes(0);
  return out;
}

/// All data-parallel ranks alone with whole states: the expression that meshes must keep.
Mesh base_of(const Mesh& mesh) {
  Mesh base{"base", mesh.dp};
  base.micro_batches = mesh.micro_batches;
  base.tied = mesh.tied;
  base.precision = mesh.precision;
  base.bucket_bytes = 0;
  return base;
}

class MeshEquality : public testing::TestWithParam<Mesh> {};

TEST_P(MeshEquality, SameBits) {
  const Mesh& mesh = GetParam();
  const Result<Outcome> base = train(base_of(mesh));
  ASSERT_TRUE(base.ok()) << base.status().to_string();
  const Result<Outcome> got = train(mesh);
  ASSERT_TRUE(got.ok()) << got.status().to_string();
  const auto bits = [](const std::vector<float>& v) {
    std::vector<uint32_t> out;
    for (float x : v) out.push_back(std::bit_cast<uint32_t>(x));
    return out;
  };
  EXPECT_TRUE(std::isfinite(base->losses.back()));
  EXPECT_LT(base->losses.back(), base->losses.front());
  if (mesh.tp == 1) {
    EXPECT_EQ(bits(got->losses), bits(base->losses));
    EXPECT_EQ(bits(got->norms), bits(base->norms));
    for (const auto& [name, values] : base->state) {
      EXPECT_EQ(got->state.at(name), values) << name;
    }
    return;
  }
  // Halves of a dim may be no whole grains: then fewer products are in 8 bits.
  const bool f8 = mesh.precision == DType::kF8E4M3;
  for (int s = 0; s < kSteps; ++s) {
    const auto i = static_cast<size_t>(s);
    EXPECT_NEAR(got->losses[i], base->losses[i], f8 ? 0.04 : 1e-5) << "step " << s + 1;
    EXPECT_NEAR(got->norms[i], base->norms[i], (f8 ? 0.1 : 1e-4) * base->norms[i])
        << "step " << s + 1;
  }
}

constexpr Mesh bucketed(const char* name, int32_t dp, int32_t pp, int32_t tp, int32_t zero,
                        int32_t micro_batches, int64_t bytes) {
  Mesh mesh{name, dp, pp, tp, zero, micro_batches};
  mesh.bucket_bytes = bytes;
  return mesh;
}

constexpr auto kF8 = DType::kF8E4M3;
constexpr auto kGPipe = PipelineSchedule::kGPipe;
constexpr auto k1F1B = PipelineSchedule::k1F1B;
constexpr auto kInterleaved = PipelineSchedule::kInterleaved;

INSTANTIATE_TEST_SUITE_P(
    Meshes, MeshEquality,
    testing::Values(Mesh{"dp4_zero1", 4, 1, 1, 1}, Mesh{"dp4_zero2", 4, 1, 1, 2},
                    Mesh{"dp4_zero3", 4, 1, 1, 3}, Mesh{"dp3_zero3", 3, 1, 1, 3},
                    Mesh{"dp4_zero2_m2", 4, 1, 1, 2, 2}, Mesh{"dp4_zero3_m3", 4, 1, 1, 3, 3},
                    Mesh{"pp2_once", 1, 2, 1, 0, 1}, Mesh{"pp2", 1, 2, 1, 0, 4},
                    Mesh{"pp2_gpipe", 1, 2, 1, 0, 4, kGPipe},
                    Mesh{"pp4_interleaved", 1, 4, 1, 0, 4, kInterleaved, 2},
                    Mesh{"pp3_untied", 1, 3, 1, 0, 5, k1F1B, 1, false},
                    Mesh{"dp2_pp2_zero1", 2, 2, 1, 1, 3}, Mesh{"dp2_pp2_zero3", 2, 2, 1, 3, 1},
                    Mesh{"dp2_pp3_zero3_m4", 2, 3, 1, 3, 4, kInterleaved, 2}, Mesh{"tp2", 1, 1, 2},
                    Mesh{"dp2_pp2_tp2", 2, 2, 2, 0, 2},
                    Mesh{"dp2_tp2_zero3_untied", 2, 1, 2, 3, 1, k1F1B, 1, false},
                    bucketed("dp4_tensor_each", 4, 1, 1, 0, 2, 1),
                    bucketed("dp4_8k", 4, 1, 1, 0, 2, 8 << 10),
                    bucketed("dp4_one_bucket", 4, 1, 1, 0, 2, 1 << 30),
                    bucketed("dp3_zero1_8k", 3, 1, 1, 1, 2, 8 << 10),
                    bucketed("dp4_zero2_tensor_each", 4, 1, 1, 2, 1, 1),
                    bucketed("dp4_zero3_8k", 4, 1, 1, 3, 1, 8 << 10),
                    bucketed("dp4_zero3_one_bucket", 4, 1, 1, 3, 1, 1 << 30),
                    bucketed("dp2_pp2_zero3_8k", 2, 2, 1, 3, 2, 8 << 10),
                    bucketed("dp2_pp2_zero1_one_bucket", 2, 2, 1, 1, 3, 1 << 30),
                    bucketed("dp2_tp2_zero3_tensor_each", 2, 1, 2, 3, 1, 1),
                    Mesh{"dp4_zero1_f8", 4, 1, 1, 1, 2, k1F1B, 1, true, kF8},
                    Mesh{"dp3_zero3_f8", 3, 1, 1, 3, 1, k1F1B, 1, true, kF8},
                    Mesh{"dp2_pp2_zero3_f8", 2, 2, 1, 3, 2, k1F1B, 1, true, kF8},
                    Mesh{"pp4_interleaved_f8", 1, 4, 1, 0, 4, kInterleaved, 2, true, kF8},
                    Mesh{"dp2_pp2_tp2_f8", 2, 2, 2, 0, 2, k1F1B, 1, true, kF8}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(MeshMemory, Zero3HoldsItsShare) {
  const Result<Outcome> whole = train({"dp4", 4});
  const Result<Outcome> cut = train({"dp4_zero3", 4, 1, 1, 3});
  ASSERT_TRUE(whole.ok() && cut.ok());
  // The tied embedding keeps the gradient of its two uses whole.
  EXPECT_LT(static_cast<double>(cut->state_bytes), 0.45 * static_cast<double>(whole->state_bytes));
}

}  // namespace
}  // namespace sgactor::differential
