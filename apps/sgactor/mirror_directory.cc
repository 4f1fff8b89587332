#include "apps/sgactor/mirror_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

namespace sgactor::apps {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kPrefix = "sgactor-";
constexpr int kMostTries = 64;

/// An open directory under a lock: LOCK_EX if nobody else has one, LOCK_SH beside others; -1: not
/// to be had.
int hold(const std::string& path, int lock) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return -1;
  struct stat held {};
  struct stat named {};
  // The name may have gone, or gone to another, between open and lock.
  if (::flock(fd, lock | LOCK_NB) == 0 && ::fstat(fd, &held) == 0 &&
      ::stat(path.c_str(), &named) == 0 && held.st_ino == named.st_ino &&
      held.st_uid == ::geteuid()) {
    return fd;
  }
  ::close(fd);
  return -1;
}

bool remove_if_free(const std::string& path) {
  const int fd = hold(path, LOCK_EX);
  if (fd < 0) return false;
  std::error_code error;
  fs::remove_all(path, error);
  ::close(fd);
  return !error;
}

}  // namespace

int remove_stale_mirrors(const std::string& root) {
  std::vector<std::string> found;
  std::error_code error;
  for (fs::directory_iterator it(root, error), end; !error && it != end; it.increment(error)) {
    if (it->path().filename().string().starts_with(kPrefix)) found.push_back(it->path().string());
  }
  int removed = 0;
  for (const std::string& path : found) {
    if (remove_if_free(path)) ++removed;
  }
  return removed;
}

Result<std::unique_ptr<MirrorDirectory>> MirrorDirectory::create(const std::string& root) {
  remove_stale_mirrors(root);
  std::unique_ptr<MirrorDirectory> out(new MirrorDirectory);
  int error = EEXIST;
  for (int i = 0; i < kMostTries; ++i) {
    const std::string path = fmt::format("{}/{}{}-{}", root, kPrefix, ::getpid(), i);
    if (::mkdir(path.c_str(), 0700) != 0) {
      error = errno;
      if (error != EEXIST) break;
      continue;
    }
    // Another process that starts now may have taken it for one left behind: the next name then.
    out->fd_ = hold(path, LOCK_SH);
    if (out->fd_ < 0) continue;
    out->path_ = path;
    return out;
  }
  return unsupported(
      fmt::format("{}: cannot make a directory for mirrors: {}", root, std::strerror(error)));
}

Result<std::unique_ptr<MirrorDirectory>> MirrorDirectory::adopt(const std::string& path) {
  std::unique_ptr<MirrorDirectory> out(new MirrorDirectory);
  out->fd_ = hold(path, LOCK_SH);
  if (out->fd_ < 0) return unsupported(path + ": is not there any more");
  out->path_ = path;
  return out;
}

void MirrorHold::take(const std::string& path) {
  release();
  path_ = path;
  fd_ = hold(path, LOCK_SH);
}

void MirrorHold::release() {
  if (fd_ < 0) return;
  ::close(std::exchange(fd_, -1));
  remove_if_free(path_);
}

MirrorHold::~MirrorHold() { release(); }

MirrorDirectory::~MirrorDirectory() {
  if (fd_ < 0) return;
  std::error_code error;
  fs::remove_all(path_, error);
  ::close(fd_);
}

}  // namespace sgactor::apps
