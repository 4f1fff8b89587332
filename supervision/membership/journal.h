#pragma once
#include "graph/base/status.h"
#include "supervision/membership/world.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace sgactor::supervision {

/// A new generation with its members.
struct MembershipRecord {
  int64_t generation = 0;
  std::vector<NodeId> nodes;
  std::vector<Member> workers;
  friend bool operator==(const MembershipRecord&, const MembershipRecord&) = default;
};
/// A rank has a new place: another worker (with a higher incarnation) or another mirror.
struct PlaceRecord {
  RankId rank = 0;
  RankPlace place;
  friend bool operator==(const PlaceRecord&, const PlaceRecord&) = default;
};
/// COMMIT(step): from here every rank's mirror is also its source.
struct CommitRecord {
  int64_t step = 0;
  friend bool operator==(const CommitRecord&, const CommitRecord&) = default;
};
using Record = std::variant<MembershipRecord, PlaceRecord, CommitRecord>;

/// What becomes durable at once or not at all: one line of the journal.
struct JournalEntry {
  int64_t number = 0;
  std::vector<Record> records;
};

/// One line that ends in a newline:
///   12 members 4 0,1 0@0.0.ff,3@1.0.ff; place 2 3 2 0 1; commit 7 #<16 hex digits: XXH3 of the
/// text before " #">. Members: generation, nodes, worker@node.slot.fingerprint. Place: rank,
/// worker, incarnation, mirror, source.
std::string format_entry(const JournalEntry& entry);

/// Applies `record` to `world`. Errors: kCorruption if it does not follow: a generation that is not
/// higher, a place with a lower incarnation or of a rank out of order, a step that is not the next.
Status apply_record(const Record& record, World& world);

/// Records that turn `from` into `to`, whose generation is higher and whose committed step is
/// equal.
std::vector<Record> difference(const World& from, const World& to);

struct ReplayedJournal {
  World world;
  int64_t next_number = 0;
  int64_t valid_bytes = 0;  ///< cut the file here before appending to it
  bool torn = false;        ///< something lay behind: an entry that was never told to anybody
};
/// Folds a journal's text. A last line that is cut or fails its checksum is a write that a crash
/// interrupted, and is left out. Errors: kCorruption naming the line, for a bad line that others
/// follow, or records that do not fit. Safe on hostile text.
Result<ReplayedJournal> replay_journal(std::string_view text);

}  // namespace sgactor::supervision
