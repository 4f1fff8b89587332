#pragma once
#include "graph/base/status.h"
#include "transport/storage/checkpoint.h"

#include <string>
#include <string_view>

namespace sgactor::transport {

/// Bytes of manifest.bin. Deterministic: equal `info` gives equal bytes. `info.path` is left out.
std::string serialize_manifest(const CheckpointInfo& info);

/// The reverse. Checks all that a reader relies on: known dtypes, dims >= 0 whose product does not
/// overflow, chunk_bytes > 0, one chunk for every chunk_bytes of a tensor or piece, no name twice,
/// and unless it is a `part` that pieces make up their tensors. Memory in proportion to the bytes
/// given. `name` is for messages. Errors: kCorruption "NAME: …".
Result<CheckpointInfo> parse_manifest(std::string_view bytes, const std::string& name,
                                      bool part = false);

/// Whether the pieces, which must lie in the tensor, hold each of its elements once. Errors:
/// kCorruption naming the tensor.
Status check_pieces(const TensorRecord& tensor);

/// Content of the file COMMIT that belongs to these bytes of manifest.bin.
std::string commit_text(std::string_view manifest);

/// Size of chunk `index` of a tensor of `tensor_bytes`.
int64_t chunk_size(int64_t tensor_bytes, int64_t chunk_bytes, int64_t index);

}  // namespace sgactor::transport
