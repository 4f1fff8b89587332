// Measured times in place of the cost model's: their file, and what they change in a plan.
#include "graph/compiler/profile.h"

#include "graph/compiler/pipeline.h"
#include "graph/ir/text.h"
#include "graph/passes/partition_subgraphs.h"
#include "graph/passes/split_stages.h"
#include "graph/plan/serial.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace sgactor::graph {
namespace {

Profile sample() {
  Profile p;
  p.backend = "cpu";
  p.device = "a \"CPU\"";
  p.subgraphs[0x0123456789abcdef] = {1500, 7};
  p.subgraphs[0xffffffffffffffff] = {1, 1};
  p.collectives[{LaunchKind::kAllGather, 4096, 8}] = {20000, 3};
  p.collectives[{LaunchKind::kReduceScatter, 4096, 8}] = {30000, 3};
  return p;
}

TEST(ProfileTest, RoundTrips) {
  const std::string text = write_profile(sample());
  const Result<Profile> back = parse_profile(text);
  ASSERT_TRUE(back.ok()) << back.status().to_string();
  EXPECT_EQ(*back, sample());
  EXPECT_EQ(write_profile(*back), text);
  EXPECT_TRUE(parse_profile(write_profile({})).ok());
}

TEST(ProfileTest, RefusesDamagedTextInOneLine) {
  const std::string good = write_profile(sample());
  const auto with = [&](std::string_view part, std::string_view other) {
    std::string text = good;
    const size_t at = text.find(part);
    EXPECT_NE(at, std::string::npos) << part;
    return text.replace(at, part.size(), other);
  };
  const std::pair<std::string, std::string> cases[] = {
      {"", "no whole JSON"},
      {good.substr(0, good.size() / 2), "no whole JSON"},
      {"[]", "\"format\""},
      {with("sgactor-profile-1", "sgactor-profile-9"), "\"format\""},
      {with("\"backend\"", "\"backe\""), "\"backend\" is missing"},
      {with("0123456789abcdef", "0123456789abcdeg"), "16 hexadecimal digits"},
      {with("0123456789abcdef", "ffffffffffffffff"), "a subgraph comes twice"},
      {with("\"median_ns\": 1500", "\"median_ns\": 0"), "\"median_ns\""},
      {with("\"median_ns\": 1500", "\"median_ns\": -3"), "\"median_ns\""},
      {with("\"median_ns\": 1500", "\"median_ns\": 1e300"), "\"median_ns\""},
      {with("\"median_ns\": 1500", "\"median_ns\": \"1\""), "\"median_ns\""},
      {with("\"count\": 7", "\"count\": null"), "\"count\""},
      {with("all_gather", "all_gatherer"), "name of a collective"},
      {with("reduce_scatter", "all_gather"), "a collective comes twice"},
      {with("\"members\": 8", "\"members\": 99999999999"), "\"members\""},
      {with("\"subgraphs\": [", "\"subgraphs\": 3, \"x\": ["), "expected a list"},
      {with("\"subgraphs\": [", "\"subgraphs\": [7, "), "expected an object"},
  };
  for (const auto& [text, part] : cases) {
    const Result<Profile> parsed = parse_profile(text);
    ASSERT_FALSE(parsed.ok()) << part;
    EXPECT_EQ(parsed.status().code(), Code::kInvalidArgument);
    const std::string& message = parsed.status().message();
    EXPECT_NE(message.find(part), std::string::npos) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos);
  }
}

// Four layers of one matmul each, no two of the same shape.
constexpr std::string_view kFourLayers = R"(graph @four {
  input %x : f32[64, 64] parameter "x"
  input %w0 : f32[64, 64] parameter "w.0"
  input %w1 : f32[64, 65] parameter "w.1"
  input %w2 : f32[65, 66] parameter "w.2"
  input %w3 : f32[66, 64] parameter "w.3"
  %h0 = matmul(%x, %w0) {trans_a = false, trans_b = false} : f32[64, 64] @forward "layer.0"
  %h1 = matmul(%h0, %w1) {trans_a = false, trans_b = false} : f32[64, 65] @forward "layer.1"
  %h2 = matmul(%h1, %w2) {trans_a = false, trans_b = false} : f32[64, 66] @forward "layer.2"
  %h3 = matmul(%h2, %w3) {trans_a = false, trans_b = false} : f32[64, 64] @forward "layer.3"
  output %h3 logits "logits"
}
)";

