#include "kernels/symbolic/symbolic_hash.h"

#include "graph/ir/builder.h"

#include <gtest/gtest.h>

#include <cstring>
#include <initializer_list>
#include <set>
#include <vector>

namespace sgactor::kernels::symbolic {
namespace {

using graph::Attrs;
using graph::Builder;
using graph::Graph;
using graph::OpKind;
using graph::Role;
using graph::ValueId;

/// Hash of the op that `build` appends last, on x, y of the given shape and dtype.
template <class Build>
uint64_t hash_of(Build build, Shape shape = Shape{4}, DType dtype = DType::kF32) {
  Graph g;
  Builder b(g);
  const ValueId x = b.input({dtype, shape}, Role::kActivation, "x");
  const ValueId y = b.input({dtype, shape}, Role::kActivation, "y");
  build(b, x, y);
  EXPECT_TRUE(b.status().ok()) << b.status().to_string();
  return op_hash(g, g.ops().back());
}

TEST(SymbolicHash, KindAttributesAndTypesShow) {
  const auto scaled = [](double factor) {
    return [factor](Builder& b, ValueId x, ValueId) { b.scale(x, factor); };
  };
  const auto add = [](Builder& b, ValueId x, ValueId y) { b.add(x, y); };
  const auto sub = [](Builder& b, ValueId x, ValueId y) { b.sub(x, y); };
  const std::set<uint64_t> hashes = {
      hash_of(add),
      hash_of(sub),
      hash_of(add, Shape{2, 2}),
      hash_of(add, Shape{4}, DType::kF64),
      hash_of(scaled(2)),
      hash_of(scaled(3)),
      hash_of(scaled(2), Shape{2, 2}),
      hash_of([](Builder& b, ValueId x, ValueId) { b.add_scalar(x, 2); }),
      hash_of([](Builder& b, ValueId x, ValueId) { b.cast(x, DType::kBF16); }),
      hash_of([](Builder& b, ValueId x, ValueId) { b.cast(x, DType::kF16); }),
  };
  EXPECT_EQ(hashes.size(), 10U);
  EXPECT_EQ(hash_of(add), hash_of(add));
}

TEST(SymbolicHash, PhaseSegmentAndValueNumbersDoNotShow) {
  const uint64_t plain = hash_of([](Builder& b, ValueId x, ValueId y) { b.mul(x, y); });
  const uint64_t moved = hash_of([](Builder& b, ValueId x, ValueId y) {
    b.scale(x, 2);
    b.set_phase(graph::Phase::kBackward);
    b.set_segment("layer.7");
    b.mul(x, y);
  });
  EXPECT_EQ(plain, moved);
}

TEST(SymbolicHash, OrderOfOperandsAndNumberOfResultShow) {
  const std::vector<uint64_t> ab = {1, 2};
  const std::vector<uint64_t> ba = {2, 1};
  EXPECT_NE(result_hash(7, ab, 0), result_hash(7, ba, 0));
  EXPECT_NE(result_hash(7, ab, 0), result_hash(7, ab, 1));
  EXPECT_NE(result_hash(7, ab, 0), result_hash(8, ab, 0));
}

TEST(SymbolicHash, BytesThatStandForAHashGiveItBack) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kU8, DType::kI64}) {
    for (const int64_t n : {8, 9, 31, 1000}) {
      const TensorType type{dtype, Shape{n}};
      std::vector<std::byte> native(static_cast<size_t>(type.bytes()));
      for (const uint64_t hash : std::initializer_list<uint64_t>{1, 0, 0xdeadbeefcafef00dULL}) {
        tensor_bytes(hash, type, native);
        EXPECT_EQ(tensor_hash(native), hash) << type.to_string();
      }
    }
  }
}

TEST(SymbolicHash, OneChangedByteIsAnotherTensor) {
  const TensorType type{DType::kF32, Shape{16}};
  std::vector<std::byte> native(64);
  tensor_bytes(42, type, native);
  for (std::byte& b : native) {
    b ^= std::byte{1};
    EXPECT_NE(tensor_hash(native), 42U);
    b ^= std::byte{1};
  }
}

TEST(SymbolicHash, SmallFloatsReadAsNumbersFromOneToTwo) {
  const TensorType type{DType::kF32, Shape{}};
  std::set<float> seen;
  for (uint64_t hash = 1; hash < 200; ++hash) {
    std::vector<std::byte> native(4);
    tensor_bytes(hash * 0x9e3779b97f4a7c15ULL, type, native);
    float x = 0;
    std::memcpy(&x, native.data(), 4);
    EXPECT_GE(x, 1.0F);
    EXPECT_LT(x, 2.0F);
    seen.insert(x);
  }
  EXPECT_GT(seen.size(), 190U);
}

TEST(SymbolicHash, ZerosAreZero) {
  EXPECT_EQ(tensor_hash(std::vector<std::byte>(4)), 0U);
  EXPECT_EQ(tensor_hash(std::vector<std::byte>(40)), 0U);
  std::vector<std::byte> native(4, std::byte{1});
  tensor_bytes(0, {DType::kF32, Shape{}}, native);
  EXPECT_EQ(native, std::vector<std::byte>(4));
}

}  // namespace
}  // namespace sgactor::kernels::symbolic
