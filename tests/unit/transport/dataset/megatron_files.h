#pragma once
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace sgactor::transport {

/// Content of an .idx file, field by field, so that a test can make any of them wrong.
struct IndexFields {
  std::string magic{"MMIDIDX\0\0", 9};
  uint64_t version = 1;
  uint8_t code = 8;  ///< u16
  uint64_t num_sequences = 0;
  uint64_t num_boundaries = 0;
  std::vector<int32_t> lengths;
  std::vector<int64_t> offsets;
  std::vector<int64_t> boundaries;

  /// Sequences of these lengths, one after the other, each a document.
  static IndexFields contiguous(std::vector<int32_t> lengths, uint8_t code, int64_t element_bytes) {
    IndexFields fields;
    fields.code = code;
    int64_t offset = 0;
    fields.boundaries.push_back(0);
    for (const int32_t length : lengths) {
      fields.offsets.push_back(offset);
      offset += length * element_bytes;
      fields.boundaries.push_back(static_cast<int64_t>(fields.offsets.size()));
    }
    fields.num_sequences = lengths.size();
    fields.num_boundaries = fields.boundaries.size();
    fields.lengths = std::move(lengths);
    return fields;
  }

  [[nodiscard]] std::string bytes() const {
    std::string out = magic;
    put(out, version);
    put(out, code);
    put(out, num_sequences);
    put(out, num_boundaries);
    for (const int32_t v : lengths) put(out, v);
    for (const int64_t v : offsets) put(out, v);
    for (const int64_t v : boundaries) put(out, v);
    return out;
  }

  template <class T>
  static void put(std::string& out, T value) {
    char raw[sizeof(T)];
    std::memcpy(raw, &value, sizeof(T));
    out.append(raw, sizeof(T));
  }
};

template <class T>
std::string token_bytes_of(const std::vector<T>& tokens) {
  return {reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(T)};
}

}  // namespace sgactor::transport
