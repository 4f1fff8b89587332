// Golden tests of the passes: `tests/golden/<pass>/<case>.sgir` goes in, `<case>.expected` must
// come out. A case named `…_invalid` must fail, and its Status is what is compared. Options stand
// in the first lines: "# micro_batches = 2". SGA_UPDATE_GOLDEN=1 rewrites the expected files.
#include "graph/ir/text.h"
#include "graph/ir/verify.h"
#include "graph/passes/apply_sharding.h"
#include "graph/passes/build_update.h"
#include "graph/passes/choose_layout.h"
#include "graph/passes/data_parallel.h"
#include "graph/passes/differentiate.h"
#include "graph/passes/fuse_ops.h"
#include "graph/passes/infer_precision.h"
#include "graph/passes/infer_precision_f8.h"
#include "graph/passes/partition_subgraphs.h"
#include "graph/passes/plan_memory.h"
#include "graph/passes/plan_recompute.h"
#include "graph/passes/rewrite.h"
#include "graph/passes/schedule_collectives.h"
#include "graph/passes/split_stages.h"
#include "tests/golden/describe_plan.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace sgactor::graph {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRoot = "tests/golden";

struct Input {
  Graph graph;
  std::string text;

  /// Value of "# name = value" in the file.
  [[nodiscard]] int32_t option(const std::string& name, int32_t otherwise) const {
    const std::string key = "# " + name + " = ";
    const size_t at = text.find(key);
    return at == std::string::npos ? otherwise : std::atoi(text.c_str() + at + key.size());
  }
};

Result<std::string> verified_text(const Graph& graph) {
  SGA_TRY(verify(graph).with_context("the result does not verify"));
  return print_graph(graph);
}

/// An update for the accumulators of a training graph; matrices decay. `model` holds the parameters
/// as they were before any cut.
Result<Graph> update_of(const Graph& training, const OptimizerOptions& options, const Graph& model,
                        const DataParallel& dp = {}) {
  std::vector<ParameterSpec> specs;
  for (const GraphInput& input : model.inputs()) {
    if (input.role != Role::kParameter) continue;
    const TensorType& type = model.type(input.value);
    specs.push_back({input.name, type, type.shape.rank() >= 2, 0, false});
  }
  SGA_ASSIGN(const std::vector<UpdateParameter> parameters,
             collect_update_parameters(training, specs, dp));
  return build_update(parameters, options, dp);
}

Result<std::string> run_differentiate(const Input& in) {
  SGA_ASSIGN(const Graph graph, differentiate(in.graph));
  return verified_text(graph);
}

Result<std::string> run_accumulate(const Input& in) {
  const SumOptions options{in.option("one_micro_batch", 0) != 0, in.option("one_stage", 0) != 0,
                           in.option("norm_chunk", 0)};
  SGA_ASSIGN(const Graph graph, accumulate_microbatches(in.graph, options));
  return verified_text(graph);
}

Result<std::string> run_shard(const Input& in) {
  const ShardingOptions options{
      .members = in.option("members", 2),
      .rules = llama_parameter_rules(in.option("heads", 1), in.option("key_value_heads", 1))};
  SGA_ASSIGN(const Graph training, differentiate(in.graph));
  SGA_ASSIGN(const ShardingDecisions decisions, apply_sharding(training, options));
  SGA_ASSIGN(const ShardedTraining sharded, shard_training(training, options));
  SGA_ASSIGN(std::string text, verified_text(sharded.graph));
  for (const std::string& line : explain_sharding(training, decisions)) text += "# " + line + "\n";
  return text;
}

DataParallel data_parallel_of(const Input& in) {
  return {in.option("dp", 1), in.option("zero", 0), in.option("chunk", 4),
          in.option("micro_batches", 1)};
}

Result<std::string> run_data_parallel(const Input& in) {
  SGA_ASSIGN(const Graph training, differentiate(in.graph));
  SGA_ASSIGN(const Graph graph, apply_data_parallel(training, data_parallel_of(in)));
  return verified_text(graph);
}

Result<std::string> run_build_update(const Input& in) {
  OptimizerOptions options;
  options.warmup_steps = in.option("warmup_steps", 10);
  options.decay_steps = in.option("decay_steps", 100);
  options.max_grad_norm = in.option("max_grad_norm", 1);
  options.norm_chunk = in.option("norm_chunk", 4);
  SGA_ASSIGN(const Graph graph, update_of(in.graph, options, in.graph));
  return verified_text(graph);
}

