// Every op on every backend: against the float64 reference within the tolerance table, in place,
// and with the same bits whatever the number of threads.
#include "graph/ir/verify.h"
#include "tests/conformance/backend_test.h"
#include "tests/conformance/native.h"
#include "tests/conformance/op_cases.h"
#include "tests/conformance/tolerance.h"

#include <rapidcheck.h>

#include <array>
#include <optional>
#include <sstream>
#include <tuple>

namespace sgactor::testing {
namespace {

using graph::AliasSpec;
using graph::OpKind;

constexpr int kRandomCases = 25;
/// Dtypes of the suite. The first must be there for every op; others may be unsupported.
constexpr std::array kDTypes = {DType::kF32, DType::kF64, DType::kBF16};

class RapidcheckDraw final : public Draw {
 public:
  int64_t integer(int64_t low, int64_t high) override {
    return *rc::gen::inRange<int64_t>(low, high + 1);
  }
};

std::string text_of(const OpCase& c) {
  std::string text(graph::op_info(c.graph.op(c.op).kind).name);
  for (graph::ValueId v : c.graph.op(c.op).operands)
    text.append(" ").append(c.graph.type(v).to_string());
  return text;
}

/// Why the run differs from the reference, or nothing.
std::optional<std::string> check_case(kernels::Backend& backend, const OpCase& c, DType dtype,
                                      const LayoutOptions& options) {
  if (!c.status.ok()) return c.status.to_string();
  const Result<std::vector<std::vector<double>>> want = kernels::run_reference(c.graph, c.inputs);
  if (!want.ok()) return want.status().to_string();
  const RunResult got = run_on(backend, c.graph, c.inputs, options);
  if (!got.status.ok()) return text_of(c) + ": " + got.status.to_string();
  const bool exact = is_exact(c.graph.op(c.op).kind);
  for (size_t j = 0; j < got.outputs.size(); ++j) {
    const TensorType& type = c.graph.type(c.graph.outputs()[j].value);
    std::vector<double> expected = (*want)[j];
    if (exact) {
      for (double& x : expected) x = nearest(type.dtype, x);
    }
    const std::optional<std::string> problem =
        disagreement(from_native(type, got.outputs[j]), expected,
                     exact ? 0.0 : tolerance_of(c.graph.op(c.op).kind, dtype));
    if (problem) return text_of(c) + ": result " + std::to_string(j) + ", " + *problem;
  }
  return std::nullopt;
}

class Ops : public ::testing::TestWithParam<std::tuple<std::string, OpKind>> {
 protected:
  void SetUp() override {
    name_ = std::get<0>(GetParam());
    kind_ = std::get<1>(GetParam());
    Result<std::unique_ptr<kernels::Backend>> made = create(name_, 2);
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    backend_ = std::move(made).value();
  }

  /// Whether the op exists for the dtype: compiles a small case. Only f32 is owed; an op that is
  /// missing elsewhere says so by name.
  bool supports(DType dtype) {
    PhiloxDraw draw(1);
    const OpCase c = make_case(kind_, {.dtype = dtype}, draw);
    const RunResult got = run_on(*backend_, c.graph, c.inputs);
    if (got.status.code() != Code::kUnsupported) return true;
    EXPECT_NE(dtype, DType::kF32) << got.status.to_string();
    // The op itself, or the forward op that a gradient's case begins with.
    bool named = false;
    for (const graph::Op& op : c.graph.ops()) {
      const std::string op_name(graph::op_info(op.kind).name);
      named = named || got.status.message().find(op_name) != std::string::npos;
    }
    EXPECT_TRUE(named) << got.status.to_string();
    return false;
  }

