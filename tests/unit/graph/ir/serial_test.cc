#include "graph/ir/serial.h"

#include "graph/ir/builder.h"
#include "graph/ir/verify.h"
#include "tests/unit/graph/ir/random_graph.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

namespace sgactor::graph {
namespace {

TEST(SerialTest, RandomGraphsRoundTrip) {
  EXPECT_TRUE(rc::check("deserialize_graph(serialize_graph(g)) == g", [](uint64_t seed) {
    const Graph graph = random_graph(seed, *rc::gen::inRange(0, 60));
    const Result<Graph> read = deserialize_graph(serialize_graph(graph));
    if (!read.ok()) RC_FAIL(read.status().to_string());
    RC_ASSERT(read.value() == graph);
  }));
}

TEST(SerialTest, KeepsTheNumberingOfLateInputs) {
  EXPECT_TRUE(rc::check("ids survive", [](uint64_t seed) {
    const Graph graph = shuffle_graph(random_graph(seed, 20), seed);
    if (!verify(graph).ok()) return;  // an accumulator's reader came behind its update
    const Result<Graph> read = deserialize_graph(serialize_graph(graph));
    RC_ASSERT(read.ok());
    RC_ASSERT(read.value() == graph);
  }));
}

TEST(SerialTest, NamesMayHoldAnyBytes) {
  Graph graph;
  graph.name = std::string("a\0b", 3);
  Builder b(graph);
  b.output(b.input({DType::kF32, {}}, Role::kScalar, std::string("\xff\0", 2)), Role::kMetric, "");
  const Result<Graph> read = deserialize_graph(serialize_graph(graph));
  ASSERT_TRUE(read.ok()) << read.status().to_string();
  EXPECT_EQ(*read, graph);
}

TEST(SerialTest, BytesAreEqualForEqualGraphs) {
  EXPECT_EQ(serialize_graph(random_graph(5, 40)), serialize_graph(random_graph(5, 40)));
  EXPECT_NE(serialize_graph(random_graph(5, 40)), serialize_graph(random_graph(6, 40)));
}

TEST(SerialTest, EveryCutIsCorruption) {
  const std::string bytes = serialize_graph(random_graph(7, 20));
  for (size_t size = 0; size < bytes.size(); ++size) {
    const Result<Graph> read = deserialize_graph(std::string_view(bytes).substr(0, size));
    ASSERT_FALSE(read.ok()) << size;
    ASSERT_EQ(read.status().code(), Code::kCorruption) << size;
  }
}

TEST(SerialTest, InvalidGraphIsCorruption) {
  Graph graph;
  Builder b(graph);
  const ValueId x = b.input({DType::kF32, {2}}, Role::kScalar, "x");
  b.output(b.neg(x), Role::kMetric, "y");
  graph.mutable_op(0).operands[0] = 1;  // its own result
  const Result<Graph> read = deserialize_graph(serialize_graph(graph));
  ASSERT_FALSE(read.ok());
  EXPECT_EQ(read.status().code(), Code::kCorruption);
  EXPECT_NE(read.status().message().find("not defined before it"), std::string::npos);
}

}  // namespace
}  // namespace sgactor::graph
