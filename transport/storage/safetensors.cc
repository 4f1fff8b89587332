#include "transport/storage/safetensors.h"

#include "graph/base/units.h"
#include "transport/storage/file_system.h"
#include "transport/storage/mapped_file.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <array>
#include <bit>
#include <cstring>
#include <set>

namespace sgactor::transport {

namespace {

static_assert(std::endian::native == std::endian::little, "tensors are mapped as they are stored");

constexpr int64_t kLengthBytes = 8;
constexpr int64_t kMaxHeaderBytes = 100'000'000;

class MappedSafetensors final : public SafetensorsFile {
 public:
  explicit MappedSafetensors(std::shared_ptr<const MappedFile> file)
      : file_(std::move(file)), path_(file_->path()) {}

  Status read_header();
  [[nodiscard]] const std::map<std::string, Entry>& entries() const override { return entries_; }
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const override {
    return metadata_;
  }
  [[nodiscard]] Result<std::span<const std::byte>> tensor(const std::string& name) const override {
    const auto it = entries_.find(name);
    if (it == entries_.end()) {
      return invalid_argument(fmt::format("{}: tensor {}: there is none", path_, name));
    }
    return file_->bytes().subspan(static_cast<size_t>(data_start_ + it->second.offset),
                                  static_cast<size_t>(it->second.type.bytes()));
  }

 private:
  std::shared_ptr<const MappedFile> file_;
  const std::string& path_;
  int64_t data_start_ = 0;
  std::map<std::string, Entry> entries_;
  std::map<std::string, std::string> metadata_;
};

Status MappedSafetensors::read_header() {
  const auto bytes = file_->bytes();
  if (bytes.size() < kLengthBytes) {
    return invalid_argument(
        fmt::format("{}: {} bytes are too few for a safetensors file", path_, bytes.size()));
  }
  const int64_t after_length = static_cast<int64_t>(bytes.size()) - kLengthBytes;
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  if (length == 0 || length > static_cast<uint64_t>(kMaxHeaderBytes)) {
    return invalid_argument(
        fmt::format("{}: header of {} bytes: expected 1 to {}", path_, length, kMaxHeaderBytes));
  }
  if (length > static_cast<uint64_t>(after_length)) {
    return invalid_argument(
        fmt::format("{}: header of {} bytes, but only {} follow: the file is cut", path_, length,
                    after_length));
  }
  const auto header = bytes.subspan(kLengthBytes, length);
  const std::string_view json(reinterpret_cast<const char*>(header.data()), header.size());
  auto entries =
      parse_safetensors_header(json, after_length - static_cast<int64_t>(length), &metadata_);
  if (!entries.ok()) return entries.status().with_context(path_);
  entries_ = std::move(*entries);
  data_start_ = kLengthBytes + static_cast<int64_t>(length);
  return {};
}

std::string_view safetensors_dtype(DType dtype) {
  constexpr std::array<std::string_view, kNumDTypes> kNames = {
      "F64", "F32", "BF16", "F16", "F8_E4M3", "F8_E5M2", "I64", "I32", "U8"};
  return kNames[static_cast<size_t>(dtype)];
}

Result<std::string> make_header(const std::vector<NamedTensor>& tensors) {
  nlohmann::ordered_json header;
  header["__metadata__"] = {{"format", "pt"}};
  std::set<std::string_view> names;
  int64_t offset = 0;
  for (const NamedTensor& t : tensors) {
    const int64_t bytes = t.type.bytes();
    if (static_cast<int64_t>(t.bytes.size()) != bytes) {
      return invalid_argument(fmt::format("tensor {}: {} bytes given, but {} has {}", t.name,
                                          t.bytes.size(), t.type.to_string(), bytes));
    }
    if (t.name == "__metadata__" || !names.insert(t.name).second) {
      return invalid_argument(fmt::format("tensor {}: the name appears twice", t.name));
    }
    header[t.name] = {{"dtype", safetensors_dtype(t.type.dtype)},
                      {"shape", t.type.shape.dims()},
                      {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
  }
  std::string text = header.dump();
  // The format pads with spaces, so that data starts on a multiple of 8 bytes.
  text.append(static_cast<size_t>(round_up(static_cast<int64_t>(text.size()), 8)) - text.size(),
              ' ');
  if (static_cast<int64_t>(text.size()) > kMaxHeaderBytes) {
    return invalid_argument(
        fmt::format("a header of {} bytes: at most {}", text.size(), kMaxHeaderBytes));
  }
  return text;
}

}  // namespace

Result<std::unique_ptr<SafetensorsFile>> SafetensorsFile::open(const std::string& path) {
  SGA_ASSIGN(auto mapped, MappedFile::open(path));
  auto file = std::make_unique<MappedSafetensors>(std::move(mapped));
  SGA_TRY(file->read_header());
  return std::unique_ptr<SafetensorsFile>(std::move(file));
}

Status write_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors) {
  std::string header;
  try {
    auto made = make_header(tensors);
    if (!made.ok()) return made.status().with_context(path);
    header = std::move(*made);
  } catch (const std::exception& e) {  // a name that is not UTF-8
    return invalid_argument(fmt::format("{}: {}", path, e.what()));
  }
  PosixFileSystem files;
  const std::string temporary = path + ".tmp";
  const auto write = [&]() -> Status {
    SGA_ASSIGN(const auto file, files.create(temporary));
    const uint64_t length = header.size();
    SGA_TRY(file->append(std::as_bytes(std::span(&length, 1))));
    SGA_TRY(file->append(std::as_bytes(std::span(header))));
    for (const NamedTensor& t : tensors) SGA_TRY(file->append(t.bytes));
    SGA_TRY(file->sync());
    SGA_TRY(file->close());
    return files.rename(temporary, path);
  };
  if (Status status = write(); !status.ok()) {
    // Best effort: the error that matters is the first one.
    static_cast<void>(files.remove_file(temporary));
    return status;
  }
  return files.sync_directory(parent_directory(path));
}

}  // namespace sgactor::transport
