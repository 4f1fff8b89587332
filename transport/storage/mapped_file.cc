#include "transport/storage/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace sgactor::transport {

Result<std::shared_ptr<const MappedFile>> MappedFile::open(const std::string& path) {
  const auto failed = [&](const char* operation) {
    return invalid_argument(
        fmt::format("{}: {}: {}", path, operation, std::generic_category().message(errno)));
  };
  // O_NONBLOCK: a pipe by that name must be refused below, not waited for.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return failed("open");
  struct stat st = {};
  if (::fstat(fd, &st) != 0) {
    const Status status = failed("stat");
    ::close(fd);
    return status;
  }
  if (!S_ISREG(st.st_mode)) {
    ::close(fd);
    return invalid_argument(path + ": is not a regular file");
  }
  std::span<const std::byte> bytes;
  if (st.st_size > 0) {
    void* const p = ::mmap(nullptr, static_cast<size_t>(st.st_size), PROT_READ, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) {
      const Status status = failed("map");
      ::close(fd);
      return status;
    }
    bytes = {static_cast<const std::byte*>(p), static_cast<size_t>(st.st_size)};
  }
  ::close(fd);  // the mapping stays
  return std::shared_ptr<const MappedFile>(new MappedFile(path, bytes));
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace sgactor::transport
