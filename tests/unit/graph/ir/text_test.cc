#include "graph/ir/text.h"

#include "graph/ir/builder.h"
#include "graph/ir/serial.h"
#include "graph/ir/verify.h"
#include "tests/unit/graph/ir/random_graph.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <limits>

namespace sgactor::graph {
namespace {

constexpr std::string_view kSmall = R"(graph @small {
  input %0 : f32[4, 8] parameter "w"
  input %1 : f32[2, 8] activation "x"
  %2 = matmul(%1, %0) {trans_a = false, trans_b = true} : f32[2, 4] @forward embed
  %3, %4 = rms_norm(%1, %5) {eps = 1e-05} : f32[2, 8], f32[2] @forward "layer.0"
  output %2 logits "y"
}
)";

/// The error of `text`, which must have one.
std::string error_of(std::string_view text) {
  const Result<Graph> graph = parse_graph(text);
  EXPECT_FALSE(graph.ok()) << text;
  if (graph.ok()) return "";
  EXPECT_EQ(graph.status().code(), Code::kInvalidArgument);
  return graph.status().message();
}

/// Error of a graph with input %x : f32[2, 3], then `line`, which begins in line 3.
std::string error_of_line(const std::string& line) {
  return error_of("graph @g {\n  input %x : f32[2, 3] activation \"x\"\n" + line + "\n}\n");
}

#define EXPECT_CONTAINS(text, part) \
  EXPECT_NE((text).find(part), std::string::npos) << "found: " << (text)

TEST(TextTest, PrintsTheDocumentedForm) {
  Graph graph;
  graph.name = "llama";
  Builder b(graph);
  const ValueId w = b.input({DType::kF32, {256, 192}}, Role::kParameter, "embed.weight");
  const ValueId ids = b.input({DType::kI32, {4, 128}}, Role::kTokens, "tokens");
  const ValueId norm = b.input({DType::kF32, {192}}, Role::kParameter, "norm");
  b.set_segment("embed");
  const ValueId h = b.gather(w, ids);
  b.set_segment("layer.0");
  b.output(b.rms_norm(h, norm, 1e-5).first, Role::kActivation, "h");
  ASSERT_TRUE(b.status().ok()) << b.status().to_string();
  EXPECT_EQ(print_graph(graph),
            "graph @llama {\n"
            "  input %0 : f32[256, 192] parameter \"embed.weight\"\n"
            "  input %1 : i32[4, 128] tokens \"tokens\"\n"
            "  input %2 : f32[192] parameter \"norm\"\n"
            "  %3 = gather(%0, %1) : f32[4, 128, 192] @forward embed\n"
            "  %4, %5 = rms_norm(%3, %2) {eps = 1e-05} : f32[4, 128, 192], f32[4, 128] @forward "
            "\"layer.0\"\n"
            "  output %4 activation \"h\"\n"
            "}\n");
}

TEST(TextTest, ParsesNamesAndComments) {
  const Result<Graph> graph = parse_graph(R"(# a comment
graph @"two words" {  # another
  input %x.1 : f32[] scalar "a\"b\\c\x0a"
  %y = scale ( %x.1 ) { factor = -inf } : f32[]
  output %y metric "lr" })");
  ASSERT_TRUE(graph.ok()) << graph.status().to_string();
  EXPECT_EQ(graph->name, "two words");
  EXPECT_EQ(graph->inputs()[0].name, "a\"b\\c\n");
  EXPECT_EQ(graph->op(0).attrs.f64("factor"), -std::numeric_limits<double>::infinity());
  EXPECT_EQ(graph->op(0).phase, Phase::kForward);
  EXPECT_EQ(graph->find_output(Role::kMetric, "lr"), 1U);
}

TEST(TextTest, RandomGraphsRoundTrip) {
  EXPECT_TRUE(rc::check("parse_graph(print_graph(g)) == g", [](uint64_t seed) {
    const Graph graph = random_graph(seed, *rc::gen::inRange(0, 60));
    RC_ASSERT(verify(graph).ok());
    const std::string text = print_graph(graph);
    const Result<Graph> parsed = parse_graph(text);
    if (!parsed.ok()) RC_FAIL(parsed.status().to_string() + "\n" + text);
    RC_ASSERT(parsed.value() == graph);
    RC_ASSERT(print_graph(parsed.value()) == text);
  }));
}

