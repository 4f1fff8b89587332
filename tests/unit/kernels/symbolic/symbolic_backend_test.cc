// What is symbolic's own: which work shows in the hash. The rest of the backend's contract is in
// tests/conformance.
#include "kernels/symbolic/symbolic_backend.h"

#include "graph/ir/builder.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace sgactor::kernels {
namespace {

using graph::Builder;
using graph::Graph;
using graph::Role;
using graph::ValueId;

class LastStatus final : public CompletionSink {
 public:
  void on_complete(uint64_t /*token*/, const Status& status,
                   LaunchTiming timing) noexcept override {
    status_ = status;
    timing_ = timing;
  }
  Status status_;
  LaunchTiming timing_;
};

/// Hashes of the outputs of a body on inputs with the given hashes; every value has its own place.
std::vector<uint64_t> run(const Graph& g, std::vector<uint64_t> inputs) {
  const auto backend = std::move(create_symbolic_backend({})).value();
  std::vector<Place> places;
  for (size_t v = 0; v < g.values().size(); ++v)
    places.push_back({Place::Space::kWorkspace, 0, static_cast<int64_t>(8 * v)});
  for (size_t i = 0; i < g.inputs().size(); ++i)
    places[g.inputs()[i].value] = {Place::Space::kInput, static_cast<int32_t>(i), 0};
  std::vector<uint64_t> workspace(g.values().size());
  std::vector<uint64_t> outputs(g.outputs().size());
  std::vector<std::byte*> in;
  std::vector<std::byte*> out;
  for (uint64_t& x : inputs) in.push_back(reinterpret_cast<std::byte*>(&x));
  for (uint64_t& y : outputs) out.push_back(reinterpret_cast<std::byte*>(&y));
  const auto executable =
      backend->compile({&g, places, static_cast<int64_t>(8 * workspace.size()), "body"});
  EXPECT_TRUE(executable.ok()) << executable.status().to_string();
  const auto stream = std::move(backend->create_stream()).value();
  LastStatus sink;
  stream->launch(**executable, {in, out, reinterpret_cast<std::byte*>(workspace.data()), nullptr},
                 1, sink);
  EXPECT_TRUE(sink.status_.ok()) << sink.status_.to_string();
  EXPECT_EQ(sink.timing_.start_ns, 0);
  EXPECT_EQ(sink.timing_.end_ns, 0);
  return outputs;
}

ValueId input(Builder& b, Shape shape) {
  std::string name("x");
  name.append(std::to_string(b.graph().inputs().size()));
  return b.input({DType::kF32, std::move(shape)}, Role::kActivation, name);
}

TEST(SymbolicBackend, AReshapeHasItsOperandsHash) {
  Graph g;
  Builder b(g);
  b.output(b.reshape(b.reshape(input(b, {2, 3}), {6}), {3, 2}), Role::kActivation, "y");
  EXPECT_EQ(run(g, {77}), std::vector<uint64_t>{77});
}

TEST(SymbolicBackend, TheShapeOfAViewShowsInWhatReadsIt) {
  const auto through = [](std::vector<int64_t> shape) {
    Graph g;
    Builder b(g);
    b.output(b.scale(b.reshape(input(b, {2, 3}), std::move(shape)), 2), Role::kActivation, "y");
    return run(g, {77})[0];
  };
  EXPECT_NE(through({6}), through({3, 2}));
  EXPECT_EQ(through({6}), through({6}));
}

TEST(SymbolicBackend, TheOrderOfAdditionsShows) {
  const auto sum = [](std::array<size_t, 3> order) {
    Graph g;
    Builder b(g);
    ValueId acc = input(b, {4});
    std::array<ValueId, 3> xs = {};
    for (ValueId& x : xs) x = input(b, {4});
    for (size_t i : order) acc = b.accumulate(acc, xs[i]);
    b.output(acc, Role::kAccumulator, "acc");
    return run(g, {0, 1, 2, 3})[0];
  };
  EXPECT_EQ(sum({0, 1, 2}), sum({0, 1, 2}));
  EXPECT_NE(sum({0, 1, 2}), sum({0, 2, 1}));
}

TEST(SymbolicBackend, OneLaunchOrTwoIsTheSameWork) {
  Graph whole;
  Builder b(whole);
  const ValueId x = input(b, {4});
  b.output(b.add(b.scale(x, 2), x), Role::kActivation, "y");
  Graph first;
  Builder f(first);
  f.output(f.scale(input(f, {4}), 2), Role::kActivation, "y");
  Graph second;
  Builder s(second);
  const ValueId y = input(s, {4});
  s.output(s.add(y, input(s, {4})), Role::kActivation, "y");
  const uint64_t half = run(first, {5})[0];
  EXPECT_EQ(run(second, {half, 5}), run(whole, {5}));
}

TEST(SymbolicBackend, ATensorTakesEightBytes) {
  const auto backend = std::move(create_symbolic_backend({.device_index = 3})).value();
  EXPECT_EQ(backend->storage_bytes({DType::kF32, Shape{1000, 1000}}), 8);
  EXPECT_EQ(backend->storage_bytes({DType::kU8, Shape{}}), 8);
  EXPECT_EQ(backend->info().device, "sim:3");
}

TEST(SymbolicBackend, BadRequestsAndLaunchesAreErrors) {
  Graph g;
  Builder b(g);
  b.output(b.scale(input(b, {4}), 2), Role::kActivation, "y");
  const auto backend = std::move(create_symbolic_backend({})).value();
  const std::vector<Place> places = {{Place::Space::kInput, 0, 0},
                                     {Place::Space::kWorkspace, 0, 8}};
  EXPECT_EQ(backend->compile({&g, places, 15, "body"}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(backend->compile({&g, {}, 16, "body"}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(backend->compile({nullptr, {}, 16, "body"}).status().code(), Code::kInvalidArgument);
  const auto executable = std::move(backend->compile({&g, places, 16, "body"})).value();
  const auto stream = std::move(backend->create_stream()).value();
  LastStatus sink;
  stream->launch(*executable, {}, 1, sink);
  EXPECT_EQ(sink.status_.code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace sgactor::kernels
