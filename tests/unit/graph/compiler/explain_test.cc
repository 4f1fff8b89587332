#include "graph/compiler/explain_html.h"
#include "graph/compiler/explain_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace sgactor::graph {
namespace {

size_t count(const std::string& text, std::string_view part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

Compiled compiled(int32_t num_micro_batches = 2) {
  CompileOptions options;
  options.num_micro_batches = num_micro_batches;
  options.precision = DType::kBF16;
  const auto config = llama_preset("llama-tiny");
  SGA_CHECK(config.has_value(), "no preset");
  auto result = compile_training(*config, options);
  SGA_CHECK(result.ok(), result.status().to_string());
  return *result;
}

TEST(HtmlEscapeTest, LeavesNothingThatHtmlReads) {
  EXPECT_EQ(html_escape("a<b> & \"c\" 'd'"), "a&lt;b&gt; &amp; &quot;c&quot; &#39;d&#39;");
  EXPECT_EQ(html_escape(std::string_view("\0\n\x7f", 3)), "&#xFFFD;&#xFFFD;&#xFFFD;");
  EXPECT_EQ(html_escape("gewöhnlich"), "gewöhnlich");
}

TEST(ExplainHtmlTest, HasEverySectionAndNothingFromOutside) {
  const Compiled c = compiled();
  const std::string page = explain_html(c, {"tiny", "two micro-batches", {}});
  for (const char* part :
       {"<h2>Passes</h2>", "<h2>Memory over a step</h2>", "<h2>Schedule of a step</h2>",
        "<h2>Cost by subgraph</h2>", "<h2>Graph by layer</h2>", "in bf16", "layer.backward"}) {
    EXPECT_NE(page.find(part), std::string::npos) << part;
  }
  for (const PassRecord& pass : c.passes) {
    EXPECT_NE(page.find("<td>" + pass.name + "</td>"), std::string::npos) << pass.name;
  }
  for (const char* outside :
       {"http:", "https:", "//", "src=", "href=", "url(", "@import", "<script"}) {
    EXPECT_EQ(page.find(outside), std::string::npos) << outside;
  }
  // A rectangle a slot that takes room, in one drawing or both; and one a firing.
  const RankProgram& program = c.plan.programs[0];
  for (const Buffer& b : program.buffers) {
    if (b.bytes == 0) continue;
    EXPECT_NE(page.find("<title>" + b.name + " ("), std::string::npos) << b.name;
  }
  EXPECT_EQ(count(page, ", micro-batch "), program.lanes[0].order.size());
  EXPECT_EQ(page, explain_html(c, {"tiny", "two micro-batches", {}}));
}

TEST(ExplainHtmlTest, EscapesHostileNames) {
  Compiled c = compiled();
  const std::string evil = "</title><script>alert('x')</script>\"&\x01";
  c.plan.segments[0] = evil;
  c.plan.subgraphs[0].name = evil;
  c.passes[0].name = evil;
  c.passes[0].note = evil;
  c.passes[0].details = {evil};
  for (RankProgram& program : c.plan.programs) {
    for (Buffer& b : program.buffers) b.name = evil;
    for (Launch& l : program.launches) l.name = evil;
    for (Lane& l : program.lanes) l.name = evil;
  }
  const std::string page = explain_html(c, {evil, evil, {}});
  EXPECT_EQ(page.find("<script"), std::string::npos);
  EXPECT_EQ(page.find('\x01'), std::string::npos);
  EXPECT_EQ(count(page, "<title>"), count(page, "</title>"));
}

TEST(ExplainHtmlTest, LargestPresetFitsABrowser) {
  CompileOptions options;
  options.micro_batch_size = 1;
  options.num_micro_batches = 64;
  options.seq_len = 4096;
  const auto c = compile_training(*llama_preset("llama-70b"), options);
  ASSERT_TRUE(c.ok()) << c.status().to_string();
  const std::string page = explain_html(*c, {"llama-70b", "", {}});
  EXPECT_LT(page.size(), size_t{8} << 20);
  EXPECT_NE(page.find("firings are drawn"), std::string::npos);
}

/// compute: a, b, c; another lane: r between, which reads a and is read by c.
RankProgram two_lanes() {
  RankProgram program;
  program.launches.resize(4);
  program.launches[3].lane = 1;
  program.launches[3].inputs = {{0, 0, EdgeKind::kSameMicroBatch}};
  program.launches[2].inputs = {{1, 3, EdgeKind::kSameMicroBatch}};
  program.lanes.resize(2);
  for (LaunchId l = 0; l < 3; ++l) program.lanes[0].order.push_back({l, 0});
  program.lanes[1].order.push_back({3, 0, 1});
  return program;
}

TEST(TimeScheduleTest, LanesOverlapAndWaitForEachOther) {
  const RankProgram program = two_lanes();
  const std::vector<TimedFiring> hidden = time_schedule(program, {1, 2, 1, 2});
  ASSERT_EQ(hidden.size(), 4U);
  const auto of = [](const std::vector<TimedFiring>& all, LaunchId launch) {
    return *std::find_if(all.begin(), all.end(),
                         [&](const TimedFiring& f) { return f.launch == launch; });
  };
  EXPECT_EQ(of(hidden, 3).start_s, 1);
  EXPECT_EQ(of(hidden, 2).start_s, 3);
  EXPECT_DOUBLE_EQ(overlap_share(hidden), 1);
  const std::vector<TimedFiring> exposed = time_schedule(program, {1, 2, 1, 8});
  EXPECT_EQ(of(exposed, 2).start_s, 9);
  EXPECT_DOUBLE_EQ(overlap_share(exposed), 0.25);
}

TEST(TimeScheduleTest, OneLaneRunsBackToBack) {
  const Compiled c = compiled(3);
  const RankProgram& program = c.plan.programs[0];
  const std::vector<TimedFiring> firings =
      time_schedule(program, std::vector<double>(program.launches.size(), 0.5));
  ASSERT_EQ(firings.size(), program.lanes[0].order.size());
  for (size_t i = 0; i < firings.size(); ++i) {
    EXPECT_EQ(firings[i].launch, program.lanes[0].order[i].launch);
    EXPECT_DOUBLE_EQ(firings[i].start_s, 0.5 * static_cast<double>(i));
  }
  EXPECT_DOUBLE_EQ(overlap_share(firings), 1);
}

TEST(EstimateLaunchTest, TakesTheLongerOfWorkAndBytes) {
  Plan plan;
  plan.subgraphs.resize(1);
  plan.subgraphs[0].flops = 2e12;
  plan.subgraphs[0].bytes_moved = 1'000'000'000;
  RankProgram program;
  program.buffers.resize(1);
  program.buffers[0].bytes = 4'000'000;
  Launch launch;
  launch.subgraph = 0;
  const DeviceModel model{1e12, 1e9, 1e9, 0.5};
  EXPECT_DOUBLE_EQ(estimate_launch(plan, program, launch, model), 2.5);
  plan.subgraphs[0].bytes_moved *= 4;
  EXPECT_DOUBLE_EQ(estimate_launch(plan, program, launch, model), 4.5);
  launch.kind = LaunchKind::kAllReduce;
  launch.inputs = {{0, kNoLaunch, EdgeKind::kState}};
  EXPECT_DOUBLE_EQ(estimate_launch(plan, program, launch, model), 0.504);
}

}  // namespace
}  // namespace sgactor::graph
