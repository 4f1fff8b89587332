#include "kernels/cuda/matmul_table.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <random>
#include <string_view>
#include <system_error>

namespace sgactor::kernels::cuda {
namespace {

/// The row that holds a file's number.
const char* const kFileRow = "file";

/// A file opened for appending and locked against other processes until the end of the scope.
class LockedFile {
 public:
  explicit LockedFile(const std::string& name)
      : fd_(::open(name.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644)) {
    while (fd_ >= 0 && flock(fd_, LOCK_EX) != 0) {
      if (errno == EINTR) continue;
      ::close(fd_);
      fd_ = -1;
    }
  }
  LockedFile(const LockedFile&) = delete;
  LockedFile& operator=(const LockedFile&) = delete;
  ~LockedFile() {
    if (fd_ >= 0) ::close(fd_);
  }
  [[nodiscard]] bool ok() const { return fd_ >= 0; }
  /// Its whole lines; a part of one, left by a killed process or a full disk, is cut off.
  [[nodiscard]] std::string text() const {
    std::string all;
    char piece[4096];
    off_t at = 0;
    for (ssize_t n = 0; (n = pread(fd_, piece, sizeof piece, at)) > 0; at += n)
      all.append(piece, static_cast<size_t>(n));
    const size_t whole = all.rfind('\n') + 1;  // 0 if there is none
    if (whole < all.size() && ftruncate(fd_, static_cast<off_t>(whole)) == 0) all.resize(whole);
    return all;
  }
  [[nodiscard]] bool append(std::string_view line) const {
    const off_t begin = lseek(fd_, 0, SEEK_END);
    if (::write(fd_, line.data(), line.size()) == static_cast<ssize_t>(line.size())) return true;
    const int why = errno;
    static_cast<void>(ftruncate(fd_, begin) == 0);
    errno = why;
    return false;
  }

 private:
  int fd_ = -1;
};

}  // namespace

Status MatmulTable::read(const std::string& text) {
  std::string_view rest = text;
  for (int number = 1; !rest.empty(); ++number) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    const size_t first = line.find('|');
    const size_t second = first == std::string_view::npos ? first : line.find('|', first + 1);
    int place = -1;
    if (second != std::string_view::npos) {
      const char* end = line.data() + line.size();
      if (std::from_chars(line.data() + second + 1, end, place).ptr != end) place = -1;
    }
    if (place < 0) {
      return invalid_argument("line " + std::to_string(number) +
                              ": expected machine|product|place");
    }
    if (line.substr(0, first) == machine_)
      rows_.try_emplace(std::string(line.substr(first + 1, second - first - 1)), place);
  }
  return {};
}

Status MatmulTable::open(const std::string& file) {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::path(file).parent_path();
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  {
    const std::lock_guard lock(mutex_);
    file_ = file;
  }
  std::random_device random;
  const Status status = add(kFileRow, static_cast<int>(random() >> 1)).status();
  if (status.ok()) return {};
  const std::lock_guard lock(mutex_);
  file_.clear();
  rows_.clear();
  return status;
}

std::optional<int> MatmulTable::find(const std::string& product) const {
  const std::lock_guard lock(mutex_);
  const auto row = rows_.find(product);
  if (row == rows_.end()) return std::nullopt;
  return row->second;
}

Result<int> MatmulTable::add(const std::string& product, int place) {
  const std::lock_guard lock(mutex_);
  const LockedFile file(file_);
  if (!file.ok()) return invalid_argument("cannot write " + file_ + ": " + std::strerror(errno));
  // Another process may have measured meanwhile.
  SGA_TRY(read(file.text()).with_context(file_));
  const auto [row, is_new] = rows_.try_emplace(product, place);
  if (!is_new) return row->second;
  if (!file.append(machine_ + "|" + product + "|" + std::to_string(place) + "\n"))
    return invalid_argument("cannot write " + file_ + ": " + std::strerror(errno));
  return place;
}

std::string MatmulTable::fingerprint() const {
  const std::optional<int> number = find(kFileRow);
  return number ? "tuned-" + std::to_string(*number) : "default";
}

std::string default_matmul_file() {
  const char* const kName = "/sgactor/cuda-matmuls.txt";
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache == '/')
    return std::string(cache) + kName;
  if (const char* home = std::getenv("HOME"); home != nullptr && *home == '/')
    return std::string(home) + "/.cache" + kName;
  return "";
}

}  // namespace sgactor::kernels::cuda
