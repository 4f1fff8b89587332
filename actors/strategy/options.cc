#include "actors/strategy/options.h"

#include <algorithm>
#include <charconv>
#include <sstream>

namespace sgactor::actors {
namespace {

template <class T>
bool parse_whole(const std::string& text, T* out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return error == std::errc() && end == text.data() + text.size();
}

template <class T>
Result<T> within(std::string_view name, const std::string& text, T low, T high, const char* kind) {
  T value{};
  // Written so that NaN is refused too.
  if (parse_whole(text, &value) && value >= low && value <= high) return value;
  std::ostringstream message;
  message << "option " << name << ": expected " << kind << " from " << low << " to " << high
          << ", got \"" << text << "\"";
  return invalid_argument(message.str());
}

}  // namespace

Result<StrategyOptions> StrategyOptions::parse(std::span<const std::string> texts) {
  StrategyOptions out;
  for (const std::string& text : texts) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0) {
      return invalid_argument("expected \"name=value\", got \"" + text + "\"");
    }
    if (!out.values_.emplace(text.substr(0, equals), text.substr(equals + 1)).second) {
      return invalid_argument("option " + text.substr(0, equals) + " is given twice");
    }
  }
  return out;
}

Result<double> StrategyOptions::number(std::string_view name, double fallback, double low,
                                       double high) const {
  const auto it = values_.find(name);
  if (it == values_.end()) return fallback;
  return within(name, it->second, low, high, "a number");
}

Result<int64_t> StrategyOptions::integer(std::string_view name, int64_t fallback, int64_t low,
                                         int64_t high) const {
  const auto it = values_.find(name);
  if (it == values_.end()) return fallback;
  return within(name, it->second, low, high, "an integer");
}

std::string StrategyOptions::text(std::string_view name, std::string_view fallback) const {
  const auto it = values_.find(name);
  return it == values_.end() ? std::string(fallback) : it->second;
}

Status StrategyOptions::check_known(const std::vector<std::string_view>& known) const {
  for (const auto& [name, value] : values_) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    std::string list;
    for (const std::string_view k : known) {
      list += list.empty() ? "" : ", ";
      list += k;
    }
    return invalid_argument("unknown option " + name + "; expected " +
                            (list.empty() ? "none" : "one of " + list));
  }
  return {};
}

}  // namespace sgactor::actors
