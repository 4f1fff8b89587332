// Input: a manifest.bin. One that is accepted must describe tensors that its chunks fill, and mean
// the same after it is written again.
#include "transport/storage/manifest.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sgactor::transport;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto info = parse_manifest(bytes, "manifest.bin");
  if (!info.ok()) {
    if (info.status().code() != sgactor::Code::kCorruption) std::abort();
    return 0;
  }
  for (const TensorRecord& tensor : info->tensors) {
    int64_t left = tensor.type.bytes();
    for (size_t i = 0; i < tensor.chunks.size(); ++i) {
      const int64_t chunk =
          chunk_size(tensor.type.bytes(), info->chunk_bytes, static_cast<int64_t>(i));
      if (chunk <= 0 || chunk > info->chunk_bytes) std::abort();
      left -= chunk;
    }
    if (left != 0) std::abort();
  }
  const std::string again = serialize_manifest(*info);
  const auto reread = parse_manifest(again, "manifest.bin");
  if (!reread.ok() || serialize_manifest(*reread) != again) std::abort();
  return 0;
}
