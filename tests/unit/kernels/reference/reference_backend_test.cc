// What is the reference's own: its checks of requests and launches, and run_reference. The rest of
// the backend's contract is in tests/conformance.
#include "tests/unit/kernels/reference/run_op.h"

#include <array>

namespace sgactor::kernels {
namespace {

using graph::Builder;
using graph::Graph;
using graph::Role;

class LastStatus final : public CompletionSink {
 public:
  void on_complete(uint64_t /*token*/, const Status& status,
                   LaunchTiming /*timing*/) noexcept override {
    status_ = status;
    ++count_;
  }
  [[nodiscard]] const Status& status() const { return status_; }
  [[nodiscard]] int count() const { return count_; }

 private:
  Status status_;
  int count_ = 0;
};

/// y = 2 x + x, with 2 x in the workspace.
Graph three_times() {
  Graph g;
  Builder b(g);
  const auto x = b.input({DType::kF32, Shape{2}}, Role::kActivation, "x");
  b.output(b.add(b.scale(x, 2), x), Role::kActivation, "y");
  return g;
}
std::vector<Place> places() {
  return {{Place::Space::kInput, 0, 0},
          {Place::Space::kWorkspace, 0, 0},
          {Place::Space::kOutput, 0, 0}};
}

class ReferenceBackend : public ::testing::Test {
 protected:
  std::unique_ptr<Backend> backend_ = std::move(create_reference_backend({})).value();
  std::unique_ptr<Stream> stream_ = std::move(backend_->create_stream()).value();
  Graph graph_ = three_times();

  Status compile_status(const std::vector<Place>& where, int64_t workspace_bytes) {
    return backend_->compile({&graph_, where, workspace_bytes, "body"}).status();
  }
};

TEST_F(ReferenceBackend, LaunchRunsInlineAndCopiesNothingFromTheRequest) {
  std::vector<Place> where = places();
  const auto executable = std::move(backend_->compile({&graph_, where, 16, "body"})).value();
  graph_ = Graph();
  where.clear();
  std::array<double, 2> x = {1, 5};
  std::array<double, 2> y = {};
  std::array<double, 2> workspace = {};
  std::byte* in = reinterpret_cast<std::byte*>(x.data());
  std::byte* out = reinterpret_cast<std::byte*>(y.data());
  LastStatus sink;
  stream_->launch(*executable,
                  {std::span(&in, 1), std::span(&out, 1),
                   reinterpret_cast<std::byte*>(workspace.data()), nullptr},
                  1, sink);
  EXPECT_EQ(sink.count(), 1);
  EXPECT_TRUE(sink.status().ok()) << sink.status().to_string();
  EXPECT_EQ(y, (std::array<double, 2>{3, 15}));
}

TEST_F(ReferenceBackend, ALaunchWithoutItsMemoryIsAnError) {
  const auto executable = std::move(backend_->compile({&graph_, places(), 16, "body"})).value();
  LastStatus sink;
  stream_->launch(*executable, {}, 1, sink);
  EXPECT_EQ(sink.status().code(), Code::kInvalidArgument);
  EXPECT_NE(sink.status().message().find("1 inputs, 1 outputs"), std::string::npos);
}

TEST_F(ReferenceBackend, BadPlacesAreErrors) {
  EXPECT_TRUE(compile_status(places(), 16).ok());
  EXPECT_EQ(compile_status(places(), 15).code(), Code::kInvalidArgument);
  EXPECT_EQ(compile_status({}, 16).code(), Code::kInvalidArgument);
  for (const Place& bad :
       {Place{Place::Space::kWorkspace, 0, 8}, Place{Place::Space::kWorkspace, 0, -8},
        Place{Place::Space::kInput, 1, 0}, Place{Place::Space::kOutput, -1, 0},
        Place{Place::Space::kWorkspace, 0, 3}}) {
    std::vector<Place> where = places();
    where[1] = bad;
    EXPECT_EQ(compile_status(where, 16).code(), Code::kInvalidArgument);
  }
  EXPECT_EQ(backend_->compile({nullptr, {}, 0, "body"}).status().code(), Code::kInvalidArgument);
}

TEST_F(ReferenceBackend, StorageIsEightBytesAnElement) {
  EXPECT_EQ(backend_->storage_bytes({DType::kBF16, Shape{3, 5}}), 120);
  EXPECT_EQ(backend_->storage_bytes({DType::kU8, Shape{}}), 8);
}

TEST(RunReference, ChecksGraphAndInputs) {
  const Graph g = three_times();
  EXPECT_EQ(run_reference(g, {}).status().code(), Code::kInvalidArgument);
  const Status few = run_reference(g, {{1}}).status();
  EXPECT_EQ(few.code(), Code::kInvalidArgument);
  EXPECT_EQ(few.message(), "input 0 'x' is f32[2], not 1 numbers");
  Graph broken = g;
  broken.mutable_op(0).operands[0] = 99;
  EXPECT_EQ(run_reference(broken, {{1, 2}}).status().code(), Code::kInvalidPlan);
}

TEST(RunReference, KeepsF32InFloat64) {
  Graph g;
  Builder b(g);
  const auto x = b.input({DType::kF32, Shape{1}}, Role::kActivation, "x");
  b.output(b.add_scalar(x, 1), Role::kActivation, "y");
  const Result<std::vector<Row>> got = run_reference(g, {{1e-12}});
  ASSERT_TRUE(got.ok());
  EXPECT_EQ((*got)[0][0], 1 + 1e-12);
}

TEST(RunReference, UpdatesInPlaceLeaveOtherValuesAlone) {
  Graph g;
  Builder b(g);
  const auto acc = b.input({DType::kF32, Shape{1}}, Role::kAccumulator, "grad/w");
  const auto before = b.scale(acc, 1);
  b.output(b.accumulate(acc, before), Role::kAccumulator, "grad/w");
  b.output(before, Role::kActivation, "before");
  const Result<std::vector<Row>> got = run_reference(g, {{4}});
  ASSERT_TRUE(got.ok()) << got.status().to_string();
  EXPECT_EQ(*got, (std::vector<Row>{{8}, {4}}));
}

}  // namespace
}  // namespace sgactor::kernels