  std::string name_;
  OpKind kind_ = OpKind::kAdd;
  std::unique_ptr<kernels::Backend> backend_;
};

/// Backends that keep hashes have no numbers to compare.
class OpNumbers : public Ops {};

TEST_P(OpNumbers, AgreesWithTheReferenceOnRandomShapes) {
  for (const DType dtype : kDTypes) {
    if (!supports(dtype)) continue;
    rc::detail::TestMetadata metadata;
    metadata.id = std::string(graph::op_info(kind_).name);
    rc::detail::TestParams params;
    params.seed = 20240 + static_cast<uint64_t>(kind_);
    params.maxSuccess = kRandomCases;
    const auto result = rc::detail::checkTestable(
        [&] {
          RapidcheckDraw draw;
          const OpCase c = make_case(kind_, {.dtype = dtype}, draw);
          LayoutOptions options;
          options.views_share = *rc::gen::arbitrary<bool>();
          if (const auto problem = check_case(*backend_, c, dtype, options)) RC_FAIL(*problem);
        },
        metadata, params);
    if (result.template is<rc::detail::SuccessResult>()) continue;
    std::ostringstream text;
    rc::detail::printResultMessage(result, text);
    ADD_FAILURE() << dtype_name(dtype) << ": " << text.str();
  }
}

TEST_P(OpNumbers, AgreesWithTheReferenceOnLargerShapes) {
  for (const DType dtype : kDTypes) {
    if (!supports(dtype)) continue;
    for (uint64_t seed = 0; seed < 3; ++seed) {
      PhiloxDraw draw(seed);
      const OpCase c =
          make_case(kind_, {.dtype = dtype, .max_dim = 70, .max_elements = 10000}, draw);
      const auto problem = check_case(*backend_, c, dtype, {});
      EXPECT_FALSE(problem) << *problem;
    }
  }
}

TEST_P(Ops, InPlaceGivesTheSameBits) {
  for (const AliasSpec& alias : graph::op_info(kind_).aliases) {
    if (alias.kind != AliasSpec::Kind::kMay) continue;
    for (uint64_t seed = 0; seed < 4; ++seed) {
      PhiloxDraw draw(seed);
      const OpCase c = make_case(kind_, {.max_dim = 40, .max_elements = 3000}, draw);
      ASSERT_TRUE(c.status.ok());
      const RunResult apart = run_on(*backend_, c.graph, c.inputs);
      const RunResult shared =
          run_on(*backend_, c.graph, c.inputs,
                 LayoutOptions{.may_result = alias.result, .may_operand = alias.operand});
      ASSERT_TRUE(apart.status.ok()) << apart.status.to_string();
      ASSERT_TRUE(shared.status.ok()) << shared.status.to_string();
      EXPECT_EQ(apart.outputs, shared.outputs) << text_of(c);
    }
  }
}

TEST_P(Ops, SameBitsOnOneTwoAndThreeThreads) {
  // Backends without threads run twice: still the same bits.
  const bool threaded = backend_->info().num_threads > 1;
  const std::vector<int32_t> counts = threaded ? std::vector{1, 2, 3, 3} : std::vector{1, 1};
  for (uint64_t seed = 0; seed < 2; ++seed) {
    PhiloxDraw draw(100 + seed);
    const OpCase c =
        make_case(kind_, {.max_dim = 260, .max_elements = threaded ? 150000 : 2000}, draw);
    ASSERT_TRUE(c.status.ok()) << c.status.to_string();
    std::vector<std::vector<std::byte>> first;
    for (size_t i = 0; i < counts.size(); ++i) {
      Result<std::unique_ptr<kernels::Backend>> backend = create(name_, counts[i]);
      ASSERT_TRUE(backend.ok());
      const RunResult got = run_on(**backend, c.graph, c.inputs);
      ASSERT_TRUE(got.status.ok()) << got.status.to_string();
      if (i == 0) first = got.outputs;
      EXPECT_EQ(got.outputs, first) << text_of(c) << " on " << counts[i] << " threads";
    }
  }
}

std::vector<OpKind> all_ops() {
  std::vector<OpKind> kinds;
  for (const graph::OpInfo& info : graph::op_table()) {
    if (!info.communicates) kinds.push_back(info.kind);
  }
  return kinds;
}
std::string case_name(const ::testing::TestParamInfo<std::tuple<std::string, OpKind>>& info) {
  return std::get<0>(info.param) + "_" + std::string(graph::op_info(std::get<1>(info.param)).name);
}
INSTANTIATE_TEST_SUITE_P(Backends, Ops,
                         ::testing::Combine(::testing::ValuesIn(present_backends()),
                                            ::testing::ValuesIn(all_ops())),
                         case_name);
INSTANTIATE_TEST_SUITE_P(Backends, OpNumbers,
                         ::testing::Combine(::testing::ValuesIn(number_backends()),
                                            ::testing::ValuesIn(all_ops())),
                         case_name);

}  // namespace
}  // namespace sgactor::testing
