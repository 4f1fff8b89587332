#include "transport/storage/file_system.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

namespace sgactor::transport {
namespace {

Status errno_status(const std::string& path, const char* operation, int error) {
  return internal_error(
      fmt::format("{}: {}: {}", path, operation, std::generic_category().message(error)));
}

/// Owns a descriptor.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  [[nodiscard]] int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

class PosixFile : public WritableFile {
 public:
  PosixFile(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}

  Status append(std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      const ssize_t n = ::write(fd_.get(), bytes.data(), bytes.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return errno_status(path_, "write", errno);
      bytes = bytes.subspan(static_cast<size_t>(n));
    }
    return {};
  }
  Status sync() override {
    if (::fsync(fd_.get()) != 0) return errno_status(path_, "fsync", errno);
    return {};
  }
  Status close() override {
    // Not retried on EINTR: Linux has released the descriptor by then.
    if (const int fd = fd_.release(); fd >= 0 && ::close(fd) != 0 && errno != EINTR)
      return errno_status(path_, "close", errno);
    return {};
  }

 private:
  Descriptor fd_;
  std::string path_;
};

Result<std::unique_ptr<WritableFile>> open_for_writing(const std::string& path, int flags) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0644);
  if (fd < 0) return errno_status(path, "open for writing", errno);
  return std::unique_ptr<WritableFile>(std::make_unique<PosixFile>(fd, path));
}

/// Reads up to out.size() bytes; fewer only at the end of the file.
Result<size_t> read_up_to(int fd, const std::string& path, std::span<std::byte> out) {
  size_t done = 0;
  while (done < out.size()) {
    const ssize_t n = ::read(fd, out.data() + done, out.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno_status(path, "read", errno);
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  return done;
}

}  // namespace

Result<std::unique_ptr<WritableFile>> PosixFileSystem::create(const std::string& path) {
  return open_for_writing(path, O_TRUNC);
}

Result<std::unique_ptr<WritableFile>> PosixFileSystem::open_append(const std::string& path) {
  return open_for_writing(path, O_APPEND);
}

Status PosixFileSystem::rename(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) return errno_status(to, "rename", errno);
  return {};
}

Status PosixFileSystem::remove_file(const std::string& path) {
  if (::unlink(path.c_str()) != 0) return errno_status(path, "remove", errno);
  return {};
}

Status PosixFileSystem::remove_directory(const std::string& path) {
  if (::rmdir(path.c_str()) != 0) return errno_status(path, "remove directory", errno);
  return {};
}

Status PosixFileSystem::make_directory(const std::string& path) {
  if (::mkdir(path.c_str(), 0755) == 0) return {};
  const int error = errno;
  struct stat st = {};
  if (error == EEXIST && ::stat(path.c_str(), &st) == 0 && S_ISDIR(st.st_mode)) return {};
  return errno_status(path, "make directory", error);
}

Status PosixFileSystem::sync_directory(const std::string& path) {
  const Descriptor fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() < 0) return errno_status(path, "open directory", errno);
  if (::fsync(fd.get()) != 0) return errno_status(path, "fsync directory", errno);
  return {};
}

Result<std::vector<FileSystem::Entry>> PosixFileSystem::list(const std::string& path) const {
  std::vector<Entry> entries;
  std::error_code error;
  std::filesystem::directory_iterator it(path, error);
  if (error) return errno_status(path, "list directory", error.value());
  while (it != std::filesystem::directory_iterator()) {
    std::error_code ignored;  // an entry that vanishes meanwhile is listed as a file
    entries.push_back({it->path().filename().string(), it->is_directory(ignored)});
    it.increment(error);
    if (error) return errno_status(path, "list directory", error.value());
  }
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return a.name < b.name; });
  return entries;
}

