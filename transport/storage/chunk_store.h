#pragma once
#include "graph/base/hash.h"
#include "graph/base/status.h"
#include "transport/storage/file_system.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace sgactor::transport {

/// Files named by the hash of what they hold: DIR/ab/abcdef….bin. A chunk that is there is whole or
/// damaged by something other than sgactor; it is never changed.
std::string chunk_path(const std::string& dir, const Hash128& hash);

/// Fills `out` with a chunk of exactly that size and checks its hash. Thread-safe. Errors:
/// kCorruption naming the file.
Status read_chunk(const FileSystem& files, const std::string& dir, const Hash128& hash,
                  std::span<std::byte> out);

/// Adds chunks. Not thread-safe; several writers of one store need different `writer` names.
class ChunkWriter {
 public:
  /// `check_reused`: a chunk that is there is used again only if its bytes have its hash, and is
  /// written anew otherwise; without it only its size is looked at. `files` must outlive this.
  ChunkWriter(FileSystem& files, std::string dir, std::string writer, bool check_reused);

  /// Adds a chunk and returns its name. `bytes` must stay as they are until finish(). Several files
  /// are written before the first is synced: their syncs then share a journal commit.
  Result<Hash128> add(std::span<const std::byte> bytes);
  /// Returns when every chunk added is durable, names included. Temporary files are removed on
  /// error.
  Status finish();

  [[nodiscard]] int64_t bytes_written() const { return bytes_written_; }
  [[nodiscard]] int64_t bytes_reused() const { return bytes_reused_; }

 private:
  struct Pending {
    std::unique_ptr<WritableFile> file;
    std::string temporary;
    std::string path;
  };
  Result<bool> is_there(const Hash128& hash, std::span<const std::byte> bytes);
  Status start(const Hash128& hash, std::span<const std::byte> bytes);
  Status flush();
  void abandon();

  FileSystem& files_;
  std::string dir_;
  std::string writer_;
  bool check_reused_;
  std::set<Hash128> added_;
  std::set<std::string> directories_;  ///< that a chunk of this writer is in
  std::vector<Pending> pending_;
  int64_t bytes_written_ = 0;
  int64_t bytes_reused_ = 0;
};

/// Removes every file of the store that is not in `keep`, left-over temporary files too. No writer
/// may be at work.
Status remove_other_chunks(FileSystem& files, const std::string& dir,
                           const std::set<Hash128>& keep);

}  // namespace sgactor::transport
