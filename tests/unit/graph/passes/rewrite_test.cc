#include "graph/passes/rewrite.h"

#include "graph/ir/builder.h"
#include "graph/ir/verify.h"

#include <gtest/gtest.h>

namespace sgactor::graph {
namespace {

struct Chain {
  Graph graph;
  ValueId x, w, a, b, c;
};

Chain make_chain() {
  Chain t;
  Builder builder(t.graph);
  t.x = builder.input({DType::kF32, {4}}, Role::kActivation, "x");
  t.w = builder.input({DType::kF32, {4}}, Role::kParameter, "w");
  builder.set_segment("layer.0");
  t.a = builder.mul(t.x, t.w);
  builder.set_segment("layer.1");
  t.b = builder.add(t.a, t.w);
  t.c = builder.mul(t.b, t.a);
  builder.output(t.c, Role::kLogits, "logits");
  EXPECT_TRUE(builder.status().ok());
  return t;
}

TEST(ExtractOpsTest, InputsInOrderOfFirstUseOutputsInOrderOfDefinition) {
  const Chain t = make_chain();
  std::vector<ValueId> inputs;
  std::vector<ValueId> outputs;
  const Graph body = extract_ops(t.graph, {1, 2}, &inputs, &outputs);
  ASSERT_TRUE(verify(body).ok());
  EXPECT_EQ(inputs, (std::vector<ValueId>{t.a, t.w}));
  EXPECT_EQ(outputs, (std::vector<ValueId>{t.c}));
  EXPECT_EQ(body.inputs()[0].role, Role::kActivation);
  EXPECT_EQ(body.inputs()[1].role, Role::kParameter);
  EXPECT_EQ(body.inputs()[1].name, "w");
  EXPECT_EQ(body.outputs()[0].role, Role::kLogits);
  EXPECT_EQ(body.segments(), (std::vector<std::string>{"layer.1"}));
}

TEST(ExtractOpsTest, ValueUsedOutsideIsAnOutput) {
  const Chain t = make_chain();
  std::vector<ValueId> inputs;
  std::vector<ValueId> outputs;
  const Graph body = extract_ops(t.graph, {0}, &inputs, &outputs);
  EXPECT_EQ(inputs, (std::vector<ValueId>{t.x, t.w}));
  EXPECT_EQ(outputs, (std::vector<ValueId>{t.a}));
  EXPECT_EQ(body.outputs()[0].role, Role::kActivation);
  EXPECT_EQ(body.outputs()[0].name, "out0");
}

TEST(GraphCopierTest, CopyOfEveryOpIsTheGraph) {
  const Chain t = make_chain();
  GraphCopier copier(t.graph);
  for (OpId o = 0; o < t.graph.ops().size(); ++o) copier.copy(o);
  copier.copy_outputs();
  EXPECT_EQ(copier.take(), t.graph);
}

}  // namespace
}  // namespace sgactor::graph
