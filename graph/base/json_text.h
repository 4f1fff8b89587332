#pragma once
#include <string>
#include <string_view>

namespace sgactor {

/// `text` as it stands between the quotes of a JSON string: quotes, backslashes and control
/// characters escaped; other bytes as they are.
std::string json_text(std::string_view text);

}  // namespace sgactor
