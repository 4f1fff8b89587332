#pragma once
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace sgactor::apps {

/// Which device each worker of a node runs on. Devices are written as `--devices` takes them. All
/// of this is pure.

/// A host's name and one of its devices. Every process of a host is taken to mean the same device
/// by the same name: where CUDA_VISIBLE_DEVICES differs among them, one that is sound may be taken
/// for one that is not.
using HostDevice = std::pair<std::string, std::string>;

/// Whether workers are slower, or find no memory, where they share it: "cuda", "cuda:2".
bool is_exclusive(const std::string& device);
/// What `--devices text` stands for on a host where CUDA shows `num_visible` devices: "cuda" and
/// "cuda:all" are each of them ("cuda:0", "cuda:1" …, at least one), all else is itself. Never
/// empty.
std::vector<std::string> devices_of_host(const std::string& text, int32_t num_visible);
/// One of `all` for each of `workers` workers, in the order of their indices: round robin, where
/// the first worker is the host's `first`-th.
std::vector<std::string> deal_devices(const std::vector<std::string>& all, int64_t workers,
                                      int64_t first);
/// A line that says that some of so many workers share a device of which each wants one of its
/// own; "" if none does.
std::string sharing_note(const std::vector<std::string>& all, int64_t workers);
/// For one worker more: the one of `all` that the fewest of `taken` are on, the first of equals;
/// "" if all are in `closed`.
std::string least_taken(const std::vector<std::string>& all, const std::vector<std::string>& taken,
                        const std::set<std::string>& closed);

}  // namespace sgactor::apps
