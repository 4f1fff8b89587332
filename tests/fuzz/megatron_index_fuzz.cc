// Input: eight bytes (little-endian) that say how many bytes the .bin has, then an .idx. An index
// that is accepted must describe runs that lie in the .bin and follow each other in the stream.
#include "transport/storage/megatron_index.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using sgactor::transport::MegatronIndex;
  int64_t bin_bytes = 0;
  if (size < sizeof bin_bytes) return 0;
  std::memcpy(&bin_bytes, data, sizeof bin_bytes);
  if (bin_bytes < 0) return 0;
  const std::span<const uint8_t> idx(data + sizeof bin_bytes, size - sizeof bin_bytes);
  const auto index =
      sgactor::transport::parse_megatron_index(std::as_bytes(idx), bin_bytes, "fuzz.idx");
  if (!index.ok()) {
    if (index.status().code() != sgactor::Code::kInvalidArgument) std::abort();
    return 0;
  }
  int64_t tokens = 0;
  for (const MegatronIndex::Run& run : index->runs) {
    if (run.first_token != tokens || run.num_tokens <= 0 || run.offset_bytes < 0) std::abort();
    if (run.offset_bytes > bin_bytes ||
        run.num_tokens > (bin_bytes - run.offset_bytes) / index->element_bytes)
      std::abort();
    tokens += run.num_tokens;
  }
  if (tokens != index->num_tokens || tokens == 0) std::abort();
  return 0;
}
