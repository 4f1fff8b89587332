#include "transport/collectives/reduce.h"

#include "graph/base/hash.h"
#include "graph/base/status.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

namespace sgactor::transport {
namespace {

constexpr int64_t kBlock = 512;  // elements; a level of the tree keeps one block on the stack

struct Bf16 {
  uint16_t bits;
};

// Inline twins of graph/base's conversions, which a loop here must be able to vectorise.
float widen(Bf16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }
Bf16 narrow(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16;
  const uint32_t nan = (bits >> 16) | 0x40U;
  return {static_cast<uint16_t>((bits & 0x7FFFFFFFU) > 0x7F800000U ? nan : rounded)};
}

struct Sum {
  template <class T>
  static T combine(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      using U = std::make_unsigned_t<T>;
      return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
    } else {
      return a + b;
    }
  }
};
struct Max {
  template <class T>
  static T combine(T a, T b) {
    return a < b ? b : a;
  }
};
struct Mix {
  static uint64_t combine(uint64_t a, uint64_t b) { return mix64(mix64(kHashSumSeed, a), b); }
};

template <class Stored, class Sum_>
struct Kernel {
  static constexpr bool kNarrow = std::is_same_v<Stored, Bf16>;
  using Value = std::conditional_t<kNarrow, float, Stored>;

  static Value load(Stored x) {
    if constexpr (kNarrow) {
      return widen(x);
    } else {
      return x;
    }
  }
  static Stored store(Value x) {
    if constexpr (kNarrow) {
      return narrow(x);
    } else {
      return x;
    }
  }

  static const Stored* at(const std::byte* source, int64_t first) {
    return reinterpret_cast<const Stored*>(source) + first;
  }

  // The whole sum of a pair, without a block between.
  static void pair(const Stored* a, const Stored* b, Stored* out, int64_t count) {
    for (int64_t i = 0; i < count; ++i) out[i] = store(Sum_::combine(load(a[i]), load(b[i])));
  }

  // The tree over sources [0, n) of elements [first, first + count) into `out`. Level by level over
  // neighbours is the same tree as: the largest power of two below n on the left, the rest on the
  // right.
  static void tree(std::span<const std::byte* const> sources, int64_t first, Value* out,
                   int64_t count) {
    const Stored* a = at(sources[0], first);
    if (sources.size() == 1) {
      for (int64_t i = 0; i < count; ++i) out[i] = load(a[i]);
      return;
    }
    if (sources.size() == 2) {
      const Stored* b = at(sources[1], first);
      for (int64_t i = 0; i < count; ++i) out[i] = Sum_::combine(load(a[i]), load(b[i]));
      return;
    }
    const size_t left = std::bit_floor(sources.size() - 1);
    alignas(64) Value right[kBlock];
    tree(sources.first(left), first, out, count);
    tree(sources.subspan(left), first, right, count);
    for (int64_t i = 0; i < count; ++i) out[i] = Sum_::combine(out[i], right[i]);
  }

  static void run(std::span<const std::byte* const> sources, std::byte* out, int64_t count) {
    auto* to = reinterpret_cast<Stored*>(out);
    if (sources.size() == 2) return pair(at(sources[0], 0), at(sources[1], 0), to, count);
    for (int64_t first = 0; first < count; first += kBlock) {
      const int64_t n = std::min(kBlock, count - first);
      alignas(64) Value block[kBlock];
      tree(sources, first, block, n);
      for (int64_t i = 0; i < n; ++i) to[first + i] = store(block[i]);
    }
  }
};

template <class Stored>
void run(Reduction reduction, std::span<const std::byte* const> sources, std::byte* out,
         int64_t count) {
  if (reduction == Reduction::kSum) {
    Kernel<Stored, Sum>::run(sources, out, count);
  } else {
    Kernel<Stored, Max>::run(sources, out, count);
  }
}

}  // namespace

void reduce_in_order(Element element, Reduction reduction,
                     std::span<const std::byte* const> sources, std::byte* out, int64_t count) {
  SGA_CHECK(!sources.empty(), "a sum of nothing");
  if (sources.size() == 1) {
    if (count > 0 && out != sources[0]) {
      std::memmove(out, sources[0], static_cast<size_t>(count * element_bytes(element)));
    }
    return;
  }
  switch (element) {
    case Element::kF32:
      return run<float>(reduction, sources, out, count);
    case Element::kF64:
      return run<double>(reduction, sources, out, count);
    case Element::kBF16:
      return run<Bf16>(reduction, sources, out, count);
    case Element::kI32:
      return run<int32_t>(reduction, sources, out, count);
    case Element::kU8:
      return run<uint8_t>(reduction, sources, out, count);
    case Element::kHash:
      return Kernel<uint64_t, Mix>::run(sources, out, count);
  }
}

}  // namespace sgactor::transport
