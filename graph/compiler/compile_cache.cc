#include "graph/compiler/compile_cache.h"

#include "graph/base/hash.h"
#include "graph/plan/serial.h"

#include <bit>
#include <cstring>
#include <span>
#include <utility>

namespace sgactor::graph {
namespace {

// Changes with the layout below; the plan's own layout changes with the program, which is in the
// key.
constexpr std::string_view kMagic = "sgaplan1";

class Writer {
 public:
  void number(uint64_t value) {
    for (int byte = 0; byte < 8; ++byte) out_ += static_cast<char>(value >> (8 * byte) & 0xff);
  }
  void text(std::string_view value) {
    number(value.size());
    out_ += value;
  }
  std::string take() { return std::move(out_); }

 private:
  std::string out_;
};

/// Reads past the end give zeros and empty texts, and ok() turns false.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  uint64_t number() {
    const std::string_view raw = take(8);
    uint64_t value = 0;
    for (size_t byte = 0; byte < raw.size(); ++byte) {
      value |= uint64_t{static_cast<unsigned char>(raw[byte])} << (8 * byte);
    }
    return value;
  }
  std::string_view text() { return take(number()); }
  /// A count of things that take at least `min_bytes` each, so that a wrong one reserves nothing.
  size_t count(size_t min_bytes) {
    const uint64_t value = number();
    if (value <= bytes_.size() / min_bytes) return static_cast<size_t>(value);
    ok_ = false;
    return 0;
  }
  [[nodiscard]] bool ok() const { return ok_; }
  [[nodiscard]] bool at_end() const { return ok_ && bytes_.empty(); }

 private:
  std::string_view take(uint64_t size) {
    if (size > bytes_.size()) {
      ok_ = false;
      bytes_ = {};
      return {};
    }
    const std::string_view taken = bytes_.substr(0, static_cast<size_t>(size));
    bytes_.remove_prefix(static_cast<size_t>(size));
    return taken;
  }

  std::string_view bytes_;
  bool ok_ = true;
};

void write_passes(Writer& w, const std::vector<PassRecord>& passes) {
  w.number(passes.size());
  for (const PassRecord& p : passes) {
    w.text(p.name);
    w.number(std::bit_cast<uint64_t>(p.ms));
    w.number(static_cast<uint64_t>(p.ops_before));
    w.number(static_cast<uint64_t>(p.ops_after));
    w.text(p.note);
    w.number(p.details.size());
    for (const std::string& line : p.details) w.text(line);
  }
}

std::vector<PassRecord> read_passes(Reader& r) {
  std::vector<PassRecord> passes(r.count(48));
  for (PassRecord& p : passes) {
    p.name = r.text();
    p.ms = std::bit_cast<double>(r.number());
    p.ops_before = static_cast<int32_t>(r.number());
    p.ops_after = static_cast<int32_t>(r.number());
    p.note = r.text();
    p.details.resize(r.count(8));
    for (std::string& line : p.details) line = r.text();
  }
  return passes;
}

Hash128 checksum(std::string_view body) { return hash128(std::as_bytes(std::span(body))); }

}  // namespace

std::string encode_cache_entry(std::string_view key, const CacheEntry& entry) {
  Writer body;
  body.text(key);
  body.text(serialize_plan(entry.compiled.plan));
  body.text(entry.graph_bytes);
  write_passes(body, entry.compiled.passes);
  body.number(entry.compiled.fusions.size());
  for (const FusionReport& f : entry.compiled.fusions) {
    body.text(f.pattern);
    body.number(static_cast<uint64_t>(f.count));
  }
  const std::string bytes = body.take();
  const Hash128 sum = checksum(bytes);
  Writer head;
  head.number(sum.low);
  head.number(sum.high);
  return std::string(kMagic) + head.take() + bytes;
}

Result<CacheEntry> decode_cache_entry(std::string_view bytes, std::string_view key) {
  constexpr size_t kHead = kMagic.size() + 16;
  if (bytes.size() < kHead || bytes.substr(0, kMagic.size()) != kMagic)
    return corruption("no cached plan of this format");
  Reader head(bytes.substr(kMagic.size(), 16));
  const uint64_t low = head.number();
  const Hash128 sum{low, head.number()};
  const std::string_view body = bytes.substr(kHead);
  if (checksum(body) != sum) return corruption("the checksum of the cached plan is wrong");
  Reader r(body);
  if (r.text() != key) return invalid_argument("the cached plan has another key");
  CacheEntry entry;
  SGA_ASSIGN(entry.compiled.plan, deserialize_plan(r.text()));
  entry.graph_bytes = r.text();
  entry.compiled.passes = read_passes(r);
  entry.compiled.fusions.resize(r.count(16));
  for (FusionReport& f : entry.compiled.fusions) {
    f.pattern = r.text();
    f.count = static_cast<int32_t>(r.number());
  }
  if (!r.at_end()) return corruption("the cached plan is cut or too long");
  return entry;
}

std::string cache_file_name(std::string_view key) {
  return "plan-" + checksum(key).hex() + ".sgaplan";
}

}  // namespace sgactor::graph
