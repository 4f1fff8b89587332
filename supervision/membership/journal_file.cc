#include "supervision/membership/journal_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace sgactor::supervision {
namespace {

Result<std::string> read_all(int fd, const std::string& path) {
  std::string text;
  char buffer[1 << 14];
  for (;;) {
    const ssize_t n = ::read(fd, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return invalid_argument(fmt::format("{}: {}", path, std::strerror(errno)));
    if (n == 0) return text;
    text.append(buffer, static_cast<size_t>(n));
  }
}

/// A new file's name is durable only when its folder is.
void sync_folder(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  (void)::fsync(fd);
  ::close(fd);
}

}  // namespace

JournalFile::JournalFile(int fd, std::string path, ReplayedJournal replayed)
    : fd_(fd), path_(std::move(path)), replayed_(std::move(replayed)) {
  size_ = replayed_.valid_bytes;
}

JournalFile::~JournalFile() { ::close(fd_); }

Result<std::unique_ptr<JournalFile>> JournalFile::open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return invalid_argument(fmt::format("{}: {}", path, std::strerror(errno)));
  std::unique_ptr<JournalFile> file(new JournalFile(fd, path, {}));
  SGA_ASSIGN(const std::string text, read_all(fd, path));
  SGA_ASSIGN(file->replayed_, replay_journal(text));
  file->size_ = file->replayed_.valid_bytes;
  if (file->replayed_.torn) {
    if (::ftruncate(fd, file->size_) != 0 || ::fsync(fd) != 0) return file->fail("cut");
  }
  if (text.empty()) sync_folder(path);
  return file;
}

Status JournalFile::fail(const char* what) {
  return internal_error(fmt::format("{}: {}: {}", path_, what, std::strerror(errno)));
}

Status JournalFile::append(const JournalEntry& entry) {
  if (poisoned_) return internal_error(path_ + ": an earlier sync has failed");
  const std::string line = format_entry(entry);
  size_t written = 0;
  while (written < line.size()) {
    const ssize_t n = ::pwrite(fd_, line.data() + written, line.size() - written,
                               size_ + static_cast<int64_t>(written));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      Status status = fail("write");
      if (::ftruncate(fd_, size_) != 0) poisoned_ = true;
      return status;
    }
    written += static_cast<size_t>(n);
  }
  if (::fdatasync(fd_) != 0) {
    poisoned_ = true;
    return fail("sync");
  }
  size_ += static_cast<int64_t>(line.size());
  return {};
}

}  // namespace sgactor::supervision
