#include "transport/storage/bpe_model.h"

#include <algorithm>
#include <queue>
#include <tuple>

namespace sgactor::transport {

bool BpeModel::add_token(std::string bytes, int32_t id) {
  const auto at = static_cast<size_t>(id);
  if (at < bytes_by_id_.size() && !bytes_by_id_[at].empty()) return false;
  if (bytes.empty() || !ids_.emplace(bytes, id).second) return false;
  if (at >= bytes_by_id_.size()) bytes_by_id_.resize(at + 1);
  if (bytes.size() == 1) byte_ids_[static_cast<uint8_t>(bytes[0])] = id;
  bytes_by_id_[at] = std::move(bytes);
  return true;
}

bool BpeModel::add_merge(std::string_view left, std::string_view right, int32_t rank) {
  const std::optional<int32_t> a = find(left);
  const std::optional<int32_t> b = find(right);
  const std::optional<int32_t> both = find(std::string(left) + std::string(right));
  if (!a || !b || !both) return false;
  // Of two equal merges the later one counts, as in the files' own library.
  merges_[static_cast<uint64_t>(*a) << 32 | static_cast<uint32_t>(*b)] = {rank, *both};
  return true;
}

std::optional<int32_t> BpeModel::find(std::string_view bytes) const {
  const auto it = ids_.find(bytes);
  if (it == ids_.end()) return std::nullopt;
  return it->second;
}

std::string_view BpeModel::bytes(int32_t id) const {
  if (id < 0 || id >= num_ids()) return {};
  return bytes_by_id_[static_cast<size_t>(id)];
}

const BpeModel::Merge* BpeModel::find_merge(int32_t left, int32_t right) const {
  const auto it = merges_.find(static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right));
  return it == merges_.end() ? nullptr : &it->second;
}

void BpeModel::encode(std::string_view piece, std::vector<int32_t>& ids) const {
  if (piece.empty()) return;
  if (ignore_merges_) {
    if (const std::optional<int32_t> id = find(piece)) {
      ids.push_back(*id);
      return;
    }
  }
  struct Symbol {
    int32_t id;  // -1: merged into the one before
    int32_t previous;
    int32_t next;
  };
  std::vector<Symbol> symbols;
  symbols.reserve(piece.size());
  for (const char c : piece) {
    const int32_t id = byte_ids_[static_cast<uint8_t>(c)];
    if (id < 0) continue;
    const auto i = static_cast<int32_t>(symbols.size());
    symbols.push_back({id, i - 1, i + 1});
  }
  if (symbols.empty()) return;
  symbols.back().next = -1;
  const auto n = static_cast<int32_t>(symbols.size());
  const auto at = [&](int32_t i) -> Symbol& { return symbols[static_cast<size_t>(i)]; };

  // The lowest rank first, the leftmost of equals. Entries are not taken out when a symbol changes:
  // one that no longer fits is dropped when it comes up.
  using Candidate = std::tuple<int32_t, int32_t, int32_t>;  // rank, position, merged id
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto consider = [&](int32_t left) {
    if (left < 0 || at(left).next < 0) return;
    if (const Merge* merge = find_merge(at(left).id, at(at(left).next).id))
      queue.emplace(merge->rank, left, merge->id);
  };
  for (int32_t i = 0; i + 1 < n; ++i) consider(i);
  while (!queue.empty()) {
    const auto [rank, left, merged] = queue.top();
    queue.pop();
    Symbol& symbol = at(left);
    if (symbol.id < 0 || symbol.next < 0) continue;
    Symbol& right = at(symbol.next);
    const Merge* merge = find_merge(symbol.id, right.id);
    if (merge == nullptr || merge->id != merged) continue;
    symbol.id = merged;
    symbol.next = right.next;
    right.id = -1;
    if (symbol.next >= 0) at(symbol.next).previous = left;
    consider(symbol.previous);
    consider(left);
  }
  for (int32_t i = 0; i >= 0; i = at(i).next) ids.push_back(at(i).id);
}

}  // namespace sgactor::transport
