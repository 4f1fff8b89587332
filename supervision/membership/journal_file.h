#pragma once
#include "graph/base/status.h"
#include "supervision/membership/journal.h"

#include <memory>
#include <string>

namespace sgactor::supervision {

/// The journal on disk. Blocks; one caller at a time.
class JournalFile {
 public:
  /// Opens `path` (made if missing, its folder synced then), replays it and cuts a torn tail off.
  /// Errors: kInvalidArgument if it cannot be opened, kCorruption as replay_journal's.
  static Result<std::unique_ptr<JournalFile>> open(const std::string& path);
  ~JournalFile();
  JournalFile(const JournalFile&) = delete;
  JournalFile& operator=(const JournalFile&) = delete;

  [[nodiscard]] const ReplayedJournal& replayed() const { return replayed_; }
  /// On disk when it returns ok. After a failed write (disk full) the entry has left no trace and
  /// may be tried again. After a failed sync nobody knows what is on disk: every later call fails,
  /// and the coordinator has to start again from the file. Errors: kInternal with errno's text.
  Status append(const JournalEntry& entry);

 private:
  JournalFile(int fd, std::string path, ReplayedJournal replayed);
  Status fail(const char* what);

  int fd_;
  std::string path_;
  ReplayedJournal replayed_;
  int64_t size_ = 0;
  bool poisoned_ = false;
};

}  // namespace sgactor::supervision
