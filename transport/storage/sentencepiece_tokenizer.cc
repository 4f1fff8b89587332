#include "transport/storage/sentencepiece_tokenizer.h"

#include "transport/storage/run_files.h"

#include <sentencepiece_processor.h>

namespace sgactor::transport {
namespace {

constexpr size_t kPartBytes = size_t{16} << 20;  // bounds the library's lattice

class SentencePieceTokenizer : public Tokenizer {
 public:
  explicit SentencePieceTokenizer(std::unique_ptr<sentencepiece::SentencePieceProcessor> processor)
      : processor_(std::move(processor)) {}

  [[nodiscard]] std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> ids;
    std::vector<int> part_ids;
    while (!text.empty()) {
      size_t size = text.size();
      if (size > kPartBytes) {
        const size_t newline = text.rfind('\n', kPartBytes - 1);
        size = newline == std::string_view::npos ? kPartBytes : newline + 1;
      }
      // It fails only when no model is loaded.
      const auto status = processor_->Encode(text.substr(0, size), &part_ids);
      SGA_CHECK(status.ok(), status.ToString());
      ids.insert(ids.end(), part_ids.begin(), part_ids.end());
      text.remove_prefix(size);
    }
    return ids;
  }

  [[nodiscard]] std::string decode(std::span<const int32_t> ids) const override {
    std::vector<int> known;
    for (const int32_t id : ids)
      if (id >= 0 && id < processor_->GetPieceSize()) known.push_back(id);
    std::string text;
    const auto status = processor_->Decode(known, &text);
    SGA_CHECK(status.ok(), status.ToString());
    return text;
  }

  [[nodiscard]] int64_t vocab_size() const override { return processor_->GetPieceSize(); }
  [[nodiscard]] int32_t end_of_text() const override { return processor_->eos_id(); }
  [[nodiscard]] int32_t begin_of_text() const override { return processor_->bos_id(); }

 private:
  std::unique_ptr<sentencepiece::SentencePieceProcessor> processor_;
};

}  // namespace

Result<std::unique_ptr<Tokenizer>> open_sentencepiece(const std::string& path) {
  SGA_ASSIGN(const std::string model, read_file(path, int64_t{1} << 28));
  try {
    auto processor = std::make_unique<sentencepiece::SentencePieceProcessor>();
    if (const auto status = processor->LoadFromSerializedProto(model); !status.ok())
      return invalid_argument(path + ": is no SentencePiece model: " + status.ToString());
    if (processor->GetPieceSize() <= 0) return invalid_argument(path + ": has no pieces");
    return std::unique_ptr<Tokenizer>(
        std::make_unique<SentencePieceTokenizer>(std::move(processor)));
  } catch (const std::exception& e) {
    return invalid_argument(path + ": is no SentencePiece model: " + e.what());
  }
}

}  // namespace sgactor::transport
