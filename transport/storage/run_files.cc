#include "transport/storage/run_files.h"

#include "transport/storage/file_system.h"

#include <span>

namespace sgactor::transport {

Status write_file_atomic(const std::string& path, std::string_view text) {
  PosixFileSystem files;
  return replace_file(files, path, text);
}

Result<std::string> read_file(const std::string& path, int64_t max_bytes) {
  return PosixFileSystem().read(path, max_bytes);
}

Status append_line(const std::string& path, std::string_view line, bool durable) {
  PosixFileSystem files;
  std::string text(line);
  text += '\n';
  SGA_ASSIGN(const FileSystem::Info before, files.info(path));
  SGA_ASSIGN(std::unique_ptr<WritableFile> file, files.open_append(path));
  SGA_TRY(file->append(std::as_bytes(std::span(text))));
  if (durable) SGA_TRY(file->sync());
  SGA_TRY(file->close());
  if (durable && !before.exists) return files.sync_directory(parent_directory(path));
  return {};
}

Status make_dirs(const std::string& path) {
  PosixFileSystem files;
  return make_directories(files, path);
}

}  // namespace sgactor::transport
