#include "graph/compiler/pipeline.h"

#include "graph/ir/verify.h"
#include "graph/plan/serial.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace sgactor::graph {
namespace {

LlamaConfig preset(std::string_view name) {
  const auto config = llama_preset(name);
  SGA_CHECK(config.has_value(), "no preset " + std::string(name));
  return *config;
}

std::vector<std::string> names(const Compiled& compiled) {
  std::vector<std::string> all;
  for (const PassRecord& pass : compiled.passes) all.push_back(pass.name);
  return all;
}

TEST(PipelineTest, SameInputSameBytes) {
  CompileOptions options;
  options.num_micro_batches = 3;
  const Result<Compiled> a = compile_training(preset("llama-tiny"), options);
  const Result<Compiled> b = compile_training(preset("llama-tiny"), options);
  ASSERT_TRUE(a.ok()) << a.status().to_string();
  ASSERT_TRUE(b.ok());
  EXPECT_EQ(serialize_plan(a->plan), serialize_plan(b->plan));
}

TEST(PipelineTest, IdenticalLayersAreCompiledOnce) {
  const LlamaConfig config = preset("llama-tiny");
  const Result<Compiled> compiled = compile_training(config, {});
  ASSERT_TRUE(compiled.ok()) << compiled.status().to_string();
  const Plan& plan = compiled->plan;
  for (const char* name : {"layer.forward", "layer.backward", "layer.reduce", "layer.update"}) {
    const auto subgraph = std::find_if(plan.subgraphs.begin(), plan.subgraphs.end(),
                                       [&](const Subgraph& s) { return s.name == name; });
    ASSERT_NE(subgraph, plan.subgraphs.end()) << name;
    const auto id = static_cast<SubgraphId>(subgraph - plan.subgraphs.begin());
    const auto& launches = plan.programs[0].launches;
    EXPECT_EQ(std::count_if(launches.begin(), launches.end(),
                            [&](const Launch& l) { return l.subgraph == id; }),
              config.num_hidden_layers)
        << name;
  }
}

TEST(PipelineTest, SchemaIsOfTheModelNotOfTheCompiler) {
  CompileOptions options;
  const Result<Compiled> once = compile_training(preset("llama-tiny"), options);
  options.num_micro_batches = 4;
  const Result<Compiled> fused = compile_training(preset("llama-tiny"), options);
  options.fuse = false;
  options.storage = StorageModel::kHash;
  const Result<Compiled> plain = compile_training(preset("llama-tiny"), options);
  ASSERT_TRUE(once.ok() && fused.ok() && plain.ok());
  EXPECT_EQ(once->plan.schema_hash, plain->plan.schema_hash);
  EXPECT_EQ(fused->plan.schema_hash, plain->plan.schema_hash);
  EXPECT_EQ(fused->plan.ops_before, plain->plan.ops_before);
  EXPECT_EQ(plain->plan.ops_after, plain->plan.ops_before);
  EXPECT_LT(fused->plan.ops_after, fused->plan.ops_before / 2);
  EXPECT_FALSE(fused->fusions.empty());
  EXPECT_TRUE(plain->fusions.empty());
}

TEST(PipelineTest, RecordsAndDumpsEveryPassInOrder) {
  CompileOptions options;
  std::vector<std::string> dumped;
  options.dump = [&](const std::string& pass, const Graph& training, const Graph& update) {
    EXPECT_TRUE(verify(training).ok());
    EXPECT_TRUE(verify(update).ok());
    dumped.push_back(pass);
  };
  const Result<Compiled> compiled = compile_training(preset("llama-tiny"), options);
  ASSERT_TRUE(compiled.ok());
  const std::vector<std::string> expected = {
      "build_model",        "differentiate",           "note_schema",    "apply_sharding",
      "insert_collectives", "accumulate_microbatches", "build_update",   "fuse_ops",
      "infer_precision",    "choose_layout",           "plan_recompute", "partition_subgraphs",
      "split_stages",       "schedule_collectives",    "plan_memory"};
  EXPECT_EQ(names(*compiled), expected);
  EXPECT_EQ(dumped, expected);
  for (const PassRecord& pass : compiled->passes) EXPECT_FALSE(pass.note.empty()) << pass.name;
}

TEST(PipelineTest, OnlyOptionalPassesCanBeDisabled) {
  CompileOptions options;
  options.disabled_passes = {"fuse_ops"};
  const Result<Compiled> compiled = compile_training(preset("llama-tiny"), options);
  ASSERT_TRUE(compiled.ok());
  const std::vector<std::string> ran = names(*compiled);
  EXPECT_EQ(std::count(ran.begin(), ran.end(), "fuse_ops"), 0);
  for (const char* name : {"plan_memory", "no_such_pass"}) {
    options.disabled_passes = {name};
    const Result<Compiled> refused = compile_training(preset("llama-tiny"), options);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().code(), Code::kInvalidArgument);
    EXPECT_NE(refused.status().message().find(name), std::string::npos);
  }
}

TEST(PipelineTest, ErrorsNameThePass) {
  CompileOptions options;
  options.seq_len = 1 << 20;  // beyond the model's positions
  const Result<Compiled> compiled = compile_training(preset("llama-tiny"), options);
  ASSERT_FALSE(compiled.ok());
  EXPECT_EQ(compiled.status().message().find("build_model"), 0U) << compiled.status().to_string();
  options = {};
  options.num_micro_batches = 0;
  EXPECT_EQ(compile_training(preset("llama-tiny"), options).status().code(),
            Code::kInvalidArgument);
}

