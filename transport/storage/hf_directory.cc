#include "transport/storage/file_system.h"
#include "transport/storage/safetensors.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cstring>
#include <filesystem>
#include <mutex>
#include <optional>
#include <set>

namespace sgactor::transport {

namespace {

namespace fs = std::filesystem;
using WeightMap = std::map<std::string, std::string>;  // tensor -> file

constexpr std::string_view kIndexName = "model.safetensors.index.json";
constexpr int64_t kMaxIndexBytes = 100'000'000;

void convert_to_f32(std::span<const std::byte> from, DType dtype, std::span<std::byte> to) {
  const size_t count = from.size() / 2;
  for (size_t i = 0; i < count; ++i) {
    uint16_t bits = 0;  // a mapped tensor need not be aligned
    std::memcpy(&bits, from.data() + 2 * i, sizeof bits);
    const float value = dtype == DType::kBF16 ? bf16_to_float(bits) : f16_to_float(bits);
    std::memcpy(to.data() + 4 * i, &value, sizeof value);
  }
}

Result<WeightMap> parse_index(const std::string& text) {
  std::optional<std::string> repeated;
  std::vector<std::set<std::string>> keys;
  const auto watch = [&](int, nlohmann::json::parse_event_t event, nlohmann::json& value) {
    using Event = nlohmann::json::parse_event_t;
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key && !keys.back().insert(value.get<std::string>()).second) {
      repeated = value.get<std::string>();
    }
    return true;
  };
  const nlohmann::json root = nlohmann::json::parse(text, watch);
  if (repeated) return invalid_argument(fmt::format("\"{}\" appears twice", *repeated));
  if (!root.is_object() || !root.contains("weight_map") || !root["weight_map"].is_object()) {
    return invalid_argument("expected an object with \"weight_map\"");
  }
  WeightMap map;
  for (const auto& [name, file] : root["weight_map"].items()) {
    if (!file.is_string()) {
      return invalid_argument(fmt::format("tensor {}: expected the name of a file", name));
    }
    // A shard lies beside the index; anything else would read files that nobody named.
    const auto text_name = file.get<std::string>();
    if (text_name.empty() || text_name == ".." || text_name.find('/') != std::string::npos) {
      return invalid_argument(
          fmt::format("tensor {}: \"{}\" is not a file of this directory", name, text_name));
    }
    map.emplace(name, text_name);
  }
  return map;
}

class HfDirectoryImpl final : public HfDirectory {
 public:
  Status add_file(const std::string& path);
  Status add_index(const std::string& dir, const WeightMap& map);

  [[nodiscard]] std::vector<std::string> names() const override;
  [[nodiscard]] std::vector<std::string> unread() const override;
  Status load(const std::string& name, const TensorType& type,
              std::span<std::byte> out) const override;

 private:
  struct Place {
    const SafetensorsFile* file;
    const std::string* path;
    TensorType type;
  };
  std::map<std::string, std::unique_ptr<SafetensorsFile>> files_;  ///< by path
  std::map<std::string, Place> places_;                            ///< by tensor
  mutable std::mutex mutex_;
  mutable std::set<std::string> read_;  ///< guarded by mutex_
};

Status HfDirectoryImpl::add_file(const std::string& path) {
  SGA_ASSIGN(auto file, SafetensorsFile::open(path));
  const auto it = files_.emplace(path, std::move(file)).first;
  for (const auto& [name, entry] : it->second->entries()) {
    places_.emplace(name, Place{it->second.get(), &it->first, entry.type});
  }
  return {};
}

Status HfDirectoryImpl::add_index(const std::string& dir, const WeightMap& map) {
  for (const auto& [name, file_name] : map) {
    const std::string path = (fs::path(dir) / file_name).string();
    auto it = files_.find(path);
    if (it == files_.end()) {
      SGA_ASSIGN(auto file, SafetensorsFile::open(path));
      it = files_.emplace(path, std::move(file)).first;
    }
    const auto entry = it->second->entries().find(name);
    if (entry == it->second->entries().end()) {
      return invalid_argument(
          fmt::format("{}: tensor {}: the index names it, but the file lacks it", path, name));
    }
    places_.emplace(name, Place{it->second.get(), &it->first, entry->second.type});
  }
  return {};
}

std::vector<std::string> HfDirectoryImpl::names() const {
  std::vector<std::string> all;
  for (const auto& [name, place] : places_) all.push_back(name);
  return all;
}

std::vector<std::string> HfDirectoryImpl::unread() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> rest;
  for (const auto& [name, place] : places_) {
    if (!read_.contains(name)) rest.push_back(name);
  }
  return rest;
}

Status HfDirectoryImpl::load(const std::string& name, const TensorType& type,
                             std::span<std::byte> out) const {
  const auto it = places_.find(name);
  if (it == places_.end()) {
    return invalid_argument(fmt::format("{}: tensor {}: there is none",
                                        files_.empty() ? "" : files_.begin()->first, name));
  }
  const Place& place = it->second;
  const DType stored = place.type.dtype;
  const bool widens =
      type.dtype == DType::kF32 && (stored == DType::kBF16 || stored == DType::kF16);
  if (place.type.shape != type.shape || (stored != type.dtype && !widens)) {
    return invalid_argument(fmt::format("{}: tensor {}: expected {}, found {}", *place.path, name,
                                        type.to_string(), place.type.to_string()));
  }
  if (static_cast<int64_t>(out.size()) != type.bytes()) {
    return internal_error(
        fmt::format("tensor {}: {} bytes of room for {}", name, out.size(), type.to_string()));
  }
  SGA_ASSIGN(const auto bytes, place.file->tensor(name));
  if (widens) {
    convert_to_f32(bytes, stored, out);
  } else if (!bytes.empty()) {
    std::memcpy(out.data(), bytes.data(), bytes.size());
  }
  const std::lock_guard lock(mutex_);
  read_.insert(name);
  return {};
}

}  // namespace

Result<std::unique_ptr<HfDirectory>> HfDirectory::open(const std::string& dir) {
  std::error_code ec;
  auto opened = std::make_unique<HfDirectoryImpl>();
  const std::string single = (fs::path(dir) / "model.safetensors").string();
  const std::string index = (fs::path(dir) / kIndexName).string();
  if (fs::exists(single, ec)) {
    SGA_TRY(opened->add_file(single));
    return std::unique_ptr<HfDirectory>(std::move(opened));
  }
  if (!fs::exists(index, ec)) {
    return invalid_argument(
        fmt::format("{}: neither model.safetensors nor {} is there", dir, kIndexName));
  }
  SGA_ASSIGN(const std::string text, PosixFileSystem().read(index, kMaxIndexBytes));
  try {
    auto map = parse_index(text);
    if (!map.ok()) return map.status().with_context(index);
    SGA_TRY(opened->add_index(dir, *map));
  } catch (const std::exception& e) {
    return invalid_argument(fmt::format("{}: not JSON: {}", index, e.what()));
  }
  return std::unique_ptr<HfDirectory>(std::move(opened));
}

}  // namespace sgactor::transport
