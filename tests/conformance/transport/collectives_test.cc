// One suite for every fabric: what collectives compute, in whatever order they are started and
// however long the frames take.
#include "graph/base/philox.h"
#include "tests/conformance/transport/world.h"
#include "transport/collectives/reduce.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

namespace sgactor::transport {
namespace {

using Bytes = std::vector<std::byte>;

// Random elements of any kind; floats of mixed magnitude, so that another order of a sum shows.
Bytes random_elements(Element element, int64_t count, uint64_t seed) {
  Bytes bytes(static_cast<size_t>(count * element_bytes(element)));
  const PhiloxStream random{seed, 1};
  for (int64_t i = 0; i < count; ++i) {
    const auto n = static_cast<uint64_t>(i);
    const auto magnitude = static_cast<double>(int64_t{1} << random.below(n, 20));
    const double real = (random.uniform(n) - 0.5) * magnitude;
    std::byte* at = bytes.data() + i * element_bytes(element);
    switch (element) {
      case Element::kF32: {
        const auto x = static_cast<float>(real);
        std::memcpy(at, &x, 4);
        break;
      }
      case Element::kF64:
        std::memcpy(at, &real, 8);
        break;
      case Element::kBF16: {
        const uint16_t x = float_to_bf16(static_cast<float>(real));
        std::memcpy(at, &x, 2);
        break;
      }
      default: {
        const uint64_t x = random.bits64(n);
        std::memcpy(at, &x, static_cast<size_t>(element_bytes(element)));
      }
    }
  }
  return bytes;
}

struct Case {
  CollectiveKind kind;
  Element element;
  Algorithm algorithm;
  int64_t total;
  Reduction reduction = Reduction::kSum;
};

// The inputs of all members, and what each must end with.
struct Expected {
  std::vector<Bytes> inputs;
  std::vector<Bytes> outputs;
  int64_t piece = 0;
};

int64_t piece_of(int64_t total, size_t n) {
  // One more than needed, so that there is padding.
  return (total + static_cast<int64_t>(n) - 1) / static_cast<int64_t>(n) + 1;
}

Expected expect(const Case& c, size_t n, uint64_t seed) {
  Expected e;
  const int64_t size = element_bytes(c.element);
  e.piece = piece_of(c.total, n);
  const auto members = static_cast<int64_t>(n);
  const bool gathers = c.kind == CollectiveKind::kAllGather;
  const bool exchanges = c.kind == CollectiveKind::kAllToAll;
  const int64_t count = gathers ? e.piece : exchanges ? members * e.piece : c.total;
  for (size_t i = 0; i < n; ++i) {
    e.inputs.push_back(random_elements(c.element, count, seed * 100 + i));
  }
  Bytes sum(static_cast<size_t>(c.total * size));
  if (!gathers && !exchanges) {
    std::vector<const std::byte*> sources;
    for (const Bytes& input : e.inputs) sources.push_back(input.data());
    reduce_in_order(c.element, c.reduction, sources, sum.data(), c.total);
  }
  for (size_t i = 0; i < n; ++i) {
    const auto first = static_cast<size_t>(static_cast<int64_t>(i) * e.piece * size);
    const auto piece_bytes = static_cast<size_t>(e.piece * size);
    Bytes out;
    if (c.kind == CollectiveKind::kAllReduce) {
      out = sum;
    } else if (c.kind == CollectiveKind::kReduceScatter) {
      Bytes padded = sum;
      padded.resize(n * piece_bytes);
      out.assign(padded.begin() + static_cast<ptrdiff_t>(first),
                 padded.begin() + static_cast<ptrdiff_t>(first + piece_bytes));
    } else if (gathers) {
      for (const Bytes& input : e.inputs) out.insert(out.end(), input.begin(), input.end());
      out.resize(sum.size());
    } else if (exchanges) {
      for (const Bytes& input : e.inputs) {
        out.insert(out.end(), input.begin() + static_cast<ptrdiff_t>(first),
                   input.begin() + static_cast<ptrdiff_t>(first + piece_bytes));
      }
    } else {
      out = e.inputs[0];
    }
    e.outputs.push_back(std::move(out));
  }
  return e;
}

CollectiveRequest request_of(const Case& c, const Expected& e, size_t n, size_t i, uint64_t key,
                             Bytes& output, Generation generation = 1) {
  CollectiveRequest r;
  r.kind = c.kind;
  r.element = c.element;
  r.algorithm = c.algorithm;
  r.reduction = c.reduction;
  r.input = e.inputs[i].data();
  r.output = output.data();
  r.total = c.total;
  r.piece = e.piece;
  r.group.resize(n);
  std::iota(r.group.begin(), r.group.end(), 0);
  r.index = static_cast<int32_t>(i);
  r.key = key;
  r.generation = generation;
  return r;
}

void check_case(World& world, const Case& c, uint64_t key) {
  const size_t n = world.num_ranks();
  const Expected e = expect(c, n, key);
  std::vector<Bytes> outputs;
  for (const Bytes& o : e.outputs) outputs.emplace_back(o.size(), std::byte{0xAB});
  Waiter waiter;
  for (size_t i = 0; i < n; ++i) {
    world.collectives_of(static_cast<int32_t>(i))
        .start(request_of(c, e, n, i, key, outputs[i]), i, waiter);
  }
  ASSERT_TRUE(waiter.wait(n)) << "key " << key;
  ASSERT_TRUE(waiter.first_error().ok()) << waiter.first_error().to_string();
  for (size_t i = 0; i < n; ++i) {
    EXPECT_EQ(outputs[i], e.outputs[i])
        << "member " << i << " of " << n << ", kind " << static_cast<int>(c.kind) << ", element "
        << static_cast<int>(c.element) << ", algorithm " << static_cast<int>(c.algorithm)
        << ", total " << c.total;
  }
}

// All cases at once, each a channel of its own, started by each member in an order of its own.
// Returns every member's outputs, after comparing those of `exact` cases with the serial tree.
std::vector<std::vector<Bytes>> run_together(World& world, const std::vector<Case>& cases,
                                             uint64_t first_key, uint64_t order_seed) {
  const size_t n = world.num_ranks();
  std::vector<Expected> expected;
  std::vector<std::vector<Bytes>> outputs(cases.size());
  for (size_t c = 0; c < cases.size(); ++c) {
    expected.push_back(expect(cases[c], n, c + 1));
    for (const Bytes& o : expected[c].outputs) outputs[c].emplace_back(o.size(), std::byte{0xAB});
  }
  Waiter waiter;
  for (size_t i = 0; i < n; ++i) {
    std::vector<size_t> order(cases.size());
    std::iota(order.begin(), order.end(), size_t{0});
    const PhiloxStream random{order_seed, i};
    for (size_t c = order.size(); c > 1; --c) std::swap(order[c - 1], order[random.below(c, c)]);
    for (const size_t c : order) {
      world.collectives_of(static_cast<int32_t>(i))
          .start(request_of(cases[c], expected[c], n, i, first_key + c, outputs[c][i]), c, waiter);
    }
  }
  EXPECT_TRUE(waiter.wait(n * cases.size()));
  EXPECT_TRUE(waiter.first_error().ok()) << waiter.first_error().to_string();
  for (size_t c = 0; c < cases.size(); ++c) {
    if (cases[c].algorithm == Algorithm::kExact) {
      EXPECT_TRUE(outputs[c] == expected[c].outputs) << "case " << c;
    }
  }
  return outputs;
}

class CollectivesTest : public testing::TestWithParam<FabricKind> {
 protected:
  static std::vector<PeerId> one_rank_each(size_t n) {
    std::vector<PeerId> peers(n);
    std::iota(peers.begin(), peers.end(), 0U);
    return peers;
  }
  // Small chunks: many of them in flight at sizes that are quick to check.
  static CollectivesOptions small_chunks() {
    CollectivesOptions o;
    o.chunk_bytes = 1024;
    o.one_round_bytes = 256;
    return o;
  }
};

TEST_P(CollectivesTest, ExactSumsHaveTheBitsOfASerialTree) {
  uint64_t key = 1;
  for (const size_t n : {1, 2, 3, 4, 5, 7, 8}) {
    World world(GetParam(), one_rank_each(n), {}, small_chunks());
    for (const CollectiveKind kind : {CollectiveKind::kAllReduce, CollectiveKind::kReduceScatter}) {
      for (const Element element : {Element::kF32, Element::kF64, Element::kBF16, Element::kI32,
                                    Element::kU8, Element::kHash}) {
        for (const int64_t total :
             {int64_t{0}, int64_t{1}, int64_t{5}, int64_t{37}, int64_t{6007}}) {
          check_case(world, {kind, element, Algorithm::kExact, total}, key++);
        }
      }
    }
  }
}

TEST_P(CollectivesTest, MovesWithoutArithmetic) {
  uint64_t key = 1;
  for (const size_t n : {1, 2, 3, 5, 8}) {
    World world(GetParam(), one_rank_each(n), {}, small_chunks());
    for (const CollectiveKind kind :
         {CollectiveKind::kAllGather, CollectiveKind::kBroadcast, CollectiveKind::kAllToAll}) {
      for (const Algorithm algorithm : {Algorithm::kExact, Algorithm::kRing}) {
        for (const int64_t total :
             {int64_t{0}, int64_t{1}, int64_t{37}, int64_t{6007}, int64_t{100'000}}) {
          check_case(world, {kind, Element::kF32, algorithm, total}, key++);
        }
      }
    }
  }
}

// Integers add to the same in any order.
TEST_P(CollectivesTest, FastAlgorithmsAddEverythingOnce) {
  uint64_t key = 1;
  for (const size_t n : {1, 2, 3, 4, 7, 8}) {
    World world(GetParam(), one_rank_each(n), {}, small_chunks());
    for (const Algorithm algorithm :
         {Algorithm::kRing, Algorithm::kTree, Algorithm::kHalvingDoubling}) {
      for (const int64_t total : {int64_t{0}, int64_t{1}, int64_t{37}, int64_t{6007}}) {
        check_case(world, {CollectiveKind::kAllReduce, Element::kI32, algorithm, total}, key++);
        check_case(world, {CollectiveKind::kReduceScatter, Element::kI32, algorithm, total}, key++);
      }
    }
  }
}

TEST_P(CollectivesTest, TheLargestOfAllIsTakenInAnyOrder) {
  uint64_t key = 1;
  for (const size_t n : {2, 3, 4}) {
    World world(GetParam(), one_rank_each(n), {}, small_chunks());
    for (const Algorithm algorithm : {Algorithm::kExact, Algorithm::kRing, Algorithm::kTree}) {
      for (const Element element : {Element::kF32, Element::kBF16, Element::kI32}) {
        check_case(world, {CollectiveKind::kAllReduce, element, algorithm, 1501, Reduction::kMax},
                   key++);
      }
    }
  }
}

// Neither delays on the way nor the order of starts changes a bit, also where the algorithm has an
// order of its own.
TEST_P(CollectivesTest, DelaysAndOrdersOfStartChangeNoBit) {
  std::vector<Case> cases;
  for (const int64_t total : {int64_t{3}, int64_t{2003}, int64_t{9001}}) {
    for (const Algorithm algorithm :
         {Algorithm::kExact, Algorithm::kRing, Algorithm::kTree, Algorithm::kHalvingDoubling}) {
      cases.push_back({CollectiveKind::kAllReduce, Element::kF32, algorithm, total});
    }
    cases.push_back({CollectiveKind::kReduceScatter, Element::kBF16, Algorithm::kExact, total});
    cases.push_back({CollectiveKind::kAllGather, Element::kF32, Algorithm::kExact, total});
    cases.push_back({CollectiveKind::kAllToAll, Element::kF32, Algorithm::kExact, total});
    cases.push_back({CollectiveKind::kBroadcast, Element::kF32, Algorithm::kExact, total});
  }
  for (const size_t n : {2, 3, 4}) {
    std::vector<std::vector<Bytes>> first;
    for (const uint64_t seed : {0, 1, 2}) {
      FabricOptions options;
      options.faults.max_random_delay_ns = seed == 0 ? 0 : 200'000;
      options.faults.seed = seed;
      World world(GetParam(), one_rank_each(n), options, small_chunks());
      const auto outputs = run_together(world, cases, 1, seed);
      if (seed == 0) first = outputs;
      EXPECT_TRUE(outputs == first) << "seed " << seed << ", " << n << " members";
    }
  }
}

TEST_P(CollectivesTest, SendMeetsReceive) {
  World world(GetParam(), one_rank_each(3));
  uint64_t key = 1;
  for (const int64_t total : {int64_t{0}, int64_t{1}, int64_t{100'003}}) {
    const Bytes sent = random_elements(Element::kF32, total, key);
    Bytes received(sent.size(), std::byte{0xAB});
    CollectiveRequest r;
    r.total = total;
    r.group = {0, 1, 2};
    r.generation = 1;
    r.key = key++;
    CollectiveRequest to = r;
    to.kind = CollectiveKind::kSend;
    to.input = sent.data();
    to.index = 2;
    to.root = 1;
    r.kind = CollectiveKind::kRecv;
    r.output = received.data();
    r.index = 1;
    r.root = 2;
    Waiter waiter;
    world.collectives_of(2).start(to, 0, waiter);
    world.collectives_of(1).start(r, 1, waiter);
    ASSERT_TRUE(waiter.wait(2));
    EXPECT_TRUE(waiter.first_error().ok()) << waiter.first_error().to_string();
    EXPECT_TRUE(received == sent);
  }
}

TEST_P(CollectivesTest, ABarrierEndsForNobodyBeforeAllAreThere) {
  const size_t n = 4;
  World world(GetParam(), one_rank_each(n));
  CollectiveRequest r;
  r.kind = CollectiveKind::kBarrier;
  r.generation = 1;
  r.key = 1;
  r.group = {0, 1, 2, 3};
  Waiter waiter;
  for (int32_t i = 0; i + 1 < 4; ++i) {
    r.index = i;
    world.collectives_of(i).start(r, 0, waiter);
  }
  // Time for the others' messages: a sum that all of them take part in.
  check_case(world, {CollectiveKind::kAllReduce, Element::kF32, Algorithm::kExact, 10'000}, 2);
  EXPECT_TRUE(waiter.completions().empty());
  r.index = 3;
  world.collectives_of(3).start(r, 0, waiter);
  ASSERT_TRUE(waiter.wait(n));
  EXPECT_TRUE(waiter.first_error().ok());
}

TEST_P(CollectivesTest, AnAbortEndsWhatWaitsAndTheNextGenerationIsClean) {
  const size_t n = 3;
  World world(GetParam(), one_rank_each(n), {}, small_chunks());
  const Case c{CollectiveKind::kAllReduce, Element::kF32, Algorithm::kExact, 50'000};
  const Expected e = expect(c, n, 1);
  std::vector<Bytes> outputs;
  for (const Bytes& o : e.outputs) outputs.emplace_back(o.size());
  Waiter waiter;
  // Member 2 never comes.
  for (size_t i = 0; i < 2; ++i) {
    world.collectives_of(static_cast<int32_t>(i))
        .start(request_of(c, e, n, i, 7, outputs[i]), i, waiter);
  }
  for (int32_t i = 0; i < 3; ++i) {
    world.collectives_of(i).abort(1, make_status(Code::kCancelled, "a test"));
  }
  ASSERT_TRUE(waiter.wait(2));
  for (const auto& [token, status] : waiter.completions()) {
    EXPECT_EQ(status.code(), Code::kCancelled) << token;
  }
  Waiter late;
  world.collectives_of(2).start(request_of(c, e, n, 2, 7, outputs[2]), 2, late);
  ASSERT_TRUE(late.wait(1));
  EXPECT_EQ(late.first_error().code(), Code::kCancelled);
  world.set_routes(2);
  Waiter again;
  for (size_t i = 0; i < n; ++i) {
    world.collectives_of(static_cast<int32_t>(i))
        .start(request_of(c, e, n, i, 7, outputs[i], 2), i, again);
  }
  ASSERT_TRUE(again.wait(n));
  ASSERT_TRUE(again.first_error().ok()) << again.first_error().to_string();
  EXPECT_TRUE(outputs == e.outputs);
  for (int32_t i = 0; i < 3; ++i) EXPECT_EQ(world.collectives_of(i).num_pending(), 0);
}

TEST_P(CollectivesTest, ALostMemberEndsItsCollectivesAndNoOthers) {
  World world(GetParam(), one_rank_each(3), {}, small_chunks());
  const Case c{CollectiveKind::kAllReduce, Element::kF32, Algorithm::kRing, 200'000};
  const Expected of_three = expect(c, 3, 1);
  const Expected of_two = expect(c, 2, 2);
  std::vector<Bytes> dead_outputs;
  std::vector<Bytes> outputs;
  for (const Bytes& o : of_three.outputs) dead_outputs.emplace_back(o.size());
  for (const Bytes& o : of_two.outputs) outputs.emplace_back(o.size());
  Waiter dead;
  Waiter living;
  for (size_t i = 0; i < 2; ++i) {
    Collectives& at = world.collectives_of(static_cast<int32_t>(i));
    at.start(request_of(c, of_three, 3, i, 1, dead_outputs[i]), i, dead);
    at.start(request_of(c, of_two, 2, i, 2, outputs[i]), i, living);
  }
  world.kill(2);
  ASSERT_TRUE(dead.wait(2));
  for (const auto& [token, status] : dead.completions()) {
    EXPECT_EQ(status.code(), Code::kDisconnected) << token;
  }
  ASSERT_TRUE(living.wait(2));
  EXPECT_TRUE(living.first_error().ok()) << living.first_error().to_string();
  EXPECT_TRUE(outputs[0] == outputs[1]);
}

TEST_P(CollectivesTest, SeveralRanksOfAProcessChangeNoBit) {
  uint64_t key = 1;
  const std::vector<std::vector<PeerId>> dealings = {
      {0, 0, 0, 0, 0}, {0, 1, 0, 1, 0}, {0, 0, 1, 1, 2}, {2, 1, 0, 0, 0}};
  for (const auto& dealing : dealings) {
    World world(GetParam(), dealing, {}, small_chunks());
    for (const Element element : {Element::kF32, Element::kBF16}) {
      check_case(world, {CollectiveKind::kAllReduce, element, Algorithm::kExact, 5003}, key++);
      check_case(world, {CollectiveKind::kReduceScatter, element, Algorithm::kExact, 5003}, key++);
      check_case(world, {CollectiveKind::kAllGather, element, Algorithm::kExact, 5003}, key++);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Fabrics, CollectivesTest, testing::ValuesIn(fabric_kinds()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace sgactor::transport
