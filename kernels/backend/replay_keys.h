#pragma once
#include "kernels/backend/backend.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace sgactor::kernels {

/// Decides how each launch of one executable goes to a device that can record its kernels: the
/// first with some pointers plain (libraries set themselves up then), the second recorded, all
/// later ones replayed. Pointers are all that a launch can differ in. At most `most_keys` sets of
/// pointers are known; launches with others stay plain, so that memory is bounded. Used by one
/// thread at a time; allocates only when it meets new pointers.
class ReplayKeys {
 public:
  enum class Way : uint8_t { kPlain, kRecord, kReplay };
  struct Turn {
    Way way = Way::kPlain;
    int32_t key = -1;  ///< of what is recorded or replayed
  };

  explicit ReplayKeys(int32_t most_keys) : most_keys_(most_keys) {}

  /// Pre: every launch has as many inputs and outputs as the first.
  Turn next(const LaunchArgs& args) {
    if (gave_up_) return {};
    take(args);
    const uint64_t hash = hash_of(now_);
    for (size_t k = 0; k < keys_.size(); ++k) {
      const auto known = pointers_.begin() + static_cast<std::ptrdiff_t>(k * now_.size());
      if (keys_[k].hash != hash || !std::equal(now_.begin(), now_.end(), known)) continue;
      return {keys_[k].recorded ? Way::kReplay : Way::kRecord, static_cast<int32_t>(k)};
    }
    if (static_cast<int32_t>(keys_.size()) < most_keys_) {
      keys_.push_back({hash, false});
      pointers_.insert(pointers_.end(), now_.begin(), now_.end());
    }
    return {};
  }
  /// `key`, whose turn was kRecord, can be replayed.
  void recorded(int32_t key) { keys_[static_cast<size_t>(key)].recorded = true; }
  /// Every launch is plain from now on.
  void give_up() { gave_up_ = true; }

 private:
  struct Key {
    uint64_t hash = 0;
    bool recorded = false;
  };

  void take(const LaunchArgs& args) {
    now_.clear();
    now_.insert(now_.end(), args.inputs.begin(), args.inputs.end());
    now_.insert(now_.end(), args.outputs.begin(), args.outputs.end());
    now_.push_back(args.workspace);
    now_.push_back(args.scratch);
  }
  /// FNV-1a by words. Only saves comparisons: equality is by the pointers themselves.
  static uint64_t hash_of(const std::vector<const std::byte*>& pointers) {
    uint64_t hash = 0xcbf29ce484222325ULL;
    for (const std::byte* p : pointers)
      hash = (hash ^ reinterpret_cast<uintptr_t>(p)) * 0x100000001b3ULL;
    return hash;
  }

  int32_t most_keys_;
  bool gave_up_ = false;
  std::vector<Key> keys_;
  std::vector<const std::byte*> pointers_;  // one row a key
  std::vector<const std::byte*> now_;
};

}  // namespace sgactor::kernels