Result<std::string> run_clean(const Input& in) {
  return verified_text(clean_graph(in.graph, in.option("merge_equal", 1) != 0));
}

Result<std::string> run_fuse(const Input& in) {
  FusionOptions options;
  options.narrow = in.option("narrow", 0) != 0;
  options.eight_bits = in.option("eight_bits", 0) != 0;
  SGA_ASSIGN(const Graph graph, fuse_ops(in.graph, nullptr, options));
  return verified_text(graph);
}

Result<std::string> run_infer_precision(const Input& in) {
  const auto narrow = static_cast<DType>(in.option("dtype", static_cast<int32_t>(DType::kBF16)));
  PrecisionReport report;
  SGA_ASSIGN(const Graph graph, infer_precision(in.graph, narrow, &report));
  SGA_ASSIGN(std::string text, verified_text(graph));
  for (const std::string& line : explain_precision(report)) text += "# " + line + "\n";
  return text;
}

std::string comments(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += "# " + line + "\n";
  return text;
}

Result<std::string> run_infer_precision_f8(const Input& in) {
  F8Report report;
  const F8Options options{.head = in.option("head", 0) != 0};
  SGA_ASSIGN(const Graph graph, infer_precision_f8(in.graph, &report, options));
  SGA_ASSIGN(std::string text, verified_text(graph));
  SGA_ASSIGN(const Graph update, update_f8_scales({}, report.tensors, in.option("dp", 2), 1));
  SGA_ASSIGN(const std::string update_text, verified_text(update));
  return text + update_text + comments(explain_f8(report));
}

Result<std::string> run_choose_layout(const Input& in) {
  LayoutReport report;
  const auto layout = static_cast<F8Layout>(in.option("layout", 0));
  SGA_ASSIGN(const Graph graph, choose_layout(in.graph, layout, &report));
  SGA_ASSIGN(const std::string text, verified_text(graph));
  return text + comments(explain_layout(report));
}

Result<Plan> partition(const Input& in) {
  const auto storage = static_cast<StorageModel>(in.option("storage", 0));
  if (in.option("forward", 0) != 0) return partition_forward(in.graph, storage);
  Graph update;
  if (in.option("update", 1) != 0) {
    SGA_ASSIGN(update, update_of(in.graph, {}, in.graph));
  }
  if (in.option("fuse", 0) != 0) {
    SGA_ASSIGN(update, fuse_ops(update));
  }
  return partition_subgraphs(in.graph, update, in.option("micro_batches", 1), storage);
}

Result<std::string> run_partition(const Input& in) {
  SGA_ASSIGN(const Plan plan, partition(in));
  SGA_TRY(verify_structure(plan));
  return describe_plan(plan);
}

Result<std::string> run_plan_memory(const Input& in) {
  SGA_ASSIGN(Plan plan, partition(in));
  SGA_TRY(plan_memory(plan, in.option("align", 64)));
  SGA_TRY(verify_plan(plan));
  return describe_plan(plan);
}

Result<std::string> run_plan_recompute(const Input& in) {
  const RecomputeOptions options{static_cast<RecomputeMode>(in.option("mode", 2)),
                                 in.option("budget", 0)};
  const MeasurePlan measure = [](const Graph& training) -> Result<MemoryStats> {
    SGA_ASSIGN(Plan plan, partition_subgraphs(training, {}, 1, StorageModel::kNative));
    SGA_TRY(plan_memory(plan));
    return plan.memory;
  };
  SGA_ASSIGN(const Graph graph, plan_recompute(in.graph, options, measure));
  return verified_text(graph);
}

/// The plan of a forward graph's training step as split_stages finds it.
Result<Plan> plan_step(const Input& in) {
  const DataParallel dp = data_parallel_of(in);
  SGA_ASSIGN(Graph training, differentiate(in.graph));
  SGA_ASSIGN(training, apply_data_parallel(training, dp));
  SGA_ASSIGN(training, accumulate_microbatches(training));
  SGA_ASSIGN(const Graph update, update_of(training, {.norm_chunk = dp.chunk}, in.graph, dp));
  return partition_subgraphs(training, update, dp.num_micro_batches, StorageModel::kNative);
}

