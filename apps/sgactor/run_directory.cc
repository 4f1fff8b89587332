#include "apps/sgactor/run_directory.h"

#include "transport/storage/run_files.h"

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <utility>

namespace sgactor::apps {
namespace {

namespace fs = std::filesystem;

/// The step of a line, or -1 if it is no JSON object with an integer step.
int64_t step_of(const std::string& line) {
  const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return -1;
  const auto it = json.find("step");
  return it != json.end() && it->is_number_integer() ? it->get<int64_t>() : -1;
}

/// An open descriptor, closed at the end of its scope.
struct Descriptor {
  explicit Descriptor(int number) : fd(number) {}
  ~Descriptor() {
    if (fd >= 0) close(fd);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int fd;
};

Status lock_failed(const std::string& file) {
  return invalid_argument(file + ": cannot lock: " + std::strerror(errno));
}

Status in_use(const RunDirectory& run, int fd) {
  char text[24] = {};
  const ssize_t n = pread(fd, text, sizeof text - 1, 0);
  const std::string pid(text, std::strspn(text, "0123456789"));
  return invalid_argument(run.path + ": run directory is in use by " +
                          (n > 0 && !pid.empty() ? "pid " + pid : "another process"));
}

/// Whether `path` still names the open file: its last owner may have removed it.
bool still_named(int fd, const std::string& path) {
  struct stat open_file {};
  struct stat named {};
  return fstat(fd, &open_file) == 0 && stat(path.c_str(), &named) == 0 &&
         open_file.st_dev == named.st_dev && open_file.st_ino == named.st_ino;
}

/// Whether nothing is in the directory but, perhaps, a lock.
bool holds_nothing(const RunDirectory& run, std::error_code& error) {
  for (fs::directory_iterator it(run.path, error), end; !error && it != end; it.increment(error)) {
    if (it->path().filename() != "lock") return false;
  }
  return !error;
}

}  // namespace

std::string default_run_path(const std::string& name, int64_t unix_time) {
  const auto seconds = static_cast<std::time_t>(unix_time);
  std::tm local{};
  localtime_r(&seconds, &local);
  char stamp[32];
  std::strftime(stamp, sizeof stamp, "%Y%m%d-%H%M%S", &local);
  const std::string base = "runs/" + name + "-" + stamp;
  std::string path = base;
  std::error_code error;
  for (int i = 2; fs::exists(path, error); ++i) path = base + "-" + std::to_string(i);
  return path;
}

Status check_new_run(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) return {};
  if (!fs::is_directory(status))
    return invalid_argument("--run-dir " + path + ": expected a directory, there is a file");
  if (holds_nothing({path}, error)) return {};
  return invalid_argument("--run-dir " + path +
                          ": exists and is not empty; add --resume to go on with it, or name "
                          "another");
}

Status create_run(const RunDirectory& run) {
  for (const std::string& dir : {run.path, run.checkpoints(), run.path + "/trace"}) {
    std::error_code error;
    fs::create_directories(dir, error);
    if (error) return invalid_argument("--run-dir " + dir + ": cannot create: " + error.message());
  }
  return {};
}

Result<int64_t> truncate_steps(const std::string& file, int64_t last_step) {
  std::ifstream in(file, std::ios::binary);
  if (!in) return int64_t{0};
  std::string kept;
  int64_t dropped = 0;
  int64_t number = 0;
  std::string bad;  // a line that is no record; fine only as the last one
  for (std::string line; std::getline(in, line);) {
    ++number;
    if (!bad.empty()) return corruption(bad);
    const bool finished = !in.eof();  // a line that was cut has no newline
    const int64_t step = finished ? step_of(line) : -1;
    if (step < 0)
      bad = file + ":" + std::to_string(number) + ": expected a JSON object with a step";
    if (step < 0 || step > last_step) {
      ++dropped;
    } else {
      kept += line + "\n";
    }
  }
  in.close();
  if (dropped > 0) SGA_TRY(transport::write_file_atomic(file, kept));
  return dropped;
}

RunLock::~RunLock() {
  if (fd_ < 0) return;
  unlink(file_.c_str());  // before the lock goes: the next owner's file must stay
  close(fd_);
}

Status RunLock::take(const RunDirectory& run) {
  file_ = run.lock();
  for (;;) {
    Descriptor file(open(file_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644));
    if (file.fd < 0) return lock_failed(file_);
    if (flock(file.fd, LOCK_EX | LOCK_NB) != 0)
      return errno == EWOULDBLOCK ? in_use(run, file.fd) : lock_failed(file_);
    if (!still_named(file.fd, file_)) continue;
    const std::string pid = std::to_string(getpid()) + "\n";
    if (ftruncate(file.fd, 0) != 0 ||
        pwrite(file.fd, pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size()))
      return lock_failed(file_);
    fd_ = std::exchange(file.fd, -1);
    return {};
  }
}

Status check_not_in_use(const RunDirectory& run) {
  const Descriptor file(open(run.lock().c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (file.fd < 0 || flock(file.fd, LOCK_SH | LOCK_NB) == 0 || errno != EWOULDBLOCK) return {};
  return in_use(run, file.fd);
}

Status claim_new_run(const RunDirectory& run, RunLock& lock) {
  std::error_code error;
  fs::create_directories(run.path, error);
  if (error)
    return invalid_argument("--run-dir " + run.path + ": cannot create: " + error.message());
  SGA_TRY(lock.take(run));
  return check_new_run(run.path);
}

}  // namespace sgactor::apps
