#include "graph/compiler/profile.h"

#include "graph/base/hash.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <charconv>
#include <set>

namespace sgactor::graph {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kFormat = "sgactor-profile-1";
constexpr int64_t kMaxNs = int64_t{1} << 53;  // what a JSON number holds exactly

struct KindName {
  LaunchKind kind;
  std::string_view name;
};
constexpr KindName kKinds[] = {
    {LaunchKind::kAllReduce, "all_reduce"},
    {LaunchKind::kReduceScatter, "reduce_scatter"},
    {LaunchKind::kAllGather, "all_gather"},
    {LaunchKind::kBroadcast, "broadcast"},
    {LaunchKind::kAllToAll, "all_to_all"},
    {LaunchKind::kSend, "send"},
    {LaunchKind::kRecv, "recv"},
};

std::string_view kind_name(LaunchKind kind) {
  for (const KindName& k : kKinds) {
    if (k.kind == kind) return k.name;
  }
  return "subgraph";
}

double seconds_of(const Profile::Time& time) { return static_cast<double>(time.median_ns) * 1e-9; }

/// Takes a profile apart. The first thing that is wrong stays.
class Reader {
 public:
  Result<Profile> read(const Json& json) {
    Profile profile;
    if (!json.is_object() || text(json, "format") != kFormat) {
      return invalid_argument(fmt::format("expected \"format\": \"{}\"", kFormat));
    }
    profile.backend = text(json, "backend");
    profile.device = text(json, "device");
    for (const Json& entry : list(json, "subgraphs")) {
      const uint64_t hash = hash_of(entry);
      if (!profile.subgraphs.emplace(hash, time_of(entry)).second) fail("a subgraph comes twice");
    }
    for (const Json& entry : list(json, "collectives")) {
      const Profile::Collective key{kind_of(entry), number(entry, "bytes", 0, kMaxNs),
                                    static_cast<int32_t>(number(entry, "members", 1, 1 << 24))};
      if (!profile.collectives.emplace(key, time_of(entry)).second)
        fail("a collective comes twice");
    }
    if (!wrong_.empty()) return invalid_argument(wrong_);
    return profile;
  }

 private:
  void fail(const std::string& what) {
    if (wrong_.empty()) wrong_ = what;
  }
  const Json* find(const Json& in, const char* key) {
    if (!in.is_object()) {
      fail("expected an object");
      return nullptr;
    }
    const auto found = in.find(key);
    if (found != in.end()) return &*found;
    fail(fmt::format("\"{}\" is missing", key));
    return nullptr;
  }
  std::string text(const Json& in, const char* key) {
    const Json* value = find(in, key);
    if (value == nullptr) return "";
    if (value->is_string()) return value->get<std::string>();
    fail(fmt::format("\"{}\": expected a string", key));
    return "";
  }
  Json list(const Json& in, const char* key) {
    const Json* value = find(in, key);
    if (value == nullptr) return Json::array();
    if (value->is_array()) return *value;
    fail(fmt::format("\"{}\": expected a list", key));
    return Json::array();
  }
  int64_t number(const Json& in, const char* key, int64_t low, int64_t high) {
    const Json* value = find(in, key);
    if (value == nullptr) return low;
    if (value->is_number_unsigned() && value->get<uint64_t>() <= static_cast<uint64_t>(high)) {
      const auto n = value->get<int64_t>();
      if (n >= low) return n;
    }
    fail(fmt::format("\"{}\": expected a whole number in [{}, {}]", key, low, high));
    return low;
  }
  uint64_t hash_of(const Json& entry) {
    const std::string hex = text(entry, "structure");
    uint64_t hash = 0;
    const auto [end, error] = std::from_chars(hex.data(), hex.data() + hex.size(), hash, 16);
    if (hex.size() != 16 || error != std::errc() || end != hex.data() + hex.size())
      fail("\"structure\": expected 16 hexadecimal digits");
    return hash;
  }
  LaunchKind kind_of(const Json& entry) {
    const std::string name = text(entry, "kind");
    for (const KindName& k : kKinds) {
      if (k.name == name) return k.kind;
    }
    fail("\"kind\": expected the name of a collective");
    return LaunchKind::kAllReduce;
  }
  Profile::Time time_of(const Json& entry) {
    return {number(entry, "median_ns", 1, kMaxNs), number(entry, "count", 1, kMaxNs)};
  }

  std::string wrong_;
};

/// What scales a model so that its sum over the measured ones is theirs.
class Scale {
 public:
  void add(double measured, double model) {
    measured_ += measured;
    model_ += model;
  }
  [[nodiscard]] double value() const { return model_ > 0 ? measured_ / model_ : 1; }

 private:
  double measured_ = 0, model_ = 0;
};

}  // namespace

