#include "transport/storage/run_files.h"

#include "transport/storage/file_system.h"

#include <filesystem>
#include <fstream>
#include <span>
#include <system_error>

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

Status cut_unfinished_line(const std::string& path) {
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  if (!in) return {};
  const auto size = static_cast<int64_t>(in.tellg());
  int64_t end = size;
  for (char c = 0; end > 0; --end) {
    in.seekg(end - 1);
    if (!in.get(c)) return internal_error(path + ": cannot read");
    if (c == '\n') break;
  }
  in.close();
  std::error_code error;
  if (end < size) std::filesystem::resize_file(path, static_cast<uintmax_t>(end), error);
  if (error) return internal_error(path + ": cannot cut: " + error.message());
  return {};
}

Status make_dirs(const std::string& path) {
  PosixFileSystem files;
  return make_directories(files, path);
}

}  // namespace sgactor::transport
