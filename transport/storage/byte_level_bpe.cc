#include "transport/storage/byte_level_bpe.h"

#include <algorithm>

namespace sgactor::transport {

ByteLevelBpe::ByteLevelBpe(Parts parts) : parts_(std::move(parts)) {
  num_ids_ = parts_.model.num_ids();
  for (const AddedToken& token : parts_.added) {
    added_by_byte_[static_cast<uint8_t>(token.text[0])].push_back(&token);
    added_by_id_.emplace(token.id, &token);
    num_ids_ = std::max<int64_t>(num_ids_, int64_t{token.id} + 1);
  }
  for (auto& tokens : added_by_byte_)
    std::stable_sort(tokens.begin(), tokens.end(),
                     [](const auto* a, const auto* b) { return a->text.size() > b->text.size(); });
}

const ByteLevelBpe::AddedToken* ByteLevelBpe::added_at(std::string_view text) const {
  for (const AddedToken* token : added_by_byte_[static_cast<uint8_t>(text[0])])
    if (text.starts_with(token->text)) return token;
  return nullptr;
}

std::vector<int32_t> ByteLevelBpe::encode(std::string_view text) const {
  std::vector<int32_t> ids;
  size_t start = 0;
  for (size_t pos = 0; pos < text.size();) {
    const AddedToken* const token = added_at(text.substr(pos));
    if (token == nullptr) {
      ++pos;
      continue;
    }
    encode_plain(text.substr(start, pos - start), ids);
    ids.push_back(token->id);
    pos += token->text.size();
    start = pos;
  }
  encode_plain(text.substr(start), ids);
  return ids;
}

void ByteLevelBpe::encode_plain(std::string_view raw, std::vector<int32_t>& ids) const {
  if (raw.empty()) return;
  std::string normalized;
  if (parts_.nfc) {
    normalized = parts_.nfc->normalize(raw);
    raw = normalized;
  }
  std::vector<std::string_view> pieces{raw};
  for (const SplitStep& step : parts_.steps) {
    std::vector<std::string_view> finer;
    for (const std::string_view piece : pieces) {
      if (const auto* pattern = std::get_if<SplitPattern>(&step))
        split_by_pattern(*pattern, piece, finer);
      else
        split_digits(std::get<Digits>(step).individual, piece, finer);
    }
    pieces = std::move(finer);
  }
  for (const std::string_view piece : pieces) parts_.model.encode(piece, ids);
}

std::string ByteLevelBpe::decode(std::span<const int32_t> ids) const {
  std::string text;
  for (const int32_t id : ids) {
    const auto added = added_by_id_.find(id);
    text += added != added_by_id_.end() ? std::string_view(added->second->text)
                                        : parts_.model.bytes(id);
  }
  return text;
}

}  // namespace sgactor::transport