/// Segments whose forward runs on stage 0 of two.
std::vector<std::string> first_stage(const Plan& whole, const Profile* profile) {
  Plan plan = whole;
  PipelineOptions options{2, 1, PipelineSchedule::k1F1B, {}};
  const LaunchTimes times(plan, profile);
  if (profile != nullptr) options.subgraph_cost = times.subgraph_seconds();
  for (double& cost : options.subgraph_cost) cost *= 1e9;
  const Status split = split_stages(plan, options);
  EXPECT_TRUE(split.ok()) << split.to_string();
  std::vector<std::string> segments;
  for (const Launch& l : plan.programs[0].launches) {
    if (l.kind == LaunchKind::kSubgraph)
      segments.push_back(plan.segments[static_cast<size_t>(l.segment)]);
  }
  return segments;
}

TEST(ProfileTest, ALayerTenTimesDearerMovesTheBorder) {
  const Result<Graph> graph = parse_graph(std::string(kFourLayers));
  ASSERT_TRUE(graph.ok()) << graph.status().to_string();
  const Result<Plan> plan = partition_forward(*graph, StorageModel::kNative);
  ASSERT_TRUE(plan.ok()) << plan.status().to_string();
  ASSERT_EQ(plan->subgraphs.size(), 4U);
  using Names = std::vector<std::string>;
  EXPECT_EQ(first_stage(*plan, nullptr), (Names{"layer.0", "layer.1"}));
  Profile profile;
  for (const Subgraph& s : plan->subgraphs) profile.subgraphs[s.structure_hash] = {1000, 1};
  EXPECT_EQ(first_stage(*plan, &profile), (Names{"layer.0", "layer.1"}));
  profile.subgraphs[plan->subgraphs[0].structure_hash].median_ns = 10000;
  EXPECT_EQ(first_stage(*plan, &profile), (Names{"layer.0"}));
  profile.subgraphs[plan->subgraphs[0].structure_hash].median_ns = 1000;
  profile.subgraphs[plan->subgraphs[3].structure_hash].median_ns = 10000;
  EXPECT_EQ(first_stage(*plan, &profile), (Names{"layer.0", "layer.1", "layer.2"}));
}

TEST(ProfileTest, WhatIsNotMeasuredIsScaledToWhatIs) {
  const Result<Graph> graph = parse_graph(std::string(kFourLayers));
  ASSERT_TRUE(graph.ok());
  const Result<Plan> plan = partition_forward(*graph, StorageModel::kNative);
  ASSERT_TRUE(plan.ok());
  const LaunchTimes model(*plan, nullptr);
  Profile profile;
  const double slower = 1000;
  profile.subgraphs[plan->subgraphs[1].structure_hash] = {
      static_cast<int64_t>(model.subgraph_seconds()[1] * slower * 1e9), 1};
  const LaunchTimes times(*plan, &profile);
  for (size_t s = 0; s < 4; ++s) {
    EXPECT_NEAR(times.subgraph_seconds()[s] / model.subgraph_seconds()[s], slower, 1) << s;
  }
  EXPECT_EQ(times.describe_subgraphs(), "1 of 4 subgraphs measured");
}

CompileOptions sharded() {
  CompileOptions o;
  o.mesh = {1, 2, 1};
  o.zero_stage = 3;
  o.micro_batch_size = 1;
  o.seq_len = 16;
  return o;
}

/// Of every subgraph `subgraph_ns`, of every collective `collective_ns`.
std::shared_ptr<Profile> flat_profile(const Plan& plan, int64_t subgraph_ns,
                                      int64_t collective_ns) {
  auto profile = std::make_shared<Profile>();
  for (const Subgraph& s : plan.subgraphs) profile->subgraphs[s.structure_hash] = {subgraph_ns, 1};
  for (const RankProgram& program : plan.programs) {
    for (const Launch& l : program.launches) {
      if (l.kind != LaunchKind::kSubgraph)
        profile->collectives[collective_key(plan, program, l)] = {collective_ns, 1};
    }
  }
  return profile;
}

std::string note_of(const Compiled& compiled, std::string_view pass) {
  for (const PassRecord& record : compiled.passes) {
    if (record.name == pass) return record.note;
  }
  return "";
}

