// Streams: order, events between them, copies, and errors that stick.
#include "tests/conformance/backend_test.h"
#include "tests/conformance/native.h"
#include "tests/conformance/op_cases.h"

#include <cstring>

namespace sgactor::testing {
namespace {

using graph::Graph;
using graph::Role;
using graph::ValueId;

constexpr int64_t kSide = 96;

/// Memory of one tensor and its type.
struct TensorMemory {
  TensorType type;
  std::unique_ptr<kernels::DeviceMemory> memory;
  [[nodiscard]] std::byte* data() const { return memory->data(); }
};

/// A body with its executable; its values lie outside one another.
struct Program {
  Graph graph;
  Layout layout;
  std::unique_ptr<kernels::Executable> executable;
  std::unique_ptr<kernels::DeviceMemory> workspace;
  std::unique_ptr<kernels::DeviceMemory> scratch;
};

class Streams : public BackendTest {
 protected:
  TensorMemory tensor(TensorType type) {
    Result<std::unique_ptr<kernels::DeviceMemory>> memory =
        backend().allocate(backend().storage_bytes(type), "tensor");
    EXPECT_TRUE(memory.ok());
    return {std::move(type), std::move(memory).value()};
  }
  TensorMemory tensor(TensorType type, const std::vector<double>& numbers) {
    TensorMemory t = tensor(std::move(type));
    EXPECT_TRUE(backend().write_tensor(t.data(), t.type, to_native(t.type, numbers)).ok());
    return t;
  }
  std::vector<std::byte> read(const TensorMemory& t) {
    std::vector<std::byte> native(static_cast<size_t>(t.type.bytes()));
    EXPECT_TRUE(backend().read_tensor(native, t.type, t.data()).ok());
    return native;
  }
  std::unique_ptr<kernels::Stream> stream() {
    Result<std::unique_ptr<kernels::Stream>> made = backend().create_stream();
    EXPECT_TRUE(made.ok());
    return std::move(made).value();
  }
  Program program(Graph graph) {
    Program p{.graph = std::move(graph)};
    p.layout = make_layout(backend(), p.graph, {});
    Result<std::unique_ptr<kernels::Executable>> executable =
        backend().compile({&p.graph, p.layout.places, p.layout.workspace_bytes, "program"});
    EXPECT_TRUE(executable.ok()) << executable.status().to_string();
    p.executable = std::move(executable).value();
    p.workspace = std::move(backend().allocate(p.layout.workspace_bytes, "workspace")).value();
    p.scratch = std::move(backend().allocate(p.executable->scratch_bytes(), "scratch")).value();
    return p;
  }
  static void launch(kernels::Stream& stream, const Program& p, std::vector<std::byte*> inputs,
                     std::vector<std::byte*> outputs, uint64_t token, RecordingSink& sink) {
    // The spans die with this call: a stream copies the pointers.
    stream.launch(*p.executable, {inputs, outputs, p.workspace->data(), p.scratch->data()}, token,
                  sink);
  }
  int64_t bytes(const TensorMemory& t) { return backend().storage_bytes(t.type); }