TEST(TextTest, PrintingMakesNumbersDense) {
  EXPECT_TRUE(rc::check("numbering does not show", [](uint64_t seed) {
    const Graph shuffled = shuffle_graph(random_graph(seed, 30), seed + 1);
    if (!verify(shuffled).ok()) return;  // an accumulator's reader came behind its update
    const Result<Graph> parsed = parse_graph(print_graph(shuffled));
    RC_ASSERT(parsed.ok());
    RC_ASSERT(print_graph(parsed.value()) == print_graph(shuffled));
    RC_ASSERT(schema_hash(parsed.value()) == schema_hash(shuffled));
  }));
}

TEST(TextTest, KeepsSegmentsThatNoOpBringsUpInOrder) {
  Graph graph;
  for (const char* segment : {"head", "input", "layer.0", "unused"}) graph.segment_index(segment);
  Builder b(graph);
  const ValueId x = b.input({DType::kF32, {}}, Role::kScalar, "x");
  b.set_segment("input");
  b.neg(x);
  b.set_segment("head");
  b.output(b.neg(x), Role::kMetric, "y");
  const std::string text = print_graph(graph);
  EXPECT_CONTAINS(text, R"(segments head, "input", "layer.0", unused)");
  const Result<Graph> parsed = parse_graph(text);
  ASSERT_TRUE(parsed.ok()) << parsed.status().to_string();
  EXPECT_EQ(*parsed, graph);
}

TEST(TextTest, FloatsKeepEveryBit) {
  for (double value : {0.1, -0.0, 5e-324, 1.7976931348623157e308, 1.0 / 3, 1e15, 1e16, 123456789.0,
                       std::numeric_limits<double>::infinity()}) {
    Graph graph;
    Builder b(graph);
    b.output(b.constant(value, {DType::kF64, {}}), Role::kMetric, "c");
    const Result<Graph> parsed = parse_graph(print_graph(graph));
    ASSERT_TRUE(parsed.ok()) << value << ": " << parsed.status().to_string();
    EXPECT_EQ(schema_hash(*parsed), schema_hash(graph)) << value;  // tells -0.0 from 0.0
  }
  Graph graph;
  Builder b(graph);
  b.output(b.constant(std::numeric_limits<double>::quiet_NaN(), {DType::kF64, {}}), Role::kMetric,
           "c");
  EXPECT_CONTAINS(print_graph(graph), "value = nan");
  EXPECT_TRUE(parse_graph(print_graph(graph)).ok());
}

TEST(TextTest, ErrorsNameLineAndColumn) {
  EXPECT_EQ(error_of(kSmall), "line 5, column 25: %5 is not defined before this");
  EXPECT_EQ(error_of(""), "line 1, column 1: expected 'graph'");
  EXPECT_EQ(error_of_line("  %y = frobnicate(%x) : f32[2, 3]"),
            "line 3, column 8: expected the name of an op");
  EXPECT_EQ(error_of_line("  %y = neg(%x) : f32[3, 2]"),
            "line 3, column 3: expected the result types f32[2, 3]");
}

