#pragma once
#include "graph/base/status.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sgactor::transport {

/// A file being written. Destroying it closes it; bytes that were not synced may then be lost in a
/// crash. Not thread-safe.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  /// Appends all bytes or fails; after a failure any prefix of them may be in the file.
  virtual Status append(std::span<const std::byte> bytes) = 0;
  /// Returns when every byte appended so far survives a power cut (its directory entry: see
  /// FileSystem::sync_directory).
  virtual Status sync() = 0;
  virtual Status close() = 0;
};

/// The few file operations that durable state needs, so that a test or a simulation can put a full
/// disk, a torn write or a power cut in place of the real disk. What makes a change durable:
/// WritableFile::sync for the bytes of a file, sync_directory for entries that were made, renamed
/// or removed. Thread-safe. Errors, unless said otherwise: kInternal "PATH: OPERATION: TEXT OF
/// ERRNO".
class FileSystem {
 public:
  struct Entry {
    std::string name;  ///< without the directory
    bool is_directory = false;
  };
  struct Info {
    bool exists = false;
    bool is_directory = false;
    int64_t size_bytes = 0;
  };

  virtual ~FileSystem() = default;
  /// Opens for writing from the start; a file that exists is emptied.
  virtual Result<std::unique_ptr<WritableFile>> create(const std::string& path) = 0;
  /// Opens for writing at the end; makes the file if there is none.
  virtual Result<std::unique_ptr<WritableFile>> open_append(const std::string& path) = 0;
  /// Atomically gives `from` the name `to`, in place of what had it.
  virtual Status rename(const std::string& from, const std::string& to) = 0;
  virtual Status remove_file(const std::string& path) = 0;
  virtual Status remove_directory(const std::string& path) = 0;  ///< it must be empty
  /// Ok too if the directory is there. The parent must exist.
  virtual Status make_directory(const std::string& path) = 0;
  virtual Status sync_directory(const std::string& path) = 0;

  /// Entries without "." and "..", sorted by name.
  [[nodiscard]] virtual Result<std::vector<Entry>> list(const std::string& path) const = 0;
  /// Never an error for a path that does not exist.
  [[nodiscard]] virtual Result<Info> info(const std::string& path) const = 0;
  /// Whole content. Errors: also kInvalidArgument if there is no such file, if it is a directory,
  /// or if it is longer than `max_bytes`.
  [[nodiscard]] virtual Result<std::string> read(const std::string& path,
                                                 int64_t max_bytes) const = 0;
  /// Fills `out` from a file of exactly that size. Errors: also kCorruption if there is no such
  /// file or its size differs (both sizes named).
  [[nodiscard]] virtual Status read_exact(const std::string& path,
                                          std::span<std::byte> out) const = 0;
};

/// The machine's own files. Has no state.
class PosixFileSystem : public FileSystem {
 public:
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
};

/// Directory of `path`: "a" for "a/b", "." for "b", "/" for "/b".
std::string parent_directory(const std::string& path);
/// Name of `path` inside its directory. A trailing '/' is ignored.
std::string base_name(const std::string& path);

/// Makes `path` and the parents it lacks, durably.
Status make_directories(FileSystem& files, const std::string& path);
/// Puts `bytes` at `path` durably and at once: after a crash the file is the old one or the new
/// one, whole. Writes PATH.tmp first; there must be one writer of a path at a time.
Status replace_file(FileSystem& files, const std::string& path, std::string_view bytes);

}  // namespace sgactor::transport
