#include "kernels/cuda/matmul_table.h"

#include "graph/base/hash.h"
#include "graph/base/log.h"

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

/// A file opened for appending, or else for reading, and locked against other processes until the
/// end of the scope.
class LockedFile {
 public:
  explicit LockedFile(const std::string& name)
      : fd_(::open(name.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644)) {
    if (fd_ < 0) {
      why_ = errno;
      fd_ = ::open(name.c_str(), O_RDONLY | O_CLOEXEC);
    }
    // Without a lock it is still read: of a row that is just being written the part is left out.
    while (fd_ >= 0 && flock(fd_, can_write() ? LOCK_EX : LOCK_SH) != 0) {
      if (errno == EINTR) continue;
      if (can_write()) why_ = errno;
      break;
    }
  }
  LockedFile(const LockedFile&) = delete;
  LockedFile& operator=(const LockedFile&) = delete;
  ~LockedFile() {
    if (fd_ >= 0) ::close(fd_);
  }
  [[nodiscard]] bool can_write() const { return why_ == 0; }
  /// Why it cannot be written.
  [[nodiscard]] const char* why() const { return std::strerror(why_); }
  /// Reads its whole lines; a part of one, left by a killed process or a full disk, is cut off.
  /// False if it cannot be read.
  [[nodiscard]] bool read(std::string& all) {
    if (fd_ < 0) return false;
    char piece[4096];
    off_t at = 0;
    ssize_t n = 0;
    for (; (n = pread(fd_, piece, sizeof piece, at)) > 0; at += n)
      all.append(piece, static_cast<size_t>(n));
    if (n < 0) {
      why_ = errno;
      return false;
    }
    const size_t whole = all.rfind('\n') + 1;  // 0 if there is none
    if (whole < all.size() && can_write() && ftruncate(fd_, static_cast<off_t>(whole)) != 0)
      why_ = errno;
    all.resize(whole);
    return true;
  }
  /// All of the line or nothing. Pre: can_write().
  [[nodiscard]] bool append(std::string_view line) {
    const off_t begin = lseek(fd_, 0, SEEK_END);
    errno = ENOSPC;  // what a part that was written leaves open
    if (::write(fd_, line.data(), line.size()) == static_cast<ssize_t>(line.size())) return true;
    why_ = errno;
    static_cast<void>(ftruncate(fd_, begin) == 0);
    return false;
  }

 private:
  int fd_ = -1;
  int why_ = 0;
};

std::string row(const std::string& machine, const std::string& product, int place) {
  return machine + "|" + product + "|" + std::to_string(place) + "\n";
}

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
  const std::lock_guard lock(mutex_);
  file_ = file;
  const Status loaded = load();
  if (loaded.ok()) return {};
  file_.clear();
  rows_.clear();
  if (file == default_matmul_file()) log::warn("products are not measured: {}", loaded.message());
  return loaded;
}

Status MatmulTable::load() {
  LockedFile file(file_);
  std::string text;
  if (!file.read(text)) return invalid_argument("cannot open " + file_ + ": " + file.why());
  SGA_TRY(read(text).with_context(file_));
  writes_ = true;
  if (file.can_write()) {
    if (rows_.contains(kFileRow)) return {};
    std::random_device random;
    const auto number = static_cast<int>(random() >> 1);
    if (file.append(row(machine_, kFileRow, number))) {
      rows_.emplace(kFileRow, number);
      return {};
    }
  }
  stop_writing(invalid_argument("cannot write " + file_ + ": " + file.why()));
  std::string all;
  for (const auto& [product, place] : rows_) all += row(machine_, product, place);
  fixed_ = all.empty() ? "default" : "tuned-rows-" + std::to_string(hash64(all));
  return {};
}

bool MatmulTable::measures() const {
  const std::lock_guard lock(mutex_);
  return writes_;
}

std::optional<int> MatmulTable::find(const std::string& product) const {
  const std::lock_guard lock(mutex_);
  const auto row = rows_.find(product);
  if (row == rows_.end()) return std::nullopt;
  return row->second;
}

Result<int> MatmulTable::add(const std::string& product, int place) {
  const std::lock_guard lock(mutex_);
  if (writes_) {
    if (const Status kept = keep(product, place); !kept.ok()) stop_writing(kept);
  }
  return rows_.try_emplace(product, 0).first->second;
}

Status MatmulTable::keep(const std::string& product, int place) {
  LockedFile file(file_);
  std::string text;
  if (!file.read(text)) return invalid_argument("cannot open " + file_ + ": " + file.why());
  // Another process may have measured meanwhile.
  SGA_TRY(read(text).with_context(file_));
  if (rows_.contains(product)) return {};
  if (!file.can_write() || !file.append(row(machine_, product, place)))
    return invalid_argument("cannot write " + file_ + ": " + file.why());
  rows_.emplace(product, place);
  return {};
}

void MatmulTable::stop_writing(const Status& why) {
  writes_ = false;
  log::warn("{}; products without a row there use the library's first choice", why.message());
}

std::string MatmulTable::fingerprint() const {
  const std::lock_guard lock(mutex_);
  if (!fixed_.empty()) return fixed_;
  const auto number = rows_.find(kFileRow);
  return number != rows_.end() ? "tuned-" + std::to_string(number->second) : "default";
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