std::string write_profile(const Profile& profile) {
  Json out;
  out["format"] = kFormat;
  out["backend"] = profile.backend;
  out["device"] = profile.device;
  out["subgraphs"] = Json::array();
  for (const auto& [hash, time] : profile.subgraphs) {
    out["subgraphs"].push_back(
        {{"structure", hex64(hash)}, {"median_ns", time.median_ns}, {"count", time.count}});
  }
  out["collectives"] = Json::array();
  for (const auto& [key, time] : profile.collectives) {
    out["collectives"].push_back({{"kind", kind_name(key.kind)},
                                  {"bytes", key.bytes},
                                  {"members", key.members},
                                  {"median_ns", time.median_ns},
                                  {"count", time.count}});
  }
  return out.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<Profile> parse_profile(std::string_view text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return invalid_argument("is no whole JSON");
  return Reader().read(json);
}

Profile::Collective collective_key(const Plan& plan, const RankProgram& program,
                                   const Launch& launch) {
  const RankGroup& group = plan.groups[static_cast<size_t>(launch.communication.group)];
  auto members = static_cast<int32_t>(group.coordinates.size());
  if (members == 0) {
    members = group.axis == MeshAxis::kPp   ? plan.mesh.pp
              : group.axis == MeshAxis::kDp ? plan.mesh.dp
                                            : plan.mesh.tp;
  }
  return {launch.kind, communication_bytes(program, launch), members};
}

LaunchTimes::LaunchTimes(const Plan& plan, const Profile* profile, const ClusterSpec* cluster)
    : plan_(plan), profile_(profile), model_(plan, cluster) {
  time_subgraphs();
  if (profile_ != nullptr) {
    fit_lines();
    scale_communication();
  }
  count_communication();
}

void LaunchTimes::time_subgraphs() {
  std::vector<bool> measured(plan_.subgraphs.size(), false);
  Scale scale;
  for (size_t s = 0; s < plan_.subgraphs.size(); ++s) {
    const Subgraph& body = plan_.subgraphs[s];
    const double model = model_.subgraph_seconds(body);
    subgraphs_.push_back(model);
    if (profile_ == nullptr) continue;
    const auto found = profile_->subgraphs.find(body.structure_hash);
    if (found == profile_->subgraphs.end()) continue;
    measured[s] = true;
    ++num_measured_subgraphs_;
    subgraphs_[s] = seconds_of(found->second);
    scale.add(subgraphs_[s], model);
  }
  for (size_t s = 0; s < subgraphs_.size(); ++s) {
    if (!measured[s]) subgraphs_[s] *= scale.value();
  }
}

void LaunchTimes::count_communication() {
  std::set<Profile::Collective> seen;
  for (const RankProgram& program : plan_.programs) {
    for (const Launch& l : program.launches) {
      if (l.kind == LaunchKind::kSubgraph) continue;
      const Profile::Collective key = collective_key(plan_, program, l);
      if (!seen.insert(key).second) continue;
      ++num_communications_;
      if (profile_ != nullptr && profile_->collectives.contains(key))
        ++num_measured_communications_;
    }
  }
}

/// Of the profile's own sizes: the plan that it was recorded with may have cut its buckets
/// otherwise, and its times say of these what they say of those.
void LaunchTimes::scale_communication() {
  std::map<std::pair<LaunchKind, int32_t>, Scale> by_kind;
  Scale all;
  for (const auto& [key, time] : profile_->collectives) {
    const double model = model_.communication_seconds(key.kind, key.bytes, key.members);
    if (model <= 0) continue;
    by_kind[{key.kind, key.members}].add(seconds_of(time), model);
    all.add(seconds_of(time), model);
  }
  for (const auto& [kind, scale] : by_kind) scales_[kind] = scale.value();
  communication_scale_ = all.value();
}

/// Least squares of relative errors, so that small operations, which show the fixed part, count as
/// much as large ones. Neither part is below 0.
void LaunchTimes::fit_lines() {
  struct Sums {
    int64_t count = 0;
    double w = 0, x = 0, xx = 0, y = 0, xy = 0;  // weighted by 1 / y^2
  };
  std::map<std::pair<LaunchKind, int32_t>, Sums> all;
  for (const auto& [key, time] : profile_->collectives) {
    const double y = seconds_of(time);
    const auto x = static_cast<double>(key.bytes);
    if (y <= 0) continue;
    Sums& s = all[{key.kind, key.members}];
    ++s.count;
    s.w += 1 / (y * y);
    s.x += x / (y * y);
    s.xx += x * x / (y * y);
    s.y += 1 / y;
    s.xy += x / y;
  }
  for (const auto& [of, s] : all) {
    if (s.count < 2) continue;
    const double det = s.w * s.xx - s.x * s.x;
    Line line{(s.y * s.xx - s.x * s.xy) / det, (s.w * s.xy - s.x * s.y) / det};
    if (!(line.byte_s > 0)) line = {s.y / s.w, 0};
    if (line.fixed_s < 0) line = {0, s.xy / s.xx};
    lines_[of] = line;
  }
}

double LaunchTimes::seconds(const RankProgram& program, const Launch& launch) const {
  if (launch.kind == LaunchKind::kSubgraph) return subgraphs_[static_cast<size_t>(launch.subgraph)];
  if (profile_ != nullptr) {
    const Profile::Collective key = collective_key(plan_, program, launch);
    const auto found = profile_->collectives.find(key);
    if (found != profile_->collectives.end()) return seconds_of(found->second);
    const auto line = lines_.find({key.kind, key.members});
    if (line != lines_.end())
      return line->second.fixed_s + static_cast<double>(key.bytes) * line->second.byte_s;
    const auto scale = scales_.find({key.kind, key.members});
    if (scale != scales_.end())
      return scale->second * model_.communication_seconds(program, launch);
  }
  return communication_scale_ * model_.communication_seconds(program, launch);
}

std::string LaunchTimes::describe_subgraphs() const {
  return fmt::format("{} of {} subgraphs measured", num_measured_subgraphs_,
                     plan_.subgraphs.size());
}

std::string LaunchTimes::describe_communication() const {
  return fmt::format("{} of {} kinds of communication measured", num_measured_communications_,
                     num_communications_);
}

}  // namespace sgactor::graph
