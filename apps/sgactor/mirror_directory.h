#pragma once
#include "graph/base/status.h"

#include <memory>
#include <string>

namespace sgactor::apps {

/// A directory for copies of a run's state in this host's memory: /dev/shm/sgactor-<pid>-<n>, mode
/// 0700, held by an exclusive flock for as long as this object lives and removed with it.
class MirrorDirectory {
 public:
  /// Removes those that processes of this user have left behind, then makes one below `root`.
  /// Errors: kUnsupported with errno's text.
  static Result<std::unique_ptr<MirrorDirectory>> create(const std::string& root = "/dev/shm");
  ~MirrorDirectory();
  MirrorDirectory(const MirrorDirectory&) = delete;
  MirrorDirectory& operator=(const MirrorDirectory&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  MirrorDirectory() = default;
  std::string path_;
  int fd_ = -1;
};

/// Removes directories of `root` that MirrorDirectory made and whose process has ended. Returns how
/// many.
int remove_stale_mirrors(const std::string& root);

}  // namespace sgactor::apps
