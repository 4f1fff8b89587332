#include "actors/runtime/journal.h"

#include "graph/base/hash.h"
#include "transport/storage/run_files.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>

namespace sgactor::actors {
namespace {

class MemoryJournal final : public Journal {
 public:
  Status append(const CommitRecord& /*record*/) override { return {}; }
};

class FileJournal final : public Journal {
 public:
  FileJournal(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  ~FileJournal() override { ::close(fd_); }
  FileJournal(const FileJournal&) = delete;
  FileJournal& operator=(const FileJournal&) = delete;

  Status append(const CommitRecord& record) override {
    const off_t begin = ::lseek(fd_, 0, SEEK_END);
    if (begin < 0) return failed(errno);
    const Status written = write_line(format_commit(record));
    // The next record must not stand behind a part of this one.
    if (!written.ok() && ::ftruncate(fd_, begin) != 0) return failed(errno);
    return written;
  }

 private:
  [[nodiscard]] Status failed(int error) const {
    return internal_error(fmt::format("{}: {}", path_, std::strerror(error)));
  }
  Status write_line(const std::string& line) {
    size_t written = 0;
    while (written < line.size()) {
      const ssize_t n = ::write(fd_, line.data() + written, line.size() - written);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return failed(n < 0 ? errno : ENOSPC);
      written += static_cast<size_t>(n);
    }
    return ::fdatasync(fd_) == 0 ? Status() : failed(errno);
  }

  int fd_;
  std::string path_;
};

/// Reads "name=<number>" from the front of `text`, with the character behind it.
std::optional<int64_t> take_number(std::string_view& text, std::string_view name, char end) {
  if (text.substr(0, name.size()) != name) return std::nullopt;
  text.remove_prefix(name.size());
  int64_t value = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || value < 0) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(rest - text.data()));
  if (end != '\0') {
    if (text.empty() || text.front() != end) return std::nullopt;
    text.remove_prefix(1);
  }
  return value;
}

/// " losses=3f800000,-": one a rank.
bool take_losses(std::string_view text, CommitRecord& record) {
  constexpr std::string_view kName = " losses=";
  if (!text.starts_with(kName)) return false;
  text.remove_prefix(kName.size());
  while (true) {
    const size_t end = std::min(text.find(','), text.size());
    const std::string_view one = text.substr(0, end);
    uint32_t bits = 0;
    const auto [rest, error] = std::from_chars(one.data(), one.data() + one.size(), bits, 16);
    const bool none = one == "-";
    if (!none && (error != std::errc() || rest != one.data() + one.size())) return false;
    record.loss_bits.push_back(none ? -1 : int64_t{bits});
    if (end == text.size()) return record.loss_bits.size() == record.incarnations.size();
    text.remove_prefix(end + 1);
  }
}

std::optional<CommitRecord> parse_line(std::string_view line) {
  const size_t mark = line.rfind(" #");
  if (mark == std::string_view::npos) return std::nullopt;
  std::string_view body = line.substr(0, mark);
  if (line.substr(mark + 2) != hex64(hash64(body))) return std::nullopt;
  CommitRecord record;
  const auto step = take_number(body, "commit step=", ' ');
  if (!step) return std::nullopt;
  const auto generation = take_number(body, "generation=", ' ');
  if (!generation) return std::nullopt;
  record.step = *step;
  record.generation = *generation;
  std::string_view name = "incarnations=";
  do {
    const auto incarnation = take_number(body, name, '\0');
    if (!incarnation) return std::nullopt;
    record.incarnations.push_back(*incarnation);
    name = ",";
  } while (body.starts_with(','));
  if (!body.empty() && !take_losses(body, record)) return std::nullopt;
  return record;
}

}  // namespace

std::string format_commit(const CommitRecord& record) {
  std::string body = fmt::format("commit step={} generation={} incarnations={}", record.step,
                                 record.generation, fmt::join(record.incarnations, ","));
  for (size_t r = 0; r < record.loss_bits.size(); ++r) {
    body += r == 0 ? " losses=" : ",";
    body += record.loss_bits[r] < 0 ? "-" : fmt::format("{:08x}", record.loss_bits[r]);
  }
  return fmt::format("{} #{}\n", body, hex64(hash64(body)));
}

Result<std::vector<CommitRecord>> parse_journal(std::string_view text) {
  std::vector<CommitRecord> records;
  for (int64_t line = 1; !text.empty(); ++line) {
    const size_t end = text.find('\n');
    if (end == std::string_view::npos) return records;
    std::optional<CommitRecord> record = parse_line(text.substr(0, end));
    if (!record) return corruption(fmt::format("journal: line {} is altered", line));
    records.push_back(std::move(*record));
    text.remove_prefix(end + 1);
  }
  return records;
}

Result<std::unique_ptr<Journal>> open_journal(const std::string& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) return invalid_argument(fmt::format("{}: {}", path, std::strerror(errno)));
  auto journal = std::make_unique<FileJournal>(fd, path);
  // What a killed writer left of a record: the next one must not stand behind it.
  SGA_TRY(transport::cut_unfinished_line(path));
  return std::unique_ptr<Journal>(std::move(journal));
}

std::unique_ptr<Journal> create_memory_journal() { return std::make_unique<MemoryJournal>(); }

}  // namespace sgactor::actors