TEST(TextTest, RefusesBadSyntax) {
  EXPECT_CONTAINS(error_of("graph g {}"), "expected '@'");
  EXPECT_CONTAINS(error_of("graph @g {"), "expected an input, an output, an op or '}'");
  EXPECT_CONTAINS(error_of("graph @g {} graph @h {}"), "expected the end");
  EXPECT_CONTAINS(error_of("graph @g { $ }"), "unexpected character");
  EXPECT_CONTAINS(error_of("graph @\"g\n\" {}"), "does not end on its line");
  EXPECT_CONTAINS(error_of(R"(graph @"\q" {})"), "hexadecimal");
  EXPECT_CONTAINS(error_of_line("input % : f32[] scalar \"s\""), "expected a name after %");
  EXPECT_CONTAINS(error_of_line("input %x : f32[] scalar \"s\""), "%x is defined twice");
  EXPECT_CONTAINS(error_of_line("input %y : f32[] number \"s\""), "expected a role");
  EXPECT_CONTAINS(error_of_line("input %y : f32[] scalar s"), "expected a name in quotes");
  EXPECT_CONTAINS(error_of_line("input %y : float[] scalar \"s\""), "expected a dtype");
  EXPECT_CONTAINS(error_of_line("input %y : f32[1 2] scalar \"s\""), "expected ','");
  EXPECT_CONTAINS(error_of_line("input %y : f32[1.5] scalar \"s\""), "expected an integer");
  EXPECT_CONTAINS(error_of_line("%y, %z = neg(%x) : f32[2, 3]"), "number of results");
  EXPECT_CONTAINS(error_of_line("%y = neg(%x) : f32[2, 3] @sideways"), "expected a phase");
  EXPECT_CONTAINS(error_of_line("segments a, b, a"), "listed twice");
  EXPECT_CONTAINS(error_of_line("%y = neg(%x) : f32[2, 3] @forward a\n"
                                "%z = neg(%x) : f32[2, 3] @forward"),
                  "expected the segment");
  EXPECT_CONTAINS(error_of_line("%y = neg(%x) : f32[2, 3] @forward\n"
                                "%z = neg(%x) : f32[2, 3] @forward a"),
                  "earlier ops name no segment");
}

TEST(TextTest, RefusesBadAttributes) {
  auto error = [](const std::string& attrs) {
    return error_of_line("%y = scale(%x) {" + attrs + "} : f32[2, 3]");
  };
  EXPECT_CONTAINS(error("factor = 2"), "attribute factor has another type");
  EXPECT_CONTAINS(error("factor = \"2\""), "attribute factor has another type");
  EXPECT_CONTAINS(error("factor = [2]"), "attribute factor has another type");
  EXPECT_CONTAINS(error("factor = 1e999"), "expected a number that a double holds");
  EXPECT_CONTAINS(error("factor = 1.5x"), "expected a number that a double holds");
  EXPECT_CONTAINS(error("factor = 99999999999999999999"), "expected an integer of 64 bits");
  EXPECT_CONTAINS(error("factor = maybe"), "expected a value of an attribute");
  EXPECT_CONTAINS(error("factor"), "expected '='");
  EXPECT_CONTAINS(error("factor = 1.0, factor = 1.0"), "given twice");
  EXPECT_CONTAINS(error("factor = 1.0, other = 1"), "attribute other is unknown");
  EXPECT_CONTAINS(error(""), "attribute factor is missing");
  std::string many = "a0 = 1";
  for (int i = 1; i < 1000; ++i) many += fmt::format(", a{} = 1", i);
  EXPECT_CONTAINS(error(many), "too many attributes");
}

TEST(TextTest, RefusesHostileExtents) {
  EXPECT_CONTAINS(error_of_line("input %y : f32[-1] scalar \"s\""), "negative");
  EXPECT_CONTAINS(error_of_line("input %y : u8[4294967296, 4294967296] scalar \"s\""), "too large");
  EXPECT_CONTAINS(
      error_of_line("input %y : u8[0, 4294967296, 4294967296, 4294967296] scalar \"s\""),
      "too large");
  EXPECT_CONTAINS(error_of_line("input %y : f32[1,1,1,1,1,1,1,1,1,1,1,1,1] scalar \"s\""), "rank");
  EXPECT_CONTAINS(error_of_line("%y = reshape(%x) {shape = [-2, -3]} : f32[2, 3]"), "negative");
  EXPECT_CONTAINS(
      error_of_line("%y = pad(%x) {axis = 0, before = 9223372036854775807, after = 1} : f32[2, 3]"),
      "too large");
}

TEST(TextTest, VerifiesTheWhole) {
  EXPECT_CONTAINS(error_of_line("output %x logits \"a\"\noutput %x logits \"a\""),
                  "another output of this name");
}

}  // namespace
}  // namespace sgactor::graph
