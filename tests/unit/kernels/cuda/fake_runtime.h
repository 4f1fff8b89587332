#pragma once
#include <atomic>

namespace sgactor::testing {

/// What the test's runtime refuses while it is set, with cudaErrorMemoryAllocation. All else it
/// does at once, in host memory.
struct FakeRuntime {
  std::atomic<bool> refuses_events{false};   ///< to make those that streams wait for
  std::atomic<bool> refuses_records{false};  ///< of these
  std::atomic<bool> refuses_waits{false};    ///< for these
};
FakeRuntime& fake_runtime();

}  // namespace sgactor::testing
