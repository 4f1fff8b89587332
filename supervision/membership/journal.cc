#include "supervision/membership/journal.h"

#include "graph/base/hash.h"

#include <fmt/format.h>

#include <charconv>
#include <optional>

namespace sgactor::supervision {
namespace {

constexpr size_t kMaxRanks = 1U << 20U;

/// Reads a line's words; every take fails softly and stays failed.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}
  [[nodiscard]] bool ok() const { return ok_; }
  [[nodiscard]] bool at_end() const { return text_.empty(); }

  bool accept(std::string_view token) {
    if (!ok_ || text_.substr(0, token.size()) != token) return false;
    text_.remove_prefix(token.size());
    return true;
  }
  void expect(std::string_view token) { ok_ = ok_ && accept(token); }
  template <class T>
  T number(int base = 10) {
    T value = 0;
    if (!ok_) return value;
    const auto [rest, error] =
        std::from_chars(text_.data(), text_.data() + text_.size(), value, base);
    if (error != std::errc()) {
      ok_ = false;
      return 0;
    }
    text_.remove_prefix(static_cast<size_t>(rest - text_.data()));
    return value;
  }

 private:
  std::string_view text_;
  bool ok_ = true;
};

MembershipRecord read_members(Reader& in) {
  MembershipRecord out;
  out.generation = in.number<int64_t>();
  in.expect(" ");
  if (!in.accept("-")) {
    do out.nodes.push_back(in.number<NodeId>());
    while (in.accept(","));
  }
  in.expect(" ");
  if (in.accept("-")) return out;
  do {
    Member m;
    m.worker = in.number<WorkerId>();
    in.expect("@");
    m.node = in.number<NodeId>();
    in.expect(".");
    m.slot = in.number<int32_t>();
    in.expect(".");
    m.fingerprint = in.number<uint64_t>(16);
    out.workers.push_back(m);
  } while (in.accept(","));
  return out;
}

PlaceRecord read_place(Reader& in) {
  PlaceRecord out;
  out.rank = in.number<RankId>();
  in.expect(" ");
  out.place.worker = in.number<WorkerId>();
  in.expect(" ");
  out.place.incarnation = in.number<int64_t>();
  in.expect(" ");
  out.place.mirror = in.number<NodeId>();
  in.expect(" ");
  out.place.source = in.number<NodeId>();
  return out;
}

std::optional<JournalEntry> read_entry(std::string_view line) {
  const size_t mark = line.rfind(" #");
  if (mark == std::string_view::npos) return std::nullopt;
  if (line.substr(mark + 2) != hex64(hash64(line.substr(0, mark)))) return std::nullopt;
  Reader in(line.substr(0, mark));
  JournalEntry entry;
  entry.number = in.number<int64_t>();
  do {
    in.expect(" ");
    if (in.accept("members ")) {
      entry.records.emplace_back(read_members(in));
    } else if (in.accept("place ")) {
      entry.records.emplace_back(read_place(in));
    } else if (in.accept("commit ")) {
      entry.records.emplace_back(CommitRecord{in.number<int64_t>()});
    } else {
      return std::nullopt;
    }
  } while (in.accept(";"));
  if (!in.ok() || !in.at_end()) return std::nullopt;
  return entry;
}

struct Writer {
  std::string& out;
  void operator()(const MembershipRecord& r) const {
    out += fmt::format(" members {} ", r.generation);
    for (size_t i = 0; i < r.nodes.size(); ++i)
      out += fmt::format("{}{}", i ? "," : "", r.nodes[i]);
    out += r.nodes.empty() ? "- " : " ";
    for (size_t i = 0; i < r.workers.size(); ++i) {
      const Member& m = r.workers[i];
      out += fmt::format("{}{}@{}.{}.{:x}", i ? "," : "", m.worker, m.node, m.slot, m.fingerprint);
    }
    if (r.workers.empty()) out += "-";
  }
  void operator()(const PlaceRecord& r) const {
    out += fmt::format(" place {} {} {} {} {}", r.rank, r.place.worker, r.place.incarnation,
                       r.place.mirror, r.place.source);
  }
  void operator()(const CommitRecord& r) const { out += fmt::format(" commit {}", r.step); }
};

struct Applier {
  World& world;
  Status operator()(const MembershipRecord& r) const {
    if (r.generation <= world.generation) {
      return corruption(
          fmt::format("journal: generation {} follows {}", r.generation, world.generation));
    }
    world.generation = r.generation;
    world.nodes = r.nodes;
    world.workers = r.workers;
    return {};
  }
  Status operator()(const PlaceRecord& r) const {
    const auto index = static_cast<size_t>(r.rank);
    if (r.rank < 0 || index > world.ranks.size() || index >= kMaxRanks) {
      return corruption(fmt::format("journal: rank {} of {}", r.rank, world.ranks.size()));
    }
    if (index == world.ranks.size()) {
      world.ranks.push_back(r.place);
      return {};
    }
    RankPlace& place = world.ranks[index];
    const bool moved = place.worker != r.place.worker;
    if (r.place.incarnation < place.incarnation + (moved ? 1 : 0)) {
      return corruption(fmt::format("journal: rank {}: incarnation {} follows {}", r.rank,
                                    r.place.incarnation, place.incarnation));
    }
    place = r.place;
    return {};
  }
  Status operator()(const CommitRecord& r) const {
    // The first commit of a resumed run may follow a checkpoint's step, which is no commit here.
    if (r.step != world.committed + 1 && world.committed != 0) {
      return corruption(fmt::format("journal: commit {} follows {}", r.step, world.committed));
    }
    world.committed = r.step;
    for (RankPlace& place : world.ranks) place.source = place.mirror;
    return {};
  }
};

}  // namespace

std::string format_entry(const JournalEntry& entry) {
  std::string out = fmt::format("{}", entry.number);
  for (size_t i = 0; i < entry.records.size(); ++i) {
    if (i > 0) out += ";";
    std::visit(Writer{out}, entry.records[i]);
  }
  return fmt::format("{} #{}\n", out, hex64(hash64(out)));
}

Status apply_record(const Record& record, World& world) {
  return std::visit(Applier{world}, record);
}

std::vector<Record> difference(const World& from, const World& to) {
  std::vector<Record> out;
  out.emplace_back(MembershipRecord{to.generation, to.nodes, to.workers});
  for (size_t r = 0; r < to.ranks.size(); ++r) {
    if (r >= from.ranks.size() || from.ranks[r] != to.ranks[r]) {
      out.emplace_back(PlaceRecord{static_cast<RankId>(r), to.ranks[r]});
    }
  }
  return out;
}

Result<ReplayedJournal> replay_journal(std::string_view text) {
  ReplayedJournal out;
  for (int64_t line = 1; !text.empty(); ++line) {
    const size_t end = text.find('\n');
    const bool last = end == std::string_view::npos || end + 1 == text.size();
    const auto entry =
        end == std::string_view::npos ? std::nullopt : read_entry(text.substr(0, end));
    if (!entry) {
      if (!last) return corruption(fmt::format("journal: line {} is altered", line));
      out.torn = true;
      return out;
    }
    if (entry->number != out.next_number) {
      return corruption(fmt::format("journal: line {} is entry {}", line, entry->number));
    }
    for (const Record& record : entry->records) SGA_TRY(apply_record(record, out.world));
    ++out.next_number;
    out.valid_bytes += static_cast<int64_t>(end + 1);
    text.remove_prefix(end + 1);
  }
  return out;
}

}  // namespace sgactor::supervision
