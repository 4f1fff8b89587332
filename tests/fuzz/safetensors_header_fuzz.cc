// Input: four bytes (little-endian) that say how many bytes of data follow the header, then the
// header's JSON. A header that is accepted must describe ranges that cover that data exactly once.
#include "transport/storage/safetensors.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using sgactor::transport::parse_safetensors_header;
  uint32_t data_bytes = 0;
  if (size < sizeof data_bytes) return 0;
  std::memcpy(&data_bytes, data, sizeof data_bytes);
  const std::string_view json(reinterpret_cast<const char*>(data) + sizeof data_bytes,
                              size - sizeof data_bytes);
  const auto entries = parse_safetensors_header(json, data_bytes, nullptr);
  if (!entries.ok()) {
    if (entries.status().code() != sgactor::Code::kInvalidArgument) std::abort();
    return 0;
  }
  // One-byte steps over at most 64 KiB: enough to see an overlap or a hole.
  int64_t total = 0;
  std::vector<bool> seen(data_bytes <= 65536 ? data_bytes : 0);
  for (const auto& [name, entry] : *entries) {
    const int64_t bytes = entry.type.bytes();
    if (entry.offset < 0 || bytes < 0 || entry.offset + bytes > data_bytes) std::abort();
    total += bytes;
    for (int64_t i = 0; !seen.empty() && i < bytes; ++i) {
      const auto at = static_cast<size_t>(entry.offset + i);
      if (seen[at]) std::abort();
      seen[at] = true;
    }
  }
  if (total != data_bytes) std::abort();
  return 0;
}
