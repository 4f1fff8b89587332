#include "apps/sgactor/cluster_standing.h"

#include "actors/runtime/tls_identity.h"
#include "apps/sgactor/clock.h"
#include "graph/base/log.h"

#include <nlohmann/json.hpp>

#include <algorithm>

namespace sgactor::apps {
namespace {

using Json = nlohmann::ordered_json;

int digit_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

template <class T>
bool read(const Json& json, const char* key, T& out) {
  const auto it = json.find(key);
  if (it == json.end()) return false;
  try {
    it->get_to(out);
  } catch (const Json::exception&) {
    return false;
  }
  return true;
}

}  // namespace

bool join_again(actors::RemoteSession& session, std::string& address, const std::string& token,
                int64_t timeout_ms, const std::function<bool()>& give_up) {
  constexpr int64_t kRoundMs = 1000;
  const int64_t deadline = now_ms() + timeout_ms;
  while (now_ms() < deadline && !(give_up && give_up())) {
    std::vector<std::string> addresses;
    if (!address.empty()) addresses.push_back(address);
    if (const auto again = actors::read_token(token); again.ok()) {
      for (const std::string& other : again->addresses) {
        if (other != address) addresses.push_back(other);
      }
    }
    const int64_t round = std::min(kRoundMs, std::max<int64_t>(1, deadline - now_ms()));
    const auto found = session.join(addresses, round, give_up);
    if (found.ok()) {
      address = found->address;
      return true;
    }
    // Somebody else may have taken the port meanwhile: only a refusal is an answer.
    if (found.status().code() == Code::kInvalidArgument) {
      log::info("{}", found.status().message());
      return false;
    }
  }
  return false;
}

std::string to_hex(std::string_view bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    out += kDigits[byte >> 4];
    out += kDigits[byte & 15];
  }
  return out;
}

std::string from_hex(std::string_view digits) {
  std::string out;
  if (digits.size() % 2 != 0) return out;
  for (size_t i = 0; i < digits.size(); i += 2) {
    const int high = digit_value(digits[i]);
    const int low = digit_value(digits[i + 1]);
    if (high < 0 || low < 0) return {};
    out += static_cast<char>(high * 16 + low);
  }
  return out;
}

actors::wire::Opaque to_wire(const Terms& terms) {
  const Json json = {{"orphan_ms", terms.orphan_ms}, {"mirror", to_hex(terms.mirror)}};
  return {kTerms, json.dump()};
}

Result<Terms> parse_terms(std::string_view text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  Terms out;
  std::string mirror;
  if (!json.is_object() || !read(json, "orphan_ms", out.orphan_ms) ||
      !read(json, "mirror", mirror)) {
    return corruption("not the terms of a run");
  }
  out.mirror = from_hex(mirror);
  return out;
}

actors::wire::Opaque to_wire(const Standing& s) {
  const Json json = {{"worker", s.worker},     {"life", s.life},
                     {"node_pid", s.node_pid}, {"alive", s.alive},
                     {"ranks", s.ranks},       {"incarnations", s.incarnations},
                     {"runs", s.runs},         {"loaded_step", s.loaded_step},
                     {"begun", s.begun},       {"address", to_hex(s.address)},
                     {"failed", s.failed}};
  return {kStanding, json.dump()};
}

Result<Standing> parse_standing(std::string_view text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  Standing out;
  std::string address;
  const bool whole = json.is_object() && read(json, "worker", out.worker) &&
                     read(json, "life", out.life) && read(json, "node_pid", out.node_pid) &&
                     read(json, "alive", out.alive) && read(json, "ranks", out.ranks) &&
                     read(json, "incarnations", out.incarnations) && read(json, "runs", out.runs) &&
                     read(json, "loaded_step", out.loaded_step) && read(json, "begun", out.begun) &&
                     read(json, "address", address) && read(json, "failed", out.failed);
  if (!whole || out.ranks.size() != out.incarnations.size()) {
    return corruption("not the standing of a process");
  }
  out.address = from_hex(address);
  return out;
}

}  // namespace sgactor::apps
