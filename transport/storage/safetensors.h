#pragma once
#include "graph/base/shape.h"
#include "graph/base/status.h"
#include "transport/storage/state_source.h"

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace sgactor::transport {

/// One file of the safetensors format (8-byte little-endian header length, JSON header, data),
/// mapped read-only. open() checks everything before a tensor is used: header length against the
/// file, at most 100 MB; JSON shape; known dtypes; shape x dtype = range; ranges inside the file,
/// without overlap, holes or trailing bytes; no name twice. Errors: kInvalidArgument "FILE: tensor
/// NAME: …".
class SafetensorsFile {
 public:
  static Result<std::unique_ptr<SafetensorsFile>> open(const std::string& path);
  virtual ~SafetensorsFile() = default;
  struct Entry {
    TensorType type;
    int64_t offset = 0;  ///< from the start of the data
  };
  [[nodiscard]] virtual const std::map<std::string, Entry>& entries() const = 0;
  [[nodiscard]] virtual const std::map<std::string, std::string>& metadata() const = 0;
  /// Bytes of a tensor, valid while the object lives. Errors: kInvalidArgument if there is none.
  [[nodiscard]] virtual Result<std::span<const std::byte>> tensor(
      const std::string& name) const = 0;
};

/// Checks a header alone (for fuzzing and for tests): `file_bytes` is the size the file would have.
Result<std::map<std::string, SafetensorsFile::Entry>> parse_safetensors_header(
    std::string_view json, int64_t data_bytes, std::map<std::string, std::string>* metadata);

struct NamedTensor {
  std::string name;
  TensorType type;
  std::span<const std::byte> bytes;
};
/// Writes one file, atomically (temporary name, fsync, rename). Tensors keep their order. Metadata
/// {"format": "pt"}. Errors: kInvalidArgument naming the tensor (bytes that do not fit its type, a
/// name twice), kInternal naming the file with errno's text; no file is made or changed then.
Status write_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors);

/// A Hugging Face directory: model.safetensors, or model.safetensors.index.json with its shards.
/// load() converts bf16 and f16 to f32 where f32 is asked for. A tied head may be absent. Names in
/// the directory that nobody asks for are listed by unread().
class HfDirectory : public StateSource {
 public:
  static Result<std::unique_ptr<HfDirectory>> open(const std::string& dir);
  [[nodiscard]] virtual std::vector<std::string> names() const = 0;
  /// Names that load() has not given out so far. Thread-safe.
  [[nodiscard]] virtual std::vector<std::string> unread() const = 0;
};
/// Writes model.safetensors, or shards of at most `shard_bytes` (a larger tensor gets one of its
/// own) with an index, into `dir`, which is made if need be. Errors: kInvalidArgument if it holds
/// weights already, write_safetensors's; nothing new stays then.
Status write_hf_weights(const std::string& dir, const std::vector<NamedTensor>& tensors,
                        int64_t shard_bytes = int64_t{5} << 30);

}  // namespace sgactor::transport