TEST(ProfileTest, GathersStartEarlierWhereOneTakesSeveralLaunches) {
  const LlamaConfig model = *llama_preset("llama-tiny");
  CompileOptions options = sharded();
  options.choose_buckets = false;
  const Result<Compiled> plain = compile_training(model, options);
  ASSERT_TRUE(plain.ok()) << plain.status().to_string();
  options.profile = flat_profile(plain->plan, 1000000, 1000);
  const Result<Compiled> quick = compile_training(model, options);
  ASSERT_TRUE(quick.ok()) << quick.status().to_string();
  const std::string quick_note = note_of(*quick, "schedule_collectives");
  EXPECT_NE(quick_note.find("gathers 1 launches ahead"), std::string::npos) << quick_note;
  // One launch in eight takes long, so that several gathers must be under way before it.
  options.profile = flat_profile(plain->plan, 1000000, 2500000);
  auto uneven = std::make_shared<Profile>(*options.profile);
  for (const Subgraph& s : plain->plan.subgraphs) {
    if (s.name.starts_with("embed")) uneven->subgraphs[s.structure_hash].median_ns = 20000000;
  }
  options.profile = uneven;
  const Result<Compiled> slow = compile_training(model, options);
  ASSERT_TRUE(slow.ok()) << slow.status().to_string();
  const std::string slow_note = note_of(*slow, "schedule_collectives");
  EXPECT_NE(slow_note.find("gathers 4 launches ahead"), std::string::npos) << slow_note;
  EXPECT_NE(slow_note.find("subgraphs measured"), std::string::npos) << slow_note;
  const Status verified = verify_plan(slow->plan);
  EXPECT_TRUE(verified.ok()) << verified.to_string();
}

TEST(ProfileTest, TheSameProfileGivesTheSamePlan) {
  const LlamaConfig model = *llama_preset("llama-tiny");
  CompileOptions options = sharded();
  options.mesh.pp = 2;
  options.num_micro_batches = 4;
  options.zero_stage = 1;
  const Result<Compiled> plain = compile_training(model, options);
  ASSERT_TRUE(plain.ok()) << plain.status().to_string();
  const auto bytes = [&](const Profile& profile) {
    options.profile = std::make_shared<Profile>(profile);
    Result<Compiled> compiled = compile_training(model, options);
    EXPECT_TRUE(compiled.ok()) << compiled.status().to_string();
    compiled->plan.compile_ms = 0;
    return serialize_plan(compiled->plan);
  };
  Profile profile = *flat_profile(plain->plan, 1000000, 1000);
  const Result<Profile> read = parse_profile(write_profile(profile));
  ASSERT_TRUE(read.ok());
  const std::string first = bytes(profile);
  EXPECT_EQ(bytes(*read), first);
  for (const Subgraph& s : plain->plan.subgraphs) {
    if (s.name.starts_with("head")) profile.subgraphs[s.structure_hash].median_ns = 30000000;
  }
  EXPECT_NE(bytes(profile), first);
}

/// Two hosts of one device each.
std::shared_ptr<const ClusterSpec> two_hosts(double bytes_per_s, double latency_s) {
  auto cluster = std::make_shared<ClusterSpec>();
  cluster->network = {bytes_per_s, latency_s};
  for (const char* name : {"a", "b"}) {
    cluster->hosts.push_back({name, {1e11, 1e-6}, {{"cpu", int64_t{1} << 34, 1e11, 2e10}}});
  }
  return cluster;
}

int64_t num_sums(const Plan& plan) {
  const auto& launches = plan.programs[0].launches;
  return std::count_if(launches.begin(), launches.end(), [](const Launch& l) {
    return l.kind == LaunchKind::kAllReduce && l.phase == Phase::kReduce;
  });
}

int64_t num_sums(const CompileOptions& options) {
  const Result<Compiled> compiled = compile_training(*llama_preset("llama-tiny"), options);
  EXPECT_TRUE(compiled.ok()) << compiled.status().to_string();
  return num_sums(compiled->plan);
}

CompileOptions replicated() {
  CompileOptions o = sharded();
  o.zero_stage = 0;
  return o;
}

TEST(ProfileTest, ALinkOfHighLatencyGetsLargerBuckets) {
  CompileOptions options = replicated();
  options.cluster = two_hosts(1e9, 1e-6);
  const int64_t quick = num_sums(options);
  options.cluster = two_hosts(1e9, 5e-3);
  const int64_t slow = num_sums(options);
  EXPECT_LT(slow, quick);
  EXPECT_LE(slow, 2);
  // Where bytes take the time, the first layers' sums must not wait for the last one's gradients.
  options.cluster = two_hosts(1e6, 1e-6);
  EXPECT_GE(num_sums(options), quick);
}

