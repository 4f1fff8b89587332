#include "apps/sgactor/profile_file.h"

#include "graph/base/hash.h"
#include "graph/base/log.h"
#include "transport/storage/run_files.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <zlib.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

namespace sgactor::apps {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr size_t kMaxTraceBytes = size_t{1} << 30;

Result<std::string> read_gzip(const std::string& path) {
  gzFile file = gzopen(path.c_str(), "rb");
  if (file == nullptr) return internal_error(path + ": cannot be opened");
  std::string text;
  std::vector<char> block(size_t{1} << 20);
  int n = 0;
  while ((n = gzread(file, block.data(), static_cast<unsigned>(block.size()))) > 0 &&
         text.size() <= kMaxTraceBytes) {
    text.append(block.data(), static_cast<size_t>(n));
  }
  const bool whole = gzclose(file) == Z_OK && n == 0;
  if (!whole) return corruption(path + ": is no whole trace");
  return text;
}

/// Rank of "rank 3 lane 0"; nothing for an actor's track, or a lane's while it validates.
std::optional<int32_t> rank_of_track(std::string_view name) {
  constexpr std::string_view kHead = "rank ";
  constexpr std::string_view kLane = " lane ";
  if (!name.starts_with(kHead)) return std::nullopt;
  const auto number = [](std::string_view text) -> std::optional<int32_t> {
    int32_t n = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
    if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
    return n;
  };
  const size_t lane = name.find(kLane);
  if (lane == std::string_view::npos || !number(name.substr(lane + kLane.size())))
    return std::nullopt;
  return number(name.substr(kHead.size(), lane - kHead.size()));
}

int64_t median(std::vector<int64_t>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return std::max<int64_t>(*middle, 1);
}

/// Gathers slices of several files.
class Slices {
 public:
  Slices(const graph::Plan& plan, bool warm)
      : plan_(plan), warm_(warm), launches_(plan.programs.size()) {
    for (size_t p = 0; p < plan.programs.size(); ++p) {
      for (const graph::Launch& l : plan.programs[p].launches) launches_[p][l.name] = &l;
    }
  }

  void add_file(const json& trace) {
    std::map<std::pair<int64_t, int64_t>, int32_t> ranks;  // by process and track
    for (const json& e : trace.at("traceEvents")) {
      if (e.value("ph", "") != "M" || e.value("name", "") != "thread_name") continue;
      const auto rank = rank_of_track(e.at("args").value("name", ""));
      if (rank) ranks[{e.value("pid", int64_t{-1}), e.value("tid", int64_t{-1})}] = *rank;
    }
    for (const json& e : trace.at("traceEvents")) {
      if (e.value("ph", "") != "X") continue;
      const auto at = ranks.find({e.value("pid", int64_t{-1}), e.value("tid", int64_t{-1})});
      if (at != ranks.end()) add(at->second, e);
    }
  }

  [[nodiscard]] graph::Profile profile() const {
    graph::Profile out;
    std::map<uint64_t, std::vector<int64_t>> subgraphs;
    for (const Slice& s : subgraphs_) {
      if (counts(s.step)) subgraphs[s.structure].push_back(s.ns);
    }
    for (auto& [hash, times] : subgraphs) {
      const auto count = static_cast<int64_t>(times.size());
      out.subgraphs[hash] = {median(times), count};
    }
    std::map<graph::Profile::Collective, std::vector<int64_t>> collectives;
    for (const auto& [event, flight] : flights_) {
      if (!counts(std::get<1>(event))) continue;
      for (const auto& key : flight.keys) collectives[key].push_back(flight.least_ns);
    }
    for (auto& [key, times] : collectives) {
      const auto count = static_cast<int64_t>(times.size());
      out.collectives[key] = {median(times), count};
    }
    return out;
  }

 private:
  struct Slice {
    uint64_t structure = 0;
    int64_t step = 0;
    int64_t ns = 0;
  };
  using Event = std::tuple<std::string, int64_t, int64_t>;  // launch or message, step, micro-batch
  /// What several ranks did together: it took as long as the one says that waited least.
  struct Flight {
    int64_t least_ns = std::numeric_limits<int64_t>::max();
    std::set<graph::Profile::Collective> keys;
  };

  void add(int32_t rank, const json& e) {
    if (rank < 0 || static_cast<size_t>(rank) >= plan_.ranks.size()) return;
    const auto p = static_cast<size_t>(plan_.ranks[static_cast<size_t>(rank)].program);
    const std::string name = e.value("name", "");
    const auto found = launches_[p].find(name);
    const double micros = e.value("dur", 0.0);
    if (found == launches_[p].end() || !(micros >= 0)) return;
    const graph::Launch& l = *found->second;
    const auto ns = static_cast<int64_t>(micros * 1e3);
    const json& args = e.at("args");
    const int64_t step = args.value("step", int64_t{0});
    first_ = std::min(first_, step);
    last_ = std::max(last_, step);
    if (l.kind == graph::LaunchKind::kSubgraph) {
      subgraphs_.push_back(
          {plan_.subgraphs[static_cast<size_t>(l.subgraph)].structure_hash, step, ns});
      return;
    }
    // The two ends of a message share its key; each counts it under its own kind.
    const bool message = l.kind == graph::LaunchKind::kSend || l.kind == graph::LaunchKind::kRecv;
    const Event event{message ? fmt::format("message {}", l.communication.key) : name, step,
                      args.value("micro_batch", int64_t{0})};
    Flight& flight = flights_[event];
    flight.least_ns = std::min(flight.least_ns, ns);
    flight.keys.insert(graph::collective_key(plan_, plan_.programs[p], l));
  }
  /// The first step meets cold caches and memory that nobody has touched.
  [[nodiscard]] bool counts(int64_t step) const {
    return warm_ || step > first_ || first_ == last_;
  }

