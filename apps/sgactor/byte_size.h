#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

namespace sgactor::apps {

/// Bytes of a text as people write them: "1073741824", "1.5 GiB", "512MiB", "24 GB"; units B, KB,
/// MB, GB, TB (powers of 1000) and KiB, MiB, GiB, TiB (of 1024), rounded down to a whole number.
/// Nothing if it is no such text, or not above 0, or beyond 2^62.
std::optional<int64_t> parse_byte_size(std::string_view text);

}  // namespace sgactor::apps
