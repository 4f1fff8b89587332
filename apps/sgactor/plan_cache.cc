#include "apps/sgactor/plan_cache.h"

#include "actors/strategy/chosen_strategy.h"
#include "apps/sgactor/job_keys.h"
#include "graph/base/hash.h"
#include "graph/base/log.h"
#include "transport/storage/run_files.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <utility>
#include <vector>

namespace sgactor::apps {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxPlanBytes = int64_t{1} << 30;
constexpr std::string_view kSuffix = ".sgaplan";

constexpr std::string_view kSectionsWithoutPlan[] = {"data", "resilience", "checkpoint",
                                                     "log",  "profile",    "plugins"};
// training.steps counts as the end of the learning rate's decay, which is in the key.
constexpr std::string_view kKeysWithoutPlan[] = {"model.preset",
                                                 "model.hf",
                                                 "model.weights",
                                                 "training.micro_batch_start",
                                                 "training.steps",
                                                 "training.seed",
                                                 "training.validation_interval",
                                                 "optimizer.decay_steps",
                                                 "training.validation_batches"};

template <class List>
bool contains(const List& list, std::string_view name) {
  return std::find(std::begin(list), std::end(list), name) != std::end(list);
}

/// Version and content of this program's file; empty if it cannot be read: two builds of one
/// version may plan differently.
std::string program_identity() {
  const auto bytes = transport::read_file("/proc/self/exe", kMaxPlanBytes);
  if (!bytes.ok()) return "";
  return std::string(SGA_VERSION) + " " + hash128(std::as_bytes(std::span(*bytes))).hex();
}

std::string default_dir() {
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache == '/')
    return std::string(cache) + "/sgactor";
  if (const char* home = std::getenv("HOME"); home != nullptr && *home == '/')
    return std::string(home) + "/.cache/sgactor";
  return "";
}

}  // namespace

std::string PlanCache::file(const std::string& key) const {
  return dir_ + "/" + graph::cache_file_name(whole_key(key));
}

std::optional<graph::CacheEntry> PlanCache::find(const std::string& key) const {
  if (!enabled()) return std::nullopt;
  const std::string path = file(key);
  std::error_code error;
  if (!fs::exists(path, error)) return std::nullopt;
  const auto bytes = transport::read_file(path, kMaxPlanBytes);
  auto entry = bytes.ok() ? graph::decode_cache_entry(*bytes, whole_key(key))
                          : Result<graph::CacheEntry>(bytes.status());
  if (!entry.ok()) {
    log::warn("compile cache: {}: {}; compiling again", path, entry.status().message());
    return std::nullopt;
  }
  log::debug("compile cache: plan read from {}", path);
  return std::move(*entry);
}

void PlanCache::keep(const std::string& key, const graph::CacheEntry& entry) const {
  if (!enabled()) return;
  Status s = transport::make_dirs(dir_);
  if (s.ok()) {
    s = transport::write_file_atomic(file(key), graph::encode_cache_entry(whole_key(key), entry));
  }
  if (!s.ok()) {
    log::info("compile cache: not kept: {}", s.message());
    return;
  }
  remove_oldest();
}

void PlanCache::remove_oldest() const {
  std::vector<std::pair<fs::file_time_type, fs::path>> plans;
  std::error_code error;
  for (fs::directory_iterator it(dir_, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() != kSuffix) continue;
    std::error_code gone;  // another program may remove it first
    const auto time = fs::last_write_time(it->path(), gone);
    if (!gone) plans.emplace_back(time, it->path());
  }
  std::sort(plans.begin(), plans.end());
  for (size_t i = 0; i + kMaxPlans < plans.size(); ++i) fs::remove(plans[i].second, error);
}

std::string plan_key(const JobSpec& job, const graph::LlamaConfig& config,
                     graph::StorageModel storage) {
  std::string key = "storage " + std::string(graph::to_string(storage)) + "\ndecay_end " +
                    std::to_string(job.decay_end()) + "\n";
  JobSpec sized = job;
  sized.training.auto_micro_batch = false;  // the plan has one size, whoever chose it
  for (const JobKey& k : job_keys()) {
    if (contains(kSectionsWithoutPlan, k.section) || contains(kKeysWithoutPlan, k.full_name()))
      continue;
    key += k.full_name() + " = " + value_as_toml(k, sized) + "\n";
  }
  if (job.strategy_in_use) {
    // A plug-in may change under its name.
    for (const graph::ParameterRule& r : job.strategy_in_use->parameter_rules())
      key += fmt::format("rule {} {} {} {}\n", r.pattern, r.dim, r.num_units, r.unit);
  }
  return key + graph::to_hf_config(config);
}

void add_cache_options(CLI::App& app, CacheOptions& options) {
  app.add_option("--cache-dir", options.dir,
                 "directory of compiled plans; default: $XDG_CACHE_HOME/sgactor");
  app.add_flag("--no-cache", options.off, "compile anew, keep nothing");
}

PlanCache open_plan_cache(const CacheOptions& options, const std::string& backend,
                          const std::string& fingerprint) {
  const std::string dir = options.dir.empty() ? default_dir() : options.dir;
  if (options.off || dir.empty()) return {};
  const std::string program = program_identity();
  if (program.empty()) return {};
  return {dir, "program " + program + "\nbackend " + backend + "\ndevice " + fingerprint};
}

}  // namespace sgactor::apps
