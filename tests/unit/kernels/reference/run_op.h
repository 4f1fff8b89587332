#pragma once
#include "graph/ir/builder.h"
#include "kernels/reference/reference_backend.h"

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sgactor::kernels {

using Row = std::vector<double>;

/// An operand of run_op: type and numbers.
struct Operand {
  Shape shape;
  Row numbers;
  DType dtype = DType::kF64;
};

inline graph::Attrs make_attrs(
    std::initializer_list<std::pair<std::string_view, graph::Attr>> list) {
  graph::Attrs attrs;
  for (const auto& [name, value] : list) attrs.set(name, value);
  return attrs;
}

inline std::string numbered(std::string_view prefix, size_t i) {
  std::string name(prefix);
  name.append(std::to_string(i));
  return name;
}

/// The results of one op through run_reference, or its Status.
inline Result<std::vector<Row>> run_op(graph::OpKind kind, const std::vector<Operand>& operands,
                                       const graph::Attrs& attrs = {}) {
  graph::Graph g;
  graph::Builder b(g);
  std::vector<graph::ValueId> ids;
  std::vector<Row> inputs;
  for (const Operand& x : operands) {
    ids.push_back(b.input({x.dtype, x.shape}, graph::Role::kActivation, numbered("x", ids.size())));
    inputs.push_back(x.numbers);
  }
  const std::vector<graph::ValueId> results = b.op(kind, ids, attrs);
  if (!b.status().ok()) return b.status();
  for (size_t i = 0; i < results.size(); ++i)
    b.output(results[i], graph::Role::kActivation, numbered("y", i));
  return run_reference(g, inputs);
}

inline void expect_near(const Row& got, const Row& want, double tolerance = 1e-14) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i] == want[i]) continue;  // infinities have no distance
    EXPECT_NEAR(got[i], want[i], tolerance) << "element " << i;
  }
}

/// Expects the op's results to be `want`.
inline void expect_op(graph::OpKind kind, const std::vector<Operand>& operands,
                      const graph::Attrs& attrs, const std::vector<Row>& want,
                      double tolerance = 1e-14) {
  const Result<std::vector<Row>> got = run_op(kind, operands, attrs);
  ASSERT_TRUE(got.ok()) << got.status().to_string();
  ASSERT_EQ(got->size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    SCOPED_TRACE(numbered("result ", i));
    expect_near((*got)[i], want[i], tolerance);
  }
}

}  // namespace sgactor::kernels
