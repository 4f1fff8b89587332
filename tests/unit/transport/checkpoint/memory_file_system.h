#pragma once
#include "transport/storage/file_system.h"

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace sgactor::transport {

/// A disk in memory that can fill up, die after a number of operations, and lose power. It promises
/// only what POSIX does: bytes of a file are safe after sync(); entries of a directory (made,
/// renamed, removed) are safe after sync_directory of it. What is not safe may be lost or kept,
/// each by itself; an unsynced tail may be cut anywhere and its bytes be wrong. Not thread-safe.
class MemoryFileSystem : public FileSystem {
 public:
  MemoryFileSystem();

  /// Every operation from the `n`-th on (counted from now) fails. Negative: never.
  void die_after(int64_t n) { operations_left_ = n; }
  /// Operations done since the start.
  [[nodiscard]] int64_t num_operations() const { return num_operations_; }
  /// Bytes that all files together may have.
  void set_capacity(int64_t bytes) { capacity_ = bytes; }
  [[nodiscard]] int64_t used_bytes() const;
  /// A copy as the disk may be found after a power cut now; `seed` picks what was lost. It works.
  [[nodiscard]] std::shared_ptr<MemoryFileSystem> after_power_cut(uint64_t seed) const;
  /// A copy that works, with nothing lost: the process died, the machine did not.
  [[nodiscard]] std::shared_ptr<MemoryFileSystem> after_kill() const;

  /// Paths of all files, sorted.
  [[nodiscard]] std::vector<std::string> files() const;
  /// Changes a file behind everybody's back.
  void overwrite(const std::string& path, const std::string& bytes);

  Result<std::unique_ptr<WritableFile>> create(const std::string& path) override;
  Result<std::unique_ptr<WritableFile>> open_append(const std::string& path) override;
  Status rename(const std::string& from, const std::string& to) override;
  Status remove_file(const std::string& path) override;
  Status remove_directory(const std::string& path) override;
  Status make_directory(const std::string& path) override;
  Status sync_directory(const std::string& path) override;
  [[nodiscard]] Result<std::vector<Entry>> list(const std::string& path) const override;
  [[nodiscard]] Result<Info> info(const std::string& path) const override;
  [[nodiscard]] Result<std::string> read(const std::string& path, int64_t max_bytes) const override;
  [[nodiscard]] Status read_exact(const std::string& path, std::span<std::byte> out) const override;

 private:
  friend class MemoryFile;
  struct Node {
    bool is_directory = false;
    std::string bytes;
    size_t synced = 0;  ///< so many bytes from the start are safe
  };
  using NodePtr = std::shared_ptr<Node>;
  /// One operation on entries of a directory; null: the entry goes.
  using Change = std::vector<std::pair<std::string, NodePtr>>;

  Status operate(const std::string& path, const char* operation);
  void change(const std::string& directory, Change change);

  std::map<std::string, NodePtr> entries_;               ///< as programs see them, by path
  std::map<std::string, NodePtr> safe_entries_;          ///< as they are on the disk
  std::map<std::string, std::vector<Change>> unsynced_;  ///< by directory, in order
  int64_t operations_left_ = -1;
  int64_t num_operations_ = 0;
  int64_t capacity_ = int64_t{1} << 40;
};

}  // namespace sgactor::transport
