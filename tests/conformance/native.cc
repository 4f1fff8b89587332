#include "tests/conformance/native.h"

#include "graph/base/f8.h"
#include "graph/base/status.h"

#include <cstring>

namespace sgactor::testing {
namespace {

template <class Native, class Convert>
std::vector<std::byte> pack(std::span<const double> numbers, Convert convert) {
  std::vector<std::byte> bytes(numbers.size() * sizeof(Native));
  for (size_t i = 0; i < numbers.size(); ++i) {
    const Native native = static_cast<Native>(convert(numbers[i]));
    std::memcpy(bytes.data() + (i * sizeof native), &native, sizeof native);
  }
  return bytes;
}

template <class Native, class Convert>
std::vector<double> unpack(std::span<const std::byte> bytes, Convert convert) {
  std::vector<double> numbers;
  for (size_t i = 0; i + sizeof(Native) <= bytes.size(); i += sizeof(Native)) {
    Native native;
    std::memcpy(&native, bytes.data() + i, sizeof native);
    numbers.push_back(static_cast<double>(convert(native)));
  }
  return numbers;
}

}  // namespace

std::vector<std::byte> to_native(const TensorType& type, std::span<const double> numbers) {
  const auto same = [](double x) { return x; };
  switch (type.dtype) {
    case DType::kF64:
      return pack<double>(numbers, same);
    case DType::kF32:
      return pack<float>(numbers, same);
    case DType::kBF16:
      return pack<uint16_t>(numbers, [](double x) { return float_to_bf16(static_cast<float>(x)); });
    case DType::kF16:
      return pack<uint16_t>(numbers, [](double x) { return float_to_f16(static_cast<float>(x)); });
    case DType::kI64:
      return pack<int64_t>(numbers, same);
    case DType::kI32:
      return pack<int32_t>(numbers, same);
    case DType::kU8:
      return pack<uint8_t>(numbers, same);
    case DType::kF8E4M3:
    case DType::kF8E5M2:
      return pack<uint8_t>(
          numbers, [&](double x) { return float_to_f8(type.dtype, static_cast<float>(x)); });
  }
  return {};
}

std::vector<double> from_native(const TensorType& type, std::span<const std::byte> native) {
  const auto same = [](auto x) { return x; };
  switch (type.dtype) {
    case DType::kF64:
      return unpack<double>(native, same);
    case DType::kF32:
      return unpack<float>(native, same);
    case DType::kBF16:
      return unpack<uint16_t>(native, bf16_to_float);
    case DType::kF16:
      return unpack<uint16_t>(native, f16_to_float);
    case DType::kI64:
      return unpack<int64_t>(native, same);
    case DType::kI32:
      return unpack<int32_t>(native, same);
    case DType::kU8:
      return unpack<uint8_t>(native, same);
    case DType::kF8E4M3:
    case DType::kF8E5M2:
      return unpack<uint8_t>(native, [&](uint8_t bits) { return f8_to_float(type.dtype, bits); });
  }
  return {};
}

double nearest(DType dtype, double x) {
  switch (dtype) {
    case DType::kF32:
      return static_cast<float>(x);
    case DType::kBF16:
      return bf16_to_float(float_to_bf16(static_cast<float>(x)));
    case DType::kF16:
      return f16_to_float(float_to_f16(static_cast<float>(x)));
    case DType::kF8E4M3:
    case DType::kF8E5M2:
      return f8_to_float(dtype, float_to_f8(dtype, static_cast<float>(x)));
    default:
      return x;
  }
}

}  // namespace sgactor::testing
