#pragma once
#include "graph/base/status.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace sgactor::graph {

/// [A-Za-z_][A-Za-z0-9_]*: printed without quotes.
bool is_identifier(std::string_view text);

struct Token {
  enum class Kind : uint8_t {
    kEnd,
    kIdentifier,
    kValue,   ///< %name; text is the name
    kNumber,  ///< also -inf
    kString,  ///< `unescaped` holds the bytes
    kPunct,   ///< one of { } ( ) [ ] , = : @
  } kind = Kind::kEnd;
  std::string_view text;  ///< within the source
  std::string unescaped;
  size_t offset = 0;
};

/// Splits the readable form into tokens; '#' starts a comment. Keeps a view of the source. Errors
/// say line and column.
class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {}

  /// Reads the next token into `token`. Errors: kInvalidArgument; then the lexer is not used
  /// further.
  Status next(Token& token);
  /// kInvalidArgument "line 3, column 9: message". Linear in the offset.
  [[nodiscard]] Status error_at(size_t offset, std::string_view message) const;

 private:
  void skip_blanks();
  Status read_string(Token& token);
  Status read_escape(std::string& bytes);

  std::string_view source_;
  size_t at_ = 0;
};

}  // namespace sgactor::graph
