#include "transport/storage/unicode.h"

#include <algorithm>
#include <iterator>

namespace sgactor::transport {
namespace {

using Code = uint32_t;
struct Range {
  Code first;
  Code last;
};
struct CombiningRange {
  Code first;
  Code last;
  Code combining_class;
};
struct Single {
  Code code;
  Code part;
};
struct Pair {
  Code code;
  Code first;
  Code second;
};
#include "transport/storage/unicode_classes.inc"
#include "transport/storage/unicode_nfc.inc"

/// Row of a table of ranges that holds `code`, or null.
template <class Row, size_t n>
const Row* find_range(const Row (&table)[n], Code code) {
  const Row* const it = std::upper_bound(std::begin(table), std::end(table), code,
                                         [](Code c, const Row& row) { return c < row.first; });
  return it == std::begin(table) || code > (it - 1)->last ? nullptr : it - 1;
}

/// Row of a table sorted by code, or null.
template <class Row, size_t n>
const Row* find_code(const Row (&table)[n], Code code) {
  const Row* const it = std::lower_bound(std::begin(table), std::end(table), code,
                                         [](const Row& row, Code c) { return row.code < c; });
  return it == std::end(table) || it->code != code ? nullptr : it;
}

bool is_space(Code c) {
  return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

Code combining_class(Code code) {
  if (code < 0x300) return 0;
  const CombiningRange* const range = find_range(kCombiningClasses, code);
  return range == nullptr ? 0 : range->combining_class;
}

// Hangul syllables decompose and compose by arithmetic: the Unicode Standard, section 3.12.
constexpr Code kSBase = 0xAC00, kLBase = 0x1100, kVBase = 0x1161, kTBase = 0x11A7;
constexpr Code kLCount = 19, kVCount = 21, kTCount = 28;
constexpr Code kNCount = kVCount * kTCount, kSCount = kLCount * kNCount;

void decompose(Code code, std::vector<Code>& out) {
  if (code < 0xC0) {
    out.push_back(code);
  } else if (code - kSBase < kSCount) {
    const Code s = code - kSBase;
    out.push_back(kLBase + s / kNCount);
    out.push_back(kVBase + s % kNCount / kTCount);
    if (s % kTCount != 0) out.push_back(kTBase + s % kTCount);
  } else if (const Pair* const pair = find_code(kPairs, code)) {
    decompose(pair->first, out);
    decompose(pair->second, out);
  } else if (const Single* const single = find_code(kSingles, code)) {
    decompose(single->part, out);
  } else {
    out.push_back(code);
  }
}

/// Sorts each run of combining marks by class, keeping the order of equals.
void order_marks(std::vector<Code>& codes) {
  for (auto it = codes.begin(); it != codes.end();) {
    if (combining_class(*it) == 0) {
      ++it;
      continue;
    }
    const auto end = std::find_if(it, codes.end(), [](Code c) { return combining_class(c) == 0; });
    std::stable_sort(it, end,
                     [](Code a, Code b) { return combining_class(a) < combining_class(b); });
    it = end;
  }
}

}  // namespace

CodePoint decode_utf8(std::string_view text, size_t pos) {
  const auto byte = [&](size_t i) -> uint32_t { return static_cast<uint8_t>(text[pos + i]); };
  const uint32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const CodePoint invalid{kInvalidByte + lead, 1};
  const size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() - pos < length) return invalid;
  Code code = lead & (0x7FU >> length);
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return invalid;
    code = code << 6 | (byte(i) & 0x3F);
  }
  constexpr Code kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  if (code < kSmallest[length] || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF))
    return invalid;
  return {code, length};
}

void append_utf8(uint32_t code, std::string& out) {
  const auto put = [&](uint32_t byte) { out += static_cast<char>(byte); };
  if (code >= kInvalidByte) return put(code - kInvalidByte);
  if (code < 0x80) return put(code);
  if (code < 0x800) {
    put(0xC0 | code >> 6);
  } else {
    if (code < 0x10000) {
      put(0xE0 | code >> 12);
    } else {
      put(0xF0 | code >> 18);
      put(0x80 | (code >> 12 & 0x3F));
    }
    put(0x80 | (code >> 6 & 0x3F));
  }
  put(0x80 | (code & 0x3F));
}

CharClass classify(uint32_t code) {
  if (is_space(code)) return CharClass::kSpace;
  if (code < 0x80) {
    if ((code | 0x20) >= 'a' && (code | 0x20) <= 'z') return CharClass::kLetter;
    return code >= '0' && code <= '9' ? CharClass::kNumber : CharClass::kOther;
  }
  if (find_range(kLetters, code) != nullptr) return CharClass::kLetter;
  return find_range(kNumbers, code) != nullptr ? CharClass::kNumber : CharClass::kOther;
}

NfcNormalizer::NfcNormalizer() {
  for (const Pair& pair : kPairs)
    if (!std::binary_search(std::begin(kNotComposed), std::end(kNotComposed), pair.code))
      compositions_.push_back({pair.first, pair.second, pair.code});
  std::sort(compositions_.begin(), compositions_.end());
}

uint32_t NfcNormalizer::compose(uint32_t first, uint32_t second) const {
  if (first - kLBase < kLCount && second - kVBase < kVCount)
    return kSBase + ((first - kLBase) * kVCount + (second - kVBase)) * kTCount;
  if (first - kSBase < kSCount && (first - kSBase) % kTCount == 0 &&
      second - kTBase - 1 < kTCount - 1)
    return first + (second - kTBase);
  const auto it =
      std::lower_bound(compositions_.begin(), compositions_.end(), Composition{first, second, 0});
  return it != compositions_.end() && it->first == first && it->second == second ? it->composed : 0;
}

void NfcNormalizer::compose_all(std::vector<uint32_t>& codes) const {
  constexpr size_t kNone = static_cast<size_t>(-1);
  size_t starter = kNone;
  size_t size = 0;
  Code last_class = 0;
  for (const Code code : codes) {
    const Code cls = combining_class(code);
    // Blocked if something of the same or a higher class, or a starter, stands between.
    const bool adjacent = starter != kNone && size == starter + 1;
    if (starter != kNone && (adjacent || (last_class != 0 && last_class < cls))) {
      if (const Code composed = compose(codes[starter], code); composed != 0) {
        codes[starter] = composed;
        continue;
      }
    }
    if (cls == 0) starter = size;
    last_class = cls;
    codes[size++] = code;
  }
  codes.resize(size);
}

std::string NfcNormalizer::normalize(std::string_view text) const {
  // Nothing below U+0300 changes, and in UTF-8 that is every lead byte below 0xCC.
  if (std::all_of(text.begin(), text.end(), [](char c) { return static_cast<uint8_t>(c) < 0xCC; }))
    return std::string(text);
  std::vector<Code> codes;
  codes.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) {
    const CodePoint point = decode_utf8(text, pos);
    decompose(point.code, codes);
    pos += point.length;
  }
  order_marks(codes);
  compose_all(codes);
  std::string out;
  out.reserve(text.size());
  for (const Code code : codes) append_utf8(code, out);
  return out;
}

}  // namespace sgactor::transport
