#pragma once
#include "apps/sgactor/job_spec.h"
#include "graph/compiler/compile_cache.h"

#include <optional>
#include <string>

namespace CLI {
class App;
}

namespace sgactor::apps {

/// Plans on disk, a file each, by everything they depend on. A cache is a convenience: what cannot
/// be read or written is logged and done without. Files are written at once or not at all, so that
/// programs may share a directory; the oldest of more than kMaxPlans are removed.
class PlanCache {
 public:
  static constexpr int kMaxPlans = 64;

  /// No cache: finds and keeps nothing.
  PlanCache() = default;
  /// `target` names what compiled and for what: program, backend, device.
  PlanCache(std::string dir, std::string target)
      : dir_(std::move(dir)), target_(std::move(target)) {}

  [[nodiscard]] bool enabled() const { return !dir_.empty(); }
  /// The entry of a key, verified. A damaged file is logged as a warning and counts as missing.
  [[nodiscard]] std::optional<graph::CacheEntry> find(const std::string& key) const;
  void keep(const std::string& key, const graph::CacheEntry& entry) const;
  [[nodiscard]] std::string file(const std::string& key) const;

 private:
  [[nodiscard]] std::string whole_key(const std::string& key) const { return target_ + "\n" + key; }
  void remove_oldest() const;

  std::string dir_;
  std::string target_;
};

/// The part of the key that a job decides: the model in full and every job key that the compiler
/// may see. Keys that no plan depends on (data, log, seed …) are left out by name, so that a new
/// key counts until somebody says otherwise.
std::string plan_key(const JobSpec& job, const graph::LlamaConfig& config,
                     graph::StorageModel storage);

/// --cache-dir and --no-cache of a subcommand.
struct CacheOptions {
  std::string dir;  ///< empty: $XDG_CACHE_HOME/sgactor, else $HOME/.cache/sgactor, else none
  bool off = false;
};
void add_cache_options(CLI::App& app, CacheOptions& options);
/// The cache that the options ask for, for plans of this very program file on a device of this
/// backend and fingerprint (empty: none).
PlanCache open_plan_cache(const CacheOptions& options, const std::string& backend,
                          const std::string& fingerprint);

}  // namespace sgactor::apps
