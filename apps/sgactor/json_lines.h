#pragma once
#include <nlohmann/json.hpp>

#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

namespace sgactor::apps {

/// The objects of a JSON-lines file, or of its last `tail_bytes` (0: all of it), in whose lines
/// `with` stands. What is no object, and a line that is not finished, is left out; a missing file
/// has none.
inline std::vector<nlohmann::ordered_json> read_json_lines(const std::string& file,
                                                           int64_t tail_bytes = 0,
                                                           std::string_view with = {}) {
  std::vector<nlohmann::ordered_json> out;
  std::ifstream in(file, std::ios::binary | std::ios::ate);
  if (!in) return out;
  const auto size = static_cast<int64_t>(in.tellg());
  const int64_t from = tail_bytes > 0 && size > tail_bytes ? size - tail_bytes : 0;
  in.seekg(from);
  std::string line;
  if (from > 0) std::getline(in, line);  // begins somewhere within one
  while (std::getline(in, line)) {
    if (in.eof()) break;  // without a newline: not finished
    if (line.find(with) == std::string::npos) continue;
    auto json = nlohmann::ordered_json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (json.is_object()) out.push_back(std::move(json));
  }
  return out;
}

/// A member of an object, or `otherwise` where there is none of that type.
template <class T>
T field_or(const nlohmann::ordered_json& json, const char* key, T otherwise) {
  const auto it = json.find(key);
  if (it == json.end()) return otherwise;
  try {
    return it->get<T>();
  } catch (const nlohmann::json::exception&) {
    return otherwise;
  }
}

}  // namespace sgactor::apps
