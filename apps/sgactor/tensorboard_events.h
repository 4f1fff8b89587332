#pragma once
#include "graph/base/status.h"

#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sgactor::apps {

/// CRC-32C (Castagnoli) of `bytes`, as RFC 3720 has it.
uint32_t crc32c(std::string_view bytes);

/// A file of scalars that TensorBoard reads: records of length, masked CRC-32C and bytes
/// (TensorFlow's TFRecord), each an Event message of protocol buffers
/// (tensorflow/core/util/event.proto). One thread.
class TensorBoardEvents {
 public:
  using Scalars = std::vector<std::pair<std::string, double>>;  ///< tag, value

  /// Makes `directory` and a new file in it; what the directory's older files have of `first_step`
  /// and later is taken back, which is how TensorBoard follows a resume. Errors: kInternal with
  /// errno's text.
  Status open(const std::string& directory, int64_t first_step);
  /// What is not finite is left out. Flushed. Errors: as open(); a call before it does nothing.
  Status add(int64_t step, const Scalars& scalars);
  /// Of the open file.
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  Status write(std::string_view event);

  std::string path_;
  std::ofstream out_;
};

}  // namespace sgactor::apps
