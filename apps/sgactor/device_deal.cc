#include "apps/sgactor/device_deal.h"

#include <fmt/format.h>

#include <algorithm>

namespace sgactor::apps {

bool is_exclusive(const std::string& device) {
  return device == "cuda" || device.starts_with("cuda:");
}

std::vector<std::string> devices_of_host(const std::string& text, int32_t num_visible) {
  if (text != "cuda" && text != "cuda:all") return {text};
  std::vector<std::string> out;
  for (int32_t i = 0; i < std::max(1, num_visible); ++i) out.push_back(fmt::format("cuda:{}", i));
  return out;
}

std::vector<std::string> deal_devices(const std::vector<std::string>& all, int64_t workers,
                                      int64_t first) {
  std::vector<std::string> out;
  for (int64_t w = 0; w < workers; ++w) {
    out.push_back(all[static_cast<size_t>(first + w) % all.size()]);
  }
  return out;
}

std::string sharing_note(const std::vector<std::string>& all, int64_t workers) {
  if (workers <= static_cast<int64_t>(all.size()) || !is_exclusive(all.front())) return "";
  if (all.size() == 1) return fmt::format("{} workers share device {}", workers, all.front());
  return fmt::format("{} workers share {} devices ({} to {})", workers, all.size(), all.front(),
                     all.back());
}

std::string least_taken(const std::vector<std::string>& all, const std::vector<std::string>& taken,
                        const std::set<std::string>& closed) {
  std::string best;
  std::ptrdiff_t fewest = 0;
  for (const std::string& device : all) {
    if (closed.contains(device)) continue;
    const auto on_it = std::count(taken.begin(), taken.end(), device);
    if (!best.empty() && on_it >= fewest) continue;
    best = device;
    fewest = on_it;
  }
  return best;
}

}  // namespace sgactor::apps
