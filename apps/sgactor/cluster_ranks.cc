#include "apps/sgactor/cluster_ranks.h"

#include "graph/base/hash.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <numeric>
#include <span>
#include <tuple>

namespace sgactor::apps {

std::vector<std::vector<int32_t>> deal_ranks(const graph::Plan& plan, int32_t workers) {
  std::vector<int32_t> order(plan.ranks.size());
  std::iota(order.begin(), order.end(), 0);
  const auto key = [&](int32_t r) {
    const graph::RankPlacement& p = plan.ranks[static_cast<size_t>(r)];
    return std::tuple(p.dp, p.pp, p.tp);
  };
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return key(a) < key(b); });
  const auto num_workers = static_cast<size_t>(workers);
  std::vector<std::vector<int32_t>> out(num_workers);
  for (size_t i = 0; i < order.size(); ++i) {
    out[i * num_workers / order.size()].push_back(order[i]);
  }
  for (auto& ranks : out) std::sort(ranks.begin(), ranks.end());
  return out;
}

Result<std::map<int32_t, std::vector<int32_t>>> deal_by_kind(
    const std::vector<std::string>& kinds,
    const std::vector<std::pair<int32_t, std::string>>& workers) {
  struct Group {
    std::vector<int32_t> ranks, workers;
  };
  std::map<std::string, Group> groups;
  for (size_t r = 0; r < kinds.size(); ++r) {
    groups[kinds[r]].ranks.push_back(static_cast<int32_t>(r));
  }
  for (const auto& [index, kind] : workers) {
    if (const auto group = groups.find(kind); group != groups.end()) {
      group->second.workers.push_back(index);
    }
  }
  for (const auto& [index, kind] : workers) {
    if (!kind.empty()) continue;
    const auto load = [](const Group& g) {
      return static_cast<double>(g.ranks.size()) /
             (g.workers.empty() ? 1e-9 : static_cast<double>(g.workers.size()));
    };
    const auto most = std::max_element(
        groups.begin(), groups.end(),
        [&](const auto& a, const auto& b) { return load(a.second) < load(b.second); });
    most->second.workers.push_back(index);
  }
  std::map<int32_t, std::vector<int32_t>> out;
  for (const auto& [kind, group] : groups) {
    if (group.workers.empty()) {
      return unsupported(fmt::format("no worker computes by {}, as rank {} must", kind,
                                     fmt::join(group.ranks, ", ")));
    }
    const size_t num = std::min(group.workers.size(), group.ranks.size());
    for (size_t i = 0; i < group.ranks.size(); ++i) {
      out[group.workers[i * num / group.ranks.size()]].push_back(group.ranks[i]);
    }
  }
  return out;
}

int64_t state_bytes(const graph::Plan& plan, int32_t rank) {
  const auto program = static_cast<size_t>(plan.ranks[static_cast<size_t>(rank)].program);
  int64_t bytes = 0;
  for (const graph::Buffer& b : plan.programs[program].buffers) {
    const bool state =
        b.kind == graph::BufferKind::kParameter || b.kind == graph::BufferKind::kMoment;
    if (state) bytes += b.bytes;
  }
  return bytes;
}

std::string build_id(const std::string& program) {
  uint64_t hash = 0;
  const int fd = ::open(program.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat info = {};
  if (fd >= 0 && ::fstat(fd, &info) == 0 && info.st_size > 0) {
    const auto size = static_cast<size_t>(info.st_size);
    void* bytes = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (bytes != MAP_FAILED) {
      hash = hash64(std::span(static_cast<const std::byte*>(bytes), size));
      ::munmap(bytes, size);
    }
  }
  if (fd >= 0) ::close(fd);
  return fmt::format("{} ({})", SGA_VERSION, hex64(hash));
}

std::string program_file() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).string();
}

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "unknown";
  return name.data();
}

}  // namespace sgactor::apps
