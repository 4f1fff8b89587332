#include "transport/storage/tokenizer.h"

#include "transport/storage/file_system.h"
#include "transport/storage/run_files.h"
#include "transport/storage/sentencepiece_tokenizer.h"
#include "transport/storage/tokenizer_json.h"

namespace sgactor::transport {
namespace {

constexpr int64_t kMaxJsonBytes = int64_t{1} << 28;

class ByteTokenizer : public Tokenizer {
 public:
  [[nodiscard]] std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> ids;
    ids.reserve(text.size());
    for (const char c : text) ids.push_back(static_cast<uint8_t>(c));
    return ids;
  }
  [[nodiscard]] std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    for (const int32_t id : ids)
      if (id >= 0 && id < 256) text += static_cast<char>(id);
    return text;
  }
  [[nodiscard]] int64_t vocab_size() const override { return 256; }
  [[nodiscard]] int32_t end_of_text() const override { return -1; }
};

}  // namespace

Result<std::unique_ptr<Tokenizer>> create_tokenizer(const std::string& name_or_path) {
  if (name_or_path == "bytes") return std::unique_ptr<Tokenizer>(std::make_unique<ByteTokenizer>());
  std::string path = name_or_path;
  const PosixFileSystem files;
  SGA_ASSIGN(const FileSystem::Info info, files.info(path));
  if (info.is_directory) {
    SGA_ASSIGN(const FileSystem::Info json, files.info(path + "/tokenizer.json"));
    SGA_ASSIGN(const FileSystem::Info model, files.info(path + "/tokenizer.model"));
    if (!json.exists && !model.exists)
      return invalid_argument(path + ": holds neither tokenizer.json nor tokenizer.model");
    path += json.exists ? "/tokenizer.json" : "/tokenizer.model";
  }
  if (!path.ends_with(".json")) return open_sentencepiece(path);
  SGA_ASSIGN(const std::string text, read_file(path, kMaxJsonBytes));
  return parse_tokenizer_json(text, path);
}

}  // namespace sgactor::transport
