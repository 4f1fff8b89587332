#pragma once
#include <optional>
#include <string_view>
#include <vector>

namespace sgactor::transport {

/// How byte-level BPE cuts text into pieces that are then encoded one by one. Each is a regular
/// expression of a published tokenizer, matched by hand (pretokenizer.cc shows them).
enum class SplitPattern { kGpt2, kLlama3, kQwen2 };

/// The pattern whose regular expression this is, letter by letter as in a tokenizer.json.
std::optional<SplitPattern> find_split_pattern(std::string_view regex);

/// Appends the pieces of `text` in order; together they are `text`. Bytes that are not UTF-8 count
/// as symbols. Linear in time.
void split_by_pattern(SplitPattern pattern, std::string_view text,
                      std::vector<std::string_view>& pieces);

/// Cuts numbers (\p{N}) from the rest: each digit by itself, or each run.
void split_digits(bool individual, std::string_view text, std::vector<std::string_view>& pieces);

}  // namespace sgactor::transport