  /// x @ x + x, for square x.
  Program square_plus() {
    Graph g;
    graph::Builder b(g);
    const ValueId x = b.input({DType::kF32, Shape{kSide, kSide}}, Role::kActivation, "x");
    b.output(b.add(b.matmul(x, x), x), Role::kActivation, "y");
    return program(std::move(g));
  }
  /// Rows of a table by ids.
  Program lookup() {
    Graph g;
    graph::Builder b(g);
    const ValueId table = b.input({DType::kF32, Shape{4, 2}}, Role::kParameter, "table");
    const ValueId ids = b.input({DType::kI32, Shape{3}}, Role::kTokens, "ids");
    b.output(b.gather(table, ids), Role::kActivation, "y");
    return program(std::move(g));
  }
  TensorMemory square(double seed) {
    std::vector<double> numbers;
    for (int64_t i = 0; i < kSide * kSide; ++i)
      numbers.push_back(seed + (static_cast<double>(i % 17) / 64.0));
    return tensor({DType::kF32, Shape{kSide, kSide}}, numbers);
  }
};

TEST_P(Streams, CompletionsArriveOnceAndInOrder) {
  const Program p = square_plus();
  const TensorMemory x = square(0.5);
  const TensorMemory y = tensor(x.type);
  RecordingSink sink;
  const auto s = stream();
  constexpr uint64_t kCount = 60;
  for (uint64_t token = 0; token < kCount; ++token) {
    if (token % 3 == 0) launch(*s, p, {x.data()}, {y.data()}, token, sink);
    if (token % 3 == 1) s->copy(y.data(), x.data(), bytes(x), token, sink);
    if (token % 3 == 2) s->fill_zero(y.data(), bytes(y), token, sink);
  }
  s->synchronize();
  const std::vector<Completion> completions = sink.wait_for(kCount);
  ASSERT_EQ(completions.size(), kCount);
  int64_t last_end = 0;
  for (uint64_t i = 0; i < kCount; ++i) {
    EXPECT_EQ(completions[i].token, i);
    EXPECT_TRUE(completions[i].status.ok()) << completions[i].status.to_string();
    EXPECT_GE(completions[i].timing.end_ns, completions[i].timing.start_ns);
    EXPECT_GE(completions[i].timing.end_ns, last_end);
    last_end = completions[i].timing.end_ns;
  }
}

TEST_P(Streams, EachWorkSeesWhatCameBefore) {
  const Program p = square_plus();
  const TensorMemory x = square(0.5);
  const TensorMemory a = tensor(x.type);
  const TensorMemory b = tensor(x.type);
  const TensorMemory c = tensor(x.type);
  RecordingSink sink;
  const auto s = stream();
  launch(*s, p, {x.data()}, {a.data()}, 1, sink);
  s->copy(b.data(), a.data(), bytes(a), 2, sink);
  s->fill_zero(a.data(), bytes(a), 3, sink);
  launch(*s, p, {x.data()}, {c.data()}, 4, sink);
  s->synchronize();
  ASSERT_EQ(sink.wait_for(4).size(), 4U);
  EXPECT_EQ(read(b), read(c));
  EXPECT_EQ(read(a), std::vector<std::byte>(static_cast<size_t>(a.type.bytes())));
}

TEST_P(Streams, FillZeroIsWhatWritingZerosIs) {
  for (const TensorType& type :
       {TensorType{DType::kF32, Shape{}}, TensorType{DType::kF32, Shape{33}}}) {
    const std::vector<double> zeros(static_cast<size_t>(type.num_elements()));
    const TensorMemory a = tensor(type, zeros);
    const TensorMemory b = tensor(type, std::vector<double>(zeros.size(), 3));
    RecordingSink sink;
    const auto s = stream();
    s->fill_zero(b.data(), bytes(b), 1, sink);
    s->synchronize();
    ASSERT_EQ(sink.wait_for(1).size(), 1U);
    const std::vector<std::byte> stored_a = read(a);
    EXPECT_EQ(stored_a, read(b));
    if (backend().host_visible()) {
      EXPECT_EQ(std::memcmp(a.data(), b.data(), static_cast<size_t>(bytes(a))), 0);
    }
  }
}

TEST_P(Streams, AnEventOrdersTwoStreams) {
  const Program p = square_plus();
  const auto first = stream();
  const auto second = stream();
  const TensorMemory y = tensor({DType::kF32, Shape{kSide, kSide}});
  const TensorMemory z = tensor(y.type);
  RecordingSink sink;
  for (int round = 0; round < 20; ++round) {
    const TensorMemory x = square(round);
    launch(*first, p, {x.data()}, {y.data()}, 0, sink);
    const std::unique_ptr<kernels::Event> written = first->record();
    second->wait(*written);
    second->copy(z.data(), y.data(), bytes(y), 1, sink);
    const std::unique_ptr<kernels::Event> copied = second->record();
    first->wait(*copied);  // y may be overwritten from here on
    first->fill_zero(y.data(), bytes(y), 2, sink);
    second->synchronize();
    EXPECT_TRUE(written->done());
    EXPECT_TRUE(copied->done());
    const std::vector<std::byte> got = read(z);
    first->synchronize();
    launch(*first, p, {x.data()}, {y.data()}, 3, sink);
    first->synchronize();
    ASSERT_EQ(got, read(y)) << "round " << round;
  }
  EXPECT_EQ(sink.wait_for(80).size(), 80U);
}

TEST_P(Streams, AnEventMayDieBeforeItHappens) {
  const Program p = square_plus();
  const TensorMemory x = square(1);
  const TensorMemory y = tensor(x.type);
  const auto first = stream();
  const auto second = stream();
  RecordingSink sink;
  launch(*first, p, {x.data()}, {y.data()}, 0, sink);
  second->wait(*first->record());
  second->copy(y.data(), x.data(), bytes(x), 1, sink);
  second->synchronize();
  EXPECT_EQ(sink.wait_for(2).size(), 2U);
  EXPECT_EQ(read(y), read(x));
}

/// A hash is never out of range.
class NumberStreams : public Streams {};

/// Hundreds of small fills in a row may go to a device together.
TEST_P(NumberStreams, SmallFillsInARowFillTheirOwnPlaces) {
  constexpr size_t kCount = 320;
  std::vector<TensorMemory> places;
  for (size_t i = 0; i < kCount; ++i) {
    const auto n = static_cast<int64_t>(1 + i % 37);
    places.push_back(
        tensor({DType::kU8, Shape{n}}, std::vector<double>(static_cast<size_t>(n), 7)));
  }
  const std::vector<std::byte> before = read(places[0]);
  const TensorMemory kept = tensor(places[0].type);
  RecordingSink sink;
  const auto s = stream();
  s->copy(kept.data(), places[0].data(), bytes(kept), 0, sink);
  for (size_t i = 0; i < kCount; i += 2)
    s->fill_zero(places[i].data(), bytes(places[i]), 1 + i / 2, sink);
  s->copy(places[1].data(), places[0].data(), 0, 1 + kCount / 2, sink);
  s->synchronize();
  const std::vector<Completion> completions = sink.wait_for(2 + kCount / 2);
  ASSERT_EQ(completions.size(), 2 + kCount / 2);
  for (size_t i = 0; i < completions.size(); ++i) {
    EXPECT_EQ(completions[i].token, i);
    EXPECT_TRUE(completions[i].status.ok()) << completions[i].status.to_string();
  }
  EXPECT_EQ(read(kept), before);
  for (size_t i = 0; i < kCount; ++i) {
    const std::vector<std::byte> got = read(places[i]);
    EXPECT_EQ(got, std::vector<std::byte>(got.size(), i % 2 == 0 ? std::byte{0} : before[0])) << i;
  }
}

TEST_P(NumberStreams, AFailedLaunchSticksToItsStream) {
  const Program p = lookup();
  const TensorMemory table = tensor({DType::kF32, Shape{4, 2}}, {0, 1, 2, 3, 4, 5, 6, 7});
  const TensorMemory bad = tensor({DType::kI32, Shape{3}}, {0, 4, 1});
  const TensorMemory good = tensor({DType::kI32, Shape{3}}, {0, 3, 1});
  const TensorMemory y = tensor({DType::kF32, Shape{3, 2}}, std::vector<double>(6, 9));
  const auto s = stream();
  const auto other = stream();
  RecordingSink sink;
  launch(*s, p, {table.data(), bad.data()}, {y.data()}, 1, sink);
  launch(*s, p, {table.data(), good.data()}, {y.data()}, 2, sink);
  s->copy(table.data(), y.data(), 8, 3, sink);
  s->fill_zero(table.data(), 8, 4, sink);
  s->synchronize();
  const std::vector<Completion> completions = sink.wait_for(4);
  ASSERT_EQ(completions.size(), 4U);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(completions[i].token, i + 1);
    EXPECT_EQ(completions[i].status.code(), Code::kInvalidArgument);
    EXPECT_EQ(completions[i].status.message(), completions[0].status.message());
  }
  EXPECT_NE(completions[0].status.message().find("4"), std::string::npos)
      << completions[0].status.message();
  EXPECT_EQ(from_native(table.type, read(table)), (std::vector<double>{0, 1, 2, 3, 4, 5, 6, 7}));

  RecordingSink fine;
  launch(*other, p, {table.data(), good.data()}, {y.data()}, 5, fine);
  other->synchronize();
  ASSERT_EQ(fine.wait_for(1).size(), 1U);
  EXPECT_TRUE(fine.wait_for(1)[0].status.ok());
  EXPECT_EQ(from_native(y.type, read(y)), (std::vector<double>{0, 1, 6, 7, 2, 3}));
  // An event behind the failure does not hang those who wait for it.
  other->wait(*s->record());
  other->synchronize();
}

TEST_P(Streams, StreamsFinishTheirWorkWhenDestroyed) {
  const Program p = square_plus();
  const TensorMemory x = square(2);
  const TensorMemory y = tensor(x.type);
  RecordingSink sink;
  {
    const auto s = stream();
    for (uint64_t token = 0; token < 5; ++token) launch(*s, p, {x.data()}, {y.data()}, token, sink);
  }
  EXPECT_EQ(sink.wait_for(5).size(), 5U);
}

SGA_INSTANTIATE_FOR(Streams, present_backends());
SGA_INSTANTIATE_FOR(NumberStreams, number_backends());

}  // namespace
}  // namespace sgactor::testing
