#include "transport/storage/megatron_index.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>
#include <optional>

namespace sgactor::transport {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr char kMagic[] = "MMIDIDX\0";  // nine bytes with the terminator
constexpr size_t kHeaderBytes = 9 + 8 + 1 + 8 + 8;
constexpr size_t kSequenceBytes = 4 + 8;

template <class T>
T read_at(std::span<const std::byte> bytes, size_t offset) {
  T value;  // the fields are not aligned
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

std::optional<int64_t> element_bytes(uint8_t code) {
  switch (static_cast<MegatronIndex::Element>(code)) {
    case MegatronIndex::Element::kU8:
    case MegatronIndex::Element::kI8:
      return 1;
    case MegatronIndex::Element::kI16:
    case MegatronIndex::Element::kU16:
      return 2;
    case MegatronIndex::Element::kI32:
      return 4;
    case MegatronIndex::Element::kI64:
      return 8;
  }
  return std::nullopt;
}

struct Header {
  MegatronIndex index;
  size_t lengths = kHeaderBytes;
  size_t offsets = 0;
  size_t documents = 0;
  size_t num_boundaries = 0;
};

Result<Header> parse_header(std::span<const std::byte> idx, const std::string& name) {
  if (idx.size() < kHeaderBytes)
    return invalid_argument(
        fmt::format("{}: has {} bytes, the header alone needs {}", name, idx.size(), kHeaderBytes));
  if (std::memcmp(idx.data(), kMagic, 9) != 0)
    return invalid_argument(name + ": does not start with MMIDIDX: not a Megatron index");
  if (const auto version = read_at<uint64_t>(idx, 9); version != 1)
    return invalid_argument(fmt::format("{}: version {}, 1 expected", name, version));
  const auto code = read_at<uint8_t>(idx, 17);
  const std::optional<int64_t> bytes = element_bytes(code);
  if (!bytes)
    return invalid_argument(fmt::format(
        "{}: element type code {}, one of 1 2 3 4 5 8 (integers) expected", name, code));
  const auto sequences = read_at<uint64_t>(idx, 18);
  const auto boundaries = read_at<uint64_t>(idx, 26);
  // Bounded before they are multiplied, so that the sum below cannot wrap.
  const uint64_t room = idx.size() - kHeaderBytes;
  if (sequences > room / kSequenceBytes || boundaries > room / 8 ||
      sequences * kSequenceBytes + boundaries * 8 != room)
    return invalid_argument(
        fmt::format("{}: {} sequences and {} document boundaries do not fill its {} bytes", name,
                    sequences, boundaries, idx.size()));
  Header header;
  header.index.element = static_cast<MegatronIndex::Element>(code);
  header.index.element_bytes = *bytes;
  header.index.num_sequences = static_cast<int64_t>(sequences);
  header.num_boundaries = boundaries;
  header.offsets = header.lengths + sequences * 4;
  header.documents = header.offsets + sequences * 8;
  return header;
}

/// The stream is all sequences in order, so the boundaries are only checked.
Status check_documents(std::span<const std::byte> idx, const Header& header,
                       const std::string& name) {
  const int64_t sequences = header.index.num_sequences;
  int64_t previous = 0;
  for (size_t i = 0; i < header.num_boundaries; ++i) {
    const auto boundary = read_at<int64_t>(idx, header.documents + i * 8);
    if (boundary < previous || boundary > sequences || (i == 0 && boundary != 0))
      return invalid_argument(
          fmt::format("{}: document boundary {} is {}, between {} and {} expected", name, i,
                      boundary, previous, i == 0 ? 0 : sequences));
    previous = boundary;
  }
  if (header.num_boundaries < 1 || previous != sequences)
    return invalid_argument(
        fmt::format("{}: the last document ends at sequence {} of {}", name, previous, sequences));
  return {};
}

}  // namespace

Result<MegatronIndex> parse_megatron_index(std::span<const std::byte> idx, int64_t bin_bytes,
                                           const std::string& name) {
  SGA_ASSIGN(Header header, parse_header(idx, name));
  SGA_TRY(check_documents(idx, header, name));
  MegatronIndex& index = header.index;
  index.num_documents = static_cast<int64_t>(header.num_boundaries) - 1;
  for (int64_t i = 0; i < index.num_sequences; ++i) {
    const auto at = static_cast<size_t>(i);
    const int64_t length = read_at<int32_t>(idx, header.lengths + at * 4);
    const auto offset = read_at<int64_t>(idx, header.offsets + at * 8);
    if (length < 0)
      return invalid_argument(fmt::format("{}: sequence {} has length {}", name, i, length));
    if (offset < 0 || offset % index.element_bytes != 0)
      return invalid_argument(
          fmt::format("{}: sequence {} starts at byte {}, which is not a multiple of {} from 0 on",
                      name, i, offset, index.element_bytes));
    // length < 2^31, so the product cannot overflow; offset may be anything up to 2^63 - 1.
    if (offset > bin_bytes || length * index.element_bytes > bin_bytes - offset)
      return invalid_argument(fmt::format(
          "{}: sequence {} ({} elements of {} bytes from byte {}) ends past its .bin of {} bytes",
          name, i, length, index.element_bytes, offset, bin_bytes));
    if (length == 0) continue;
    if (__builtin_add_overflow(index.num_tokens, length, &index.num_tokens))
      return invalid_argument(name + ": more than 2^63 tokens");
    const int64_t first = index.num_tokens - length;
    if (!index.runs.empty() &&
        index.runs.back().offset_bytes + index.runs.back().num_tokens * index.element_bytes ==
            offset) {
      index.runs.back().num_tokens += length;
    } else {
      index.runs.push_back({first, length, offset});
    }
  }
  if (index.num_tokens == 0) return invalid_argument(name + ": holds no tokens");
  return std::move(header.index);
}

}  // namespace sgactor::transport
