#pragma once
#include <nlohmann/json.hpp>

namespace sgactor::apps {

/// Reads a member of an object that came from another process. False, with `out` as it was or of
/// no value: there is none, or it is of another type.
template <class T>
bool read_field(const nlohmann::json& json, const char* key, T& out) {
  const auto it = json.find(key);
  if (it == json.end()) return false;
  try {
    it->get_to(out);
  } catch (const nlohmann::json::exception&) {
    return false;
  }
  return true;
}

}  // namespace sgactor::apps
