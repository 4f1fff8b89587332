#include "graph/ir/builder.h"
#include "graph/ir/serial.h"
#include "tests/unit/graph/ir/random_graph.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <set>

namespace sgactor::graph {
namespace {

/// One layer with everything that a hash must see. `change` names what differs from the plain one.
Graph layer(const std::string& change = "", const std::string& prefix = "layers.0") {
  Graph graph;
  Builder b(graph);
  const bool wide = change == "shape";
  const DType dtype = change == "dtype" ? DType::kF64 : DType::kF32;
  const TensorType type{dtype, {wide ? 4 : 2, 8}};
  if (change == "segment") b.set_segment("other");
  if (change == "phase") b.set_phase(Phase::kBackward);
  const ValueId x =
      b.input(type, change == "input role" ? Role::kLogits : Role::kActivation, prefix + ".x");
  const ValueId y = b.input(type, Role::kActivation, prefix + ".y");
  if (change == "unused input") b.input(type, Role::kActivation, prefix + ".z");
  const ValueId first = change == "operand order" ? b.sub(y, x) : b.sub(x, y);
  const ValueId second = change == "op kind" ? b.unary(OpKind::kExp, first) : b.neg(first);
  const ValueId third = b.scale(second, change == "attribute" ? 0.25 : 0.5);
  if (change == "dead op") b.neg(third);
  const ValueId shared = b.square(x);
  const ValueId again = change == "repeated op" ? b.square(x) : shared;
  const ValueId last = b.add(third, b.mul(shared, again));
  b.output(last, change == "output role" ? Role::kLogits : Role::kActivation, prefix + ".out");
  b.output(change == "output value" ? last : third, Role::kMetric, prefix + ".third");
  if (change == "output added") b.output(second, Role::kMetric, prefix + ".second");
  SGA_CHECK(b.status().ok(), b.status().to_string());
  return graph;
}

TEST(SchemaHashTest, IgnoresNumberingAndOrder) {
  EXPECT_TRUE(rc::check("shuffled graphs hash alike", [](uint64_t seed, uint64_t order) {
    const Graph graph = random_graph(seed, 40);
    const Graph shuffled = shuffle_graph(graph, order);
    RC_ASSERT(schema_hash(shuffled) == schema_hash(graph));
    RC_ASSERT(structure_hash(shuffled) == structure_hash(graph));
  }));
}

TEST(SchemaHashTest, IgnoresSegmentAndPhaseTags) {
  EXPECT_EQ(schema_hash(layer("segment")), schema_hash(layer()));
  EXPECT_EQ(schema_hash(layer("phase")), schema_hash(layer()));
}

TEST(SchemaHashTest, SeesEverythingElse) {
  std::set<uint64_t> schemas = {schema_hash(layer())};
  std::set<uint64_t> structures = {structure_hash(layer())};
  size_t count = 1;
  for (const char* change :
       {"shape", "dtype", "input role", "unused input", "operand order", "op kind", "attribute",
        "dead op", "repeated op", "output role", "output value", "output added"}) {
    ++count;
    schemas.insert(schema_hash(layer(change)));
    structures.insert(structure_hash(layer(change)));
    EXPECT_EQ(schemas.size(), count) << change;
    EXPECT_EQ(structures.size(), count) << change;
  }
}

TEST(SchemaHashTest, OnlyTheSchemaSeesNames) {
  EXPECT_EQ(structure_hash(layer("", "layers.1")), structure_hash(layer()));
  EXPECT_NE(schema_hash(layer("", "layers.1")), schema_hash(layer()));
  EXPECT_NE(schema_hash(layer()), structure_hash(layer()));
}

TEST(SchemaHashTest, RandomGraphsDiffer) {
  std::set<uint64_t> seen;
  for (uint64_t seed = 0; seed < 500; ++seed) seen.insert(schema_hash(random_graph(seed, 20)));
  EXPECT_EQ(seen.size(), 500U);
}

// Checkpoints keep the hash: it must not change by accident.
TEST(SchemaHashTest, StaysTheSameFromBuildToBuild) {
  EXPECT_EQ(schema_hash(layer()), 6155327361406739598ULL);
}

}  // namespace
}  // namespace sgactor::graph
