#pragma once
#include "graph/base/status.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace sgactor::transport {

/// Content of a Megatron-LM `.idx` file (class MMapIndexedDataset, version 1), all little-endian:
/// magic "MMIDIDX\0\0", u64 version, u8 element type, u64 number of sequences, u64 number of
/// document boundaries, then i32 lengths (elements), i64 byte offsets into the `.bin`, and i64
/// document boundaries (indices of sequences, first 0, last the number of sequences).
struct MegatronIndex {
  /// Codes of Megatron's DType; its two float codes hold no tokens and are refused.
  enum class Element : uint8_t { kU8 = 1, kI8 = 2, kI16 = 3, kI32 = 4, kI64 = 5, kU16 = 8 };
  struct Run {
    int64_t first_token = 0;   ///< position in the stream
    int64_t num_tokens = 0;    ///< never 0
    int64_t offset_bytes = 0;  ///< in the .bin
  };

  Element element = Element::kU16;
  int64_t element_bytes = 2;
  int64_t num_sequences = 0;
  int64_t num_documents = 0;
  int64_t num_tokens = 0;
  /// The stream in order; sequences that follow each other in the .bin are one run.
  std::vector<Run> runs;
};

/// Reads and checks a whole index; `bin_bytes` is the size of its `.bin`, `name` is for messages.
/// Every sequence lies inside the `.bin`. Memory: at most 24 bytes a sequence, and never more than
/// the index has room for. Errors: kInvalidArgument "NAME: …".
Result<MegatronIndex> parse_megatron_index(std::span<const std::byte> idx, int64_t bin_bytes,
                                           const std::string& name);

}  // namespace sgactor::transport
