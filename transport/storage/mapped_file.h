#pragma once
#include "graph/base/status.h"

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace sgactor::transport {

/// A file mapped read-only for as long as the object lives. Thread-safe. Another program that
/// shortens the file meanwhile makes reads of the missing part raise SIGBUS.
class MappedFile {
 public:
  /// Errors: kInvalidArgument naming the file if it does not exist, is not a regular file or may
  /// not be read. An empty file maps to an empty span.
  static Result<std::shared_ptr<const MappedFile>> open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  MappedFile(std::string path, std::span<const std::byte> bytes)
      : path_(std::move(path)), bytes_(bytes) {}

  std::string path_;
  std::span<const std::byte> bytes_;
};

}  // namespace sgactor::transport