TEST(ProfileTest, SlowCollectivesOfAProfileJoinBuckets) {
  CompileOptions options = replicated();
  options.cluster = two_hosts(1e9, 1e-6);
  const Result<Compiled> plain = compile_training(*llama_preset("llama-tiny"), options);
  ASSERT_TRUE(plain.ok()) << plain.status().to_string();
  options.profile = flat_profile(plain->plan, 1000000, 1000);
  const int64_t quick = num_sums(options);
  options.profile = flat_profile(plain->plan, 1000000, 20000000);
  const Result<Compiled> slow = compile_training(*llama_preset("llama-tiny"), options);
  ASSERT_TRUE(slow.ok()) << slow.status().to_string();
  EXPECT_LT(num_sums(slow->plan), quick);
  EXPECT_EQ(num_sums(slow->plan), 1);
  // The plan says what it compared, by which times, and why it took what it did.
  for (const PassRecord& record : slow->passes) {
    if (record.name != "schedule_collectives") continue;
    EXPECT_NE(record.note.find("buckets of "), std::string::npos) << record.note;
    std::string all;
    for (const std::string& line : record.details) all += line + "\n";
    EXPECT_NE(all.find("buckets a segment each: "), std::string::npos) << all;
    EXPECT_NE(all.find("exposed in a step of"), std::string::npos) << all;
    EXPECT_NE(all.find("by measured times"), std::string::npos) << all;
    EXPECT_NE(all.find("are taken: the smallest within half a percent"), std::string::npos) << all;
  }
}

TEST(ProfileTest, ABucketOfTheJobStays) {
  CompileOptions options = replicated();
  options.cluster = two_hosts(1e9, 5e-3);
  options.choose_buckets = false;
  EXPECT_GT(num_sums(options), 2);
  options.schedule.bucket_bytes = int64_t{1} << 30;
  EXPECT_EQ(num_sums(options), 1);
}

/// Two measured sizes of a kind give the time of its third: a fixed part and one a byte.
TEST(ProfileTest, OtherSizesLieOnTheLineOfMeasuredOnes) {
  CompileOptions options = replicated();
  const Result<Compiled> compiled = compile_training(*llama_preset("llama-tiny"), options);
  ASSERT_TRUE(compiled.ok()) << compiled.status().to_string();
  const RankProgram& program = compiled->plan.programs[0];
  Profile profile;
  for (const int64_t bytes : {1000, 2000, 50000}) {
    profile.collectives[{LaunchKind::kAllReduce, bytes, 2}] = {30000 + 2 * bytes, 4};
  }
  const LaunchTimes times(compiled->plan, &profile);
  int checked = 0;
  for (const Launch& l : program.launches) {
    if (l.kind != LaunchKind::kAllReduce) continue;
    const auto bytes = static_cast<double>(communication_bytes(program, l));
    EXPECT_NEAR(times.seconds(program, l), 30e-6 + 2e-9 * bytes, 1e-8);
    ++checked;
  }
  EXPECT_GT(checked, 0);
}

/// What a run of `plan` would record on a machine that is `slower` times what the model says.
std::shared_ptr<Profile> record(const Plan& plan, const ClusterSpec& cluster, double slower) {
  auto profile = flat_profile(plan, 1000000, 1);
  const CostModel model(plan, &cluster);
  for (auto& [key, time] : profile->collectives) {
    const double s = slower * model.communication_seconds(key.kind, key.bytes, key.members);
    time.median_ns = static_cast<int64_t>(s * 1e9);
  }
  return profile;
}

/// A run whose plan has one bucket measures one size: that says of the others how much slower than
/// the model they are, so that the next plan has one bucket too.
TEST(ProfileTest, OneMeasuredSizeKeepsTheBucketThatItIsOf) {
  CompileOptions options = replicated();
  options.cluster = two_hosts(1e9, 5e-3);
  std::vector<std::string> plans;
  size_t sizes = 0;
  for (int round = 0; round < 4; ++round) {
    Result<Compiled> compiled = compile_training(*llama_preset("llama-tiny"), options);
    ASSERT_TRUE(compiled.ok()) << compiled.status().to_string();
    compiled->plan.compile_ms = 0;
    plans.push_back(serialize_plan(compiled->plan));
    options.choose_buckets = true;
    options.profile = record(compiled->plan, *options.cluster, 30);
    sizes = options.profile->collectives.size();
    if (round == 0) {
      // The first run has its buckets by segment.
      options.choose_buckets = false;
      const Result<Compiled> segments = compile_training(*llama_preset("llama-tiny"), options);
      ASSERT_TRUE(segments.ok());
      options.choose_buckets = true;
      options.profile = record(segments->plan, *options.cluster, 30);
      EXPECT_GT(options.profile->collectives.size(), 1U);
    }
  }
  EXPECT_EQ(sizes, 1U) << "one bucket is best here";
  EXPECT_EQ(plans[2], plans[1]);
  EXPECT_EQ(plans[3], plans[1]);
}

}  // namespace
}  // namespace sgactor::graph
