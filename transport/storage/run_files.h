#pragma once
#include "graph/base/status.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace sgactor::transport {

/// Small files of a run directory, on the machine's own disk. All calls finish their work before
/// they return. Errors: kInternal "PATH: OPERATION: TEXT OF ERRNO" unless said otherwise.

/// Puts `text` at `path` durably and at once: readers and a crash see the old file or the new one,
/// never a part. One writer of a path at a time.
Status write_file_atomic(const std::string& path, std::string_view text);

/// Whole content. Errors: kInvalidArgument if there is no such file, if it is a directory, or if it
/// is longer than `max_bytes`.
Result<std::string> read_file(const std::string& path, int64_t max_bytes = int64_t{1} << 30);

/// Appends `line` and a newline in one write; makes the file if there is none. With `durable` the
/// line survives a power cut when the call returns.
Status append_line(const std::string& path, std::string_view line, bool durable = false);

/// Cuts what stands behind the last newline of an append-only file: a line that a crash left
/// unfinished would be glued to the next. A missing file is fine.
Status cut_unfinished_line(const std::string& path);

/// Makes a directory and the parents it lacks. Ok if it is there.
Status make_dirs(const std::string& path);

}  // namespace sgactor::transport
