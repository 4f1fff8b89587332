#pragma once
#include "graph/base/status.h"

#include <memory>
#include <string>

namespace sgactor::apps {

/// A directory for copies of a run's state in this host's memory: /dev/shm/sgactor-<pid>-<n>, mode
/// 0700, held by a shared flock for as long as this object lives and removed with it. Only one that
/// nobody holds is taken for left behind.
class MirrorDirectory {
 public:
  /// Removes those that processes of this user have left behind, then makes one below `root`.
  /// Errors: kUnsupported with errno's text.
  static Result<std::unique_ptr<MirrorDirectory>> create(const std::string& root = "/dev/shm");
  /// Takes over one whose maker has died. Errors: kUnsupported if it is not there any more.
  static Result<std::unique_ptr<MirrorDirectory>> adopt(const std::string& path);
  ~MirrorDirectory();
  MirrorDirectory(const MirrorDirectory&) = delete;
  MirrorDirectory& operator=(const MirrorDirectory&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  MirrorDirectory() = default;
  std::string path_;
  int fd_ = -1;
};

/// Holds a MirrorDirectory of another process, so that it stays if its maker dies. Removes it at
/// the end if nobody else holds it then.
class MirrorHold {
 public:
  MirrorHold() = default;
  ~MirrorHold();
  MirrorHold(const MirrorHold&) = delete;
  MirrorHold& operator=(const MirrorHold&) = delete;
  /// In place of what was held before. Nothing is held if there is no such directory.
  void take(const std::string& path);
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] bool held() const { return fd_ >= 0; }

 private:
  void release();
  std::string path_;
  int fd_ = -1;
};

/// Removes directories of `root` that MirrorDirectory made and whose process has ended. Returns how
/// many.
int remove_stale_mirrors(const std::string& root);

}  // namespace sgactor::apps