Result<FileSystem::Info> PosixFileSystem::info(const std::string& path) const {
  struct stat st = {};
  if (::stat(path.c_str(), &st) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) return Info{};
    return errno_status(path, "stat", errno);
  }
  return Info{true, S_ISDIR(st.st_mode), static_cast<int64_t>(st.st_size)};
}

Result<std::string> PosixFileSystem::read(const std::string& path, int64_t max_bytes) const {
  const Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) {
    if (errno == ENOENT || errno == ENOTDIR) return invalid_argument(path + ": no such file");
    return errno_status(path, "open", errno);
  }
  struct stat st = {};
  if (::fstat(fd.get(), &st) != 0) return errno_status(path, "stat", errno);
  if (S_ISDIR(st.st_mode)) return invalid_argument(path + ": is a directory");
  std::string text;
  // The size is only a hint: files of the kernel and pipes report 0.
  size_t chunk = static_cast<size_t>(std::clamp<int64_t>(st.st_size + 1, 4096, max_bytes + 1));
  for (;;) {
    const size_t old = text.size();
    text.resize(old + chunk);
    SGA_ASSIGN(const size_t n,
               read_up_to(fd.get(), path, std::as_writable_bytes(std::span(text).subspan(old))));
    text.resize(old + n);
    if (static_cast<int64_t>(text.size()) > max_bytes)
      return invalid_argument(fmt::format("{}: longer than {} bytes", path, max_bytes));
    if (n < chunk) return text;
    chunk = std::max<size_t>(text.size(), 4096);
  }
}

Status PosixFileSystem::read_exact(const std::string& path, std::span<std::byte> out) const {
  const Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) {
    if (errno == ENOENT || errno == ENOTDIR) return corruption(path + ": no such file");
    return errno_status(path, "open", errno);
  }
  struct stat st = {};
  if (::fstat(fd.get(), &st) != 0) return errno_status(path, "stat", errno);
  if (static_cast<uint64_t>(st.st_size) != out.size())
    return corruption(
        fmt::format("{}: has {} bytes, {} expected", path, int64_t{st.st_size}, out.size()));
  SGA_ASSIGN(const size_t n, read_up_to(fd.get(), path, out));
  if (n != out.size())
    return corruption(fmt::format("{}: ended after {} of {} bytes", path, n, out.size()));
  return {};
}

std::string parent_directory(const std::string& path) {
  std::filesystem::path p = std::filesystem::path(path).lexically_normal();
  if (p.has_relative_path() && p.filename().empty()) p = p.parent_path();  // a trailing '/'
  if (p.filename() == "." || p.filename() == "..") return (p / "..").lexically_normal().string();
  const std::string parent = p.parent_path().string();
  return parent.empty() ? "." : parent;
}

std::string base_name(const std::string& path) {
  std::filesystem::path p(path);
  if (p.filename().empty()) p = p.parent_path();
  return p.filename().string();
}

Status make_directories(FileSystem& files, const std::string& path) {
  SGA_ASSIGN(const FileSystem::Info info, files.info(path));
  if (info.is_directory) return {};
  const std::string parent = parent_directory(path);
  if (parent != path && !path.empty()) SGA_TRY(make_directories(files, parent));
  SGA_TRY(files.make_directory(path));
  return files.sync_directory(parent);
}

Status replace_file(FileSystem& files, const std::string& path, std::string_view bytes) {
  const std::string temporary = path + ".tmp";
  const auto write = [&]() -> Status {
    SGA_ASSIGN(std::unique_ptr<WritableFile> file, files.create(temporary));
    SGA_TRY(file->append(std::as_bytes(std::span(bytes))));
    SGA_TRY(file->sync());
    SGA_TRY(file->close());
    return files.rename(temporary, path);
  };
  if (Status status = write(); !status.ok()) {
    // Best effort: the error that matters is the first one.
    static_cast<void>(files.remove_file(temporary));
    return status;
  }
  return files.sync_directory(parent_directory(path));
}

}  // namespace sgactor::transport
