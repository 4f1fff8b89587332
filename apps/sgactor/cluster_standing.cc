#include "apps/sgactor/cluster_standing.h"

#include "actors/runtime/tls_identity.h"
#include "apps/sgactor/clock.h"
#include "apps/sgactor/json_field.h"
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
  if (!json.is_object() || !read_field(json, "orphan_ms", out.orphan_ms) ||
      !read_field(json, "mirror", mirror)) {
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
                     {"failed", s.failed},     {"devices", s.devices}};
  return {kStanding, json.dump()};
}

Result<Standing> parse_standing(std::string_view text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  Standing out;
  std::string address;
  const bool whole =
      json.is_object() && read_field(json, "worker", out.worker) &&
      read_field(json, "life", out.life) && read_field(json, "node_pid", out.node_pid) &&
      read_field(json, "alive", out.alive) && read_field(json, "ranks", out.ranks) &&
      read_field(json, "incarnations", out.incarnations) && read_field(json, "runs", out.runs) &&
      read_field(json, "loaded_step", out.loaded_step) && read_field(json, "begun", out.begun) &&
      read_field(json, "address", address) && read_field(json, "failed", out.failed) &&
      read_field(json, "devices", out.devices);
  if (!whole || out.ranks.size() != out.incarnations.size()) {
    return corruption("not the standing of a process");
  }
  out.address = from_hex(address);
  return out;
}

}  // namespace sgactor::apps
