#include "transport/storage/file_system.h"
#include "transport/storage/safetensors.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <filesystem>

namespace sgactor::transport {

namespace {

namespace fs = std::filesystem;

/// Cuts tensors, in order, into runs of at most `shard_bytes`; a larger tensor gets a run of its
/// own.
std::vector<std::vector<NamedTensor>> cut_shards(const std::vector<NamedTensor>& tensors,
                                                 int64_t shard_bytes) {
  std::vector<std::vector<NamedTensor>> shards(1);
  int64_t filled = 0;
  for (const NamedTensor& t : tensors) {
    const auto bytes = static_cast<int64_t>(t.bytes.size());
    if (!shards.back().empty() && filled + bytes > shard_bytes) {
      shards.emplace_back();
      filled = 0;
    }
    shards.back().push_back(t);
    filled += bytes;
  }
  return shards;
}

Status write_index(const std::string& path, const std::vector<std::vector<NamedTensor>>& shards,
                   const std::vector<std::string>& files) {
  nlohmann::ordered_json index;
  int64_t total = 0;
  nlohmann::ordered_json map = nlohmann::ordered_json::object();
  for (size_t i = 0; i < shards.size(); ++i) {
    for (const NamedTensor& t : shards[i]) {
      if (map.contains(t.name)) {
        return invalid_argument(fmt::format("{}: tensor {}: the name appears twice", path, t.name));
      }
      map[t.name] = files[i];
      total += static_cast<int64_t>(t.bytes.size());
    }
  }
  index["metadata"] = {{"total_size", total}};
  index["weight_map"] = std::move(map);
  PosixFileSystem file_system;
  return replace_file(file_system, path, index.dump(2) + "\n");
}

Status write_shards(const std::string& dir, const std::vector<std::vector<NamedTensor>>& shards,
                    std::vector<std::string>& written) {
  std::vector<std::string> files;
  for (size_t i = 0; i < shards.size(); ++i) {
    files.push_back(fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size()));
    const std::string path = (fs::path(dir) / files.back()).string();
    SGA_TRY(write_safetensors(path, shards[i]));
    written.push_back(path);
  }
  // Last: without its index the directory is not a model.
  return write_index((fs::path(dir) / "model.safetensors.index.json").string(), shards, files);
}

}  // namespace

Status write_hf_weights(const std::string& dir, const std::vector<NamedTensor>& tensors,
                        int64_t shard_bytes) {
  std::error_code ec;
  PosixFileSystem file_system;
  SGA_TRY(make_directories(file_system, dir));
  for (const char* name : {"model.safetensors", "model.safetensors.index.json"}) {
    if (fs::exists(fs::path(dir) / name, ec)) {
      return invalid_argument(fmt::format("{}: already holds {}", dir, name));
    }
  }
  const auto shards = cut_shards(tensors, shard_bytes);
  if (shards.size() == 1) {
    return write_safetensors((fs::path(dir) / "model.safetensors").string(), tensors);
  }
  std::vector<std::string> written;
  Status status;
  try {
    status = write_shards(dir, shards, written);
  } catch (const std::exception& e) {
    status = invalid_argument(fmt::format("{}: {}", dir, e.what()));
  }
  if (!status.ok()) {
    for (const std::string& path : written) fs::remove(path, ec);
  }
  return status;
}

}  // namespace sgactor::transport