Result<Plan> split_step(const Input& in) {
  SGA_ASSIGN(Plan plan, plan_step(in));
  const int32_t stages = in.option("stages", 1);
  SGA_TRY(split_stages(plan, {stages, in.option("chunks_per_stage", 1),
                              static_cast<PipelineSchedule>(in.option("schedule", 1))}));
  place_ranks(plan, {stages, in.option("dp", 1), 1});
  return plan;
}

Result<std::string> run_split_stages(const Input& in) {
  SGA_ASSIGN(const Plan plan, split_step(in));
  return describe_programs(plan);
}

Result<std::string> run_schedule_collectives(const Input& in) {
  SGA_ASSIGN(Plan plan, split_step(in));
  SGA_TRY(schedule_collectives(
      plan, {.prefetch = in.option("prefetch", 1), .bucket_bytes = in.option("bucket", 0)}));
  return describe_programs(plan);
}

struct PassRunner {
  const char* folder;
  Result<std::string> (*run)(const Input& in);
};

constexpr PassRunner kPasses[] = {
    {"differentiate", run_differentiate},
    {"accumulate_microbatches", run_accumulate},
    {"apply_sharding", run_shard},
    {"data_parallel", run_data_parallel},
    {"build_update", run_build_update},
    {"clean_graph", run_clean},
    {"fuse_ops", run_fuse},
    {"infer_precision", run_infer_precision},
    {"infer_precision_f8", run_infer_precision_f8},
    {"choose_layout", run_choose_layout},
    {"partition_subgraphs", run_partition},
    {"plan_memory", run_plan_memory},
    {"plan_recompute", run_plan_recompute},
    {"split_stages", run_split_stages},
    {"schedule_collectives", run_schedule_collectives},
};

std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

struct Case {
  const PassRunner* pass;
  fs::path input;
};

std::vector<Case> find_cases() {
  std::vector<Case> cases;
  for (const PassRunner& pass : kPasses) {
    const fs::path folder = fs::path(kRoot) / pass.folder;
    std::error_code error;
    std::vector<fs::path> paths;
    for (const auto& entry : fs::directory_iterator(folder, error)) {
      if (entry.path().extension() == ".sgir") paths.push_back(entry.path());
    }
    std::sort(paths.begin(), paths.end());
    for (const fs::path& path : paths) cases.push_back({&pass, path});
  }
  return cases;
}

class GoldenTest : public testing::TestWithParam<Case> {};

TEST_P(GoldenTest, ResultIsExpected) {
  const Case& c = GetParam();
  Input in;
  in.text = read_file(c.input);
  Result<Graph> graph = parse_graph(in.text);
  ASSERT_TRUE(graph.ok()) << graph.status().to_string();
  in.graph = *graph;
  const Result<std::string> result = c.pass->run(in);
  const bool invalid = c.input.stem().string().ends_with("_invalid");
  EXPECT_EQ(result.ok(), !invalid) << result.status().to_string();
  const std::string actual = result.ok() ? *result
                                         : std::string(to_string(result.status().code())) + ": " +
                                               result.status().message() + "\n";
  fs::path expected = c.input;
  expected.replace_extension(".expected");
  if (std::getenv("SGA_UPDATE_GOLDEN") != nullptr) {
    std::ofstream(expected, std::ios::binary) << actual;
    return;
  }
  ASSERT_TRUE(fs::exists(expected)) << expected;
  EXPECT_EQ(actual, read_file(expected)) << "SGA_UPDATE_GOLDEN=1 rewrites " << expected;
}

std::string case_name(const testing::TestParamInfo<Case>& info) {
  return std::string(info.param.pass->folder) + "_" + info.param.input.stem().string();
}

INSTANTIATE_TEST_SUITE_P(Passes, GoldenTest, testing::ValuesIn(find_cases()), case_name);

TEST(GoldenFiles, EveryPassHasCasesAndNoFileIsLeftOver) {
  for (const PassRunner& pass : kPasses) {
    const fs::path folder = fs::path(kRoot) / pass.folder;
    ASSERT_TRUE(fs::is_directory(folder)) << folder;
    int cases = 0;
    for (const auto& entry : fs::directory_iterator(folder)) {
      fs::path input = entry.path();
      input.replace_extension(".sgir");
      EXPECT_TRUE(fs::exists(input)) << entry.path() << " belongs to no case";
      ++cases;
    }
    EXPECT_GT(cases, 0) << folder;
  }
}

}  // namespace
}  // namespace sgactor::graph