  const graph::Plan& plan_;
  bool warm_;
  std::vector<std::map<std::string, const graph::Launch*>> launches_;  // by program
  std::vector<Slice> subgraphs_;
  std::map<Event, Flight> flights_;
  int64_t first_ = std::numeric_limits<int64_t>::max();
  int64_t last_ = 0;
};

/// "model, avx2, 2 threads, library" as "model, avx2, library".
std::string without_threads(const std::string& description) {
  for (const std::string_view unit : {" threads", " thread"}) {
    const size_t end = description.find(unit);
    if (end == std::string::npos) continue;
    const size_t begin = description.rfind(", ", end);
    if (begin == std::string::npos) continue;
    return description.substr(0, begin) + description.substr(end + unit.size());
  }
  return description;
}

Status add_trace(const std::string& path, Slices& slices) {
  SGA_ASSIGN(const std::string text, read_gzip(path));
  try {
    slices.add_file(json::parse(text));
  } catch (const json::exception&) {
    return corruption(path + ": is no trace");
  }
  return {};
}

}  // namespace

Result<LoadedProfile> load_profile(const JobSpec& job) {
  LoadedProfile loaded;
  if (job.profile.use.empty() || job.profile.foreign) return loaded;
  const std::string place = job.at("profile.use") + ": " + job.profile.use;
  const auto text = transport::read_file(job.profile.use);
  if (!text.ok()) return invalid_argument(job.at("profile.use") + ": " + text.status().message());
  auto profile = graph::parse_profile(*text);
  if (!profile.ok()) return profile.status().with_context(place);
  loaded.profile = std::make_shared<const graph::Profile>(std::move(*profile));
  loaded.content_hash = hash128(std::as_bytes(std::span(*text))).hex();
  return loaded;
}

void leave_out_foreign_profile(JobSpec& job, const kernels::DeviceInfo& device) {
  const auto loaded = load_profile(job);
  if (!loaded.ok() || loaded->profile == nullptr) return;
  const graph::Profile& p = *loaded->profile;
  if (p.backend == device.backend &&
      without_threads(p.device) == without_threads(device.description)) {
    return;
  }
  job.profile.foreign = true;
  log::warn("{}: {}: has times of {} ({}), and this is {} ({}): it is left out",
            job.at("profile.use"), job.profile.use, p.backend, p.device, device.backend,
            device.description);
}

Result<LoadedCluster> load_cluster(const JobSpec& job) {
  LoadedCluster loaded;
  if (job.compile.topology.empty()) return loaded;
  const auto text = transport::read_file(job.compile.topology);
  if (!text.ok())
    return invalid_argument(job.at("compile.topology") + ": " + text.status().message());
  auto cluster = graph::parse_cluster(*text);
  if (!cluster.ok()) {
    return cluster.status().with_context(job.at("compile.topology") + ": " + job.compile.topology);
  }
  loaded.cluster = std::make_shared<const graph::ClusterSpec>(std::move(*cluster));
  loaded.content_hash = hash128(std::as_bytes(std::span(*text))).hex();
  return loaded;
}

Result<graph::Profile> profile_of_run(const graph::Plan& plan, const RunDirectory& run,
                                      const kernels::DeviceInfo& device) {
  std::vector<std::string> files;
  std::error_code error;
  for (fs::directory_iterator it(run.path + "/trace", error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.starts_with("rank") && name.ends_with(".json.gz"))
      files.push_back(it->path().string());
  }
  std::sort(files.begin(), files.end());
  SGA_ASSIGN(graph::Profile profile, profile_of_traces(plan, files, /*warm=*/false));
  profile.backend = device.backend;
  profile.device = device.description;
  return profile;
}

Result<graph::Profile> profile_of_traces(const graph::Plan& plan,
                                         const std::vector<std::string>& files, bool warm) {
  Slices slices(plan, warm);
  for (const std::string& file : files) SGA_TRY(add_trace(file, slices));
  return slices.profile();
}

Status record_profile(const JobSpec& job, const graph::Plan& plan, const RunDirectory& run,
                      const kernels::DeviceInfo& device) {
  if (job.profile.record.empty()) return {};
  SGA_ASSIGN(graph::Profile profile, profile_of_run(plan, run, device));
  if (profile.subgraphs.empty())
    return internal_error(run.path + "/trace: holds no launch of this plan");
  const auto used = load_profile(job);
  if (used.ok() && used->profile != nullptr)
    profile.collectives.insert(used->profile->collectives.begin(),
                               used->profile->collectives.end());
  return transport::write_file_atomic(job.profile.record, graph::write_profile(profile));
}

}  // namespace sgactor::apps