TEST(PipelineTest, ForwardPlansHaveLogitsOrLoss) {
  const LlamaConfig config = preset("llama-tiny");
  const Result<Compiled> logits = compile_forward(config, {2, 16, false}, {});
  ASSERT_TRUE(logits.ok()) << logits.status().to_string();
  const auto has = [](const Plan& plan, std::string_view name) {
    const auto& buffers = plan.programs[0].buffers;
    return std::any_of(buffers.begin(), buffers.end(), [&](const Buffer& b) {
      return b.name == name && b.kind == BufferKind::kMetric;
    });
  };
  EXPECT_TRUE(has(logits->plan, "logits"));
  EXPECT_FALSE(has(logits->plan, "loss"));
  const Result<Compiled> loss = compile_forward(config, {2, 16, true}, {});
  ASSERT_TRUE(loss.ok()) << loss.status().to_string();
  EXPECT_TRUE(has(loss->plan, "loss"));
  EXPECT_LT(loss->plan.memory.planned_bytes, loss->plan.memory.naive_bytes);
}

TEST(PipelineTest, LargestPresetIsPlannedWithoutItsMemory) {
  CompileOptions options;
  options.micro_batch_size = 1;
  options.seq_len = 4096;
  const LlamaConfig config = preset("llama-70b");
  const Result<Compiled> compiled = compile_training(config, options);
  ASSERT_TRUE(compiled.ok()) << compiled.status().to_string();
  const Plan& plan = compiled->plan;
  EXPECT_EQ(plan.num_parameters, count_parameters(config));
  EXPECT_EQ(plan.memory.parameter_bytes, 4 * plan.num_parameters);
  EXPECT_EQ(plan.memory.moment_bytes, 8 * plan.num_parameters);
  EXPECT_GE(plan.memory.planned_bytes, plan.memory.lower_bound_bytes);
  EXPECT_LE(static_cast<double>(plan.memory.planned_bytes),
            1.01 * static_cast<double>(plan.memory.lower_bound_bytes));
}

TEST(PipelineTest, FastSumsAreThoseOverDataParallelRanks) {
  CompileOptions options;
  options.mesh = {1, 4, 2};
  options.zero_stage = 1;
  options.exact_sums = false;
  const auto count = [&](MeshAxis axis, bool exact) {
    const Result<Compiled> compiled = compile_training(preset("llama-tiny"), options);
    EXPECT_TRUE(compiled.ok()) << compiled.status().to_string();
    const Plan& plan = compiled->plan;
    const auto& launches = plan.programs[0].launches;
    return std::count_if(launches.begin(), launches.end(), [&](const Launch& l) {
      const bool sums = l.kind == LaunchKind::kAllReduce || l.kind == LaunchKind::kReduceScatter;
      return sums && l.communication.exact == exact &&
             plan.groups[static_cast<size_t>(l.communication.group)].axis == axis;
    });
  };
  EXPECT_GT(count(MeshAxis::kDp, false), 0);
  EXPECT_EQ(count(MeshAxis::kDp, true), 0);
  EXPECT_GT(count(MeshAxis::kTp, true), 0);
  EXPECT_EQ(count(MeshAxis::kTp, false), 0);
  options.exact_sums = true;
  EXPECT_EQ(count(MeshAxis::kDp, false), 0);
  options.exact_sums = false;
  options.storage = StorageModel::kHash;
  EXPECT_EQ(count(MeshAxis::kDp, false), 0) << "a hash sees the order";
}

TEST(PipelineTest, ABudgetThatCannotBeMetSaysOneThatCan) {
  CompileOptions options;
  options.mesh.pp = 2;
  options.seq_len = 16;
  options.recompute.mode = RecomputeMode::kSelective;
  options.recompute.memory_budget_bytes = 1024;
  options.recompute.scratch_bytes = 3 << 20;
  const Status refused = compile_training(preset("llama-tiny"), options).status();
  EXPECT_EQ(refused.code(), Code::kOutOfMemory);
  const std::string& message = refused.message();
  EXPECT_NE(message.find("a memory budget of 1.00 KiB"), std::string::npos) << message;
  EXPECT_NE(message.find("3.00 MiB that the device keeps"), std::string::npos) << message;
  EXPECT_NE(message.find("of pipeline stage "), std::string::npos) << message;
  EXPECT_NE(message.find(", the largest of 2"), std::string::npos) << message;
  const size_t at = message.find("the least is ");
  ASSERT_NE(at, std::string::npos) << message;
  const int64_t least = std::stoll(message.substr(at + 13));
  options.recompute.memory_budget_bytes = least << 20;
  const Result<Compiled> met = compile_training(preset("llama-tiny"), options);
  ASSERT_TRUE(met.ok()) << met.status().to_string();
  for (const RankProgram& program : met->plan.programs) {
    EXPECT_LE(program.arena_bytes + options.recompute.scratch_bytes, least << 20);
  }
  // The scratch counts.
  options.recompute.memory_budget_bytes = (least - 3) << 20;
  EXPECT_FALSE(compile_training(preset("llama-tiny"), options).ok());
}

}  // namespace
}  // namespace sgactor::graph
