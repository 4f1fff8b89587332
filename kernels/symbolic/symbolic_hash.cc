#include "kernels/symbolic/symbolic_hash.h"

#include "graph/base/hash.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <string_view>
#include <type_traits>

namespace sgactor::kernels::symbolic {
namespace {

uint64_t mix_list(uint64_t state, const std::vector<int64_t>& list) {
  state = mix64(state, list.size());
  for (int64_t x : list) state = mix64(state, static_cast<uint64_t>(x));
  return state;
}

uint64_t mix_type(uint64_t state, const TensorType& type) {
  return mix_list(mix64(state, static_cast<uint64_t>(type.dtype)), type.shape.dims());
}

uint64_t mix_attr(uint64_t state, const graph::Attr& attr) {
  return std::visit(
      [&](const auto& x) -> uint64_t {
        using T = std::decay_t<decltype(x)>;
        const uint64_t tagged = mix64(state, attr.index());
        if constexpr (std::is_same_v<T, std::vector<int64_t>>) {
          return mix_list(tagged, x);
        } else if constexpr (std::is_same_v<T, std::string>) {
          return mix64(tagged, hash64(std::string_view(x)));
        } else if constexpr (std::is_same_v<T, double>) {
          return mix64(tagged, std::bit_cast<uint64_t>(x));
        } else {
          return mix64(tagged, static_cast<uint64_t>(x));
        }
      },
      attr);
}

/// Word `i` of the bytes that stand for `hash`; word 0 is the hash itself.
uint64_t word_of(uint64_t hash, size_t i) { return i == 0 || hash == 0 ? hash : mix64(hash, i); }

void expand(uint64_t hash, std::span<std::byte> native) {
  for (size_t at = 0; at < native.size(); at += 8) {
    const uint64_t word = word_of(hash, at / 8);
    std::memcpy(native.data() + at, &word, std::min<size_t>(8, native.size() - at));
  }
}

bool stands_for(std::span<const std::byte> native, uint64_t hash) {
  for (size_t at = 0; at < native.size(); at += 8) {
    const uint64_t word = word_of(hash, at / 8);
    if (std::memcmp(native.data() + at, &word, std::min<size_t>(8, native.size() - at)) != 0)
      return false;
  }
  return true;
}

/// Sets sign and exponent of an element of a float format to those of [1, 2).
void make_small_float(DType dtype, std::byte* element) {
  const auto set = [&](auto bits, auto one, auto fraction) {
    std::memcpy(&bits, element, sizeof bits);
    bits = static_cast<decltype(bits)>((bits & fraction) | one);
    std::memcpy(element, &bits, sizeof bits);
  };
  switch (dtype) {
    case DType::kF32:
      set(uint32_t{}, 0x3f800000U, 0x007fffffU);
      break;
    case DType::kBF16:
      set(uint16_t{}, 0x3f80U, 0x007fU);
      break;
    case DType::kF16:
      set(uint16_t{}, 0x3c00U, 0x03ffU);
      break;
    case DType::kF8E4M3:
      set(uint8_t{}, 0x38U, 0x07U);
      break;
    case DType::kF8E5M2:
      set(uint8_t{}, 0x3cU, 0x03U);
      break;
    default:
      break;
  }
}

}  // namespace

uint64_t op_hash(const graph::Graph& graph, const graph::Op& op) {
  uint64_t state = mix64(0, static_cast<uint64_t>(op.kind));
  for (const auto& [name, value] : op.attrs.entries())
    state = mix_attr(mix64(state, hash64(std::string_view(name))), value);
  state = mix64(state, op.operands.size());
  for (graph::ValueId v : op.operands) state = mix_type(state, graph.type(v));
  for (graph::ValueId v : op.results) state = mix_type(state, graph.type(v));
  return state;
}

uint64_t result_hash(uint64_t op, std::span<const uint64_t> operands, uint32_t result) {
  uint64_t state = op;
  for (uint64_t operand : operands) state = mix64(state, operand);
  return mix64(state, result);
}

uint64_t tensor_hash(std::span<const std::byte> native) {
  if (native.size() >= 8) {
    uint64_t first = 0;
    std::memcpy(&first, native.data(), 8);
    if (stands_for(native, first)) return first;
  } else if (std::all_of(native.begin(), native.end(),
                         [](std::byte b) { return b == std::byte{0}; })) {
    return 0;
  }
  return hash64(native);
}

void tensor_bytes(uint64_t hash, const TensorType& type, std::span<std::byte> native) {
  expand(hash, native);
  if (native.size() >= 8 || hash == 0 || !is_float(type.dtype)) return;
  for (size_t at = 0; at < native.size(); at += static_cast<size_t>(dtype_bytes(type.dtype)))
    make_small_float(type.dtype, native.data() + at);
}

}  // namespace sgactor::kernels::symbolic
