#pragma once
#include "kernels/backend/backend.h"
#include "kernels/cpu/device.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace sgactor::kernels::cpu {

/// What a step sees while it runs: a pointer for every value of the body, scratch, the pool.
struct Frame {
  std::byte* const* values = nullptr;
  std::byte* scratch = nullptr;
  ThreadPool::Session* pool = nullptr;

  template <class T>
  [[nodiscard]] T* ptr(graph::ValueId v) const {
    return reinterpret_cast<T*>(values[v]);
  }
};

/// One resolved kernel call. Made by compile(); running it allocates nothing.
using Step = std::function<Status(const Frame&)>;

struct NamedStep {
  const char* op = "";
  graph::OpId op_id = 0;
  Step run;
};

/// Where a value is found at launch: a place of the request, scratch, or a constant of the
/// executable.
struct Recipe {
  Place place;
  bool in_scratch = false;  ///< at place.offset of the scratch
  std::byte* constant = nullptr;
};

/// A body as a list of steps. Steps run one after another; each cuts its own work into blocks.
class CpuExecutable final : public Executable {
 public:
  [[nodiscard]] int64_t scratch_bytes() const override { return scratch_bytes_; }
  /// Runs all steps on the calling thread and the pool's helpers. The first bad Status ends it.
  [[nodiscard]] Status run(ThreadPool& pool, const LaunchArgs& args) const;

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] const std::vector<NamedStep>& steps() const { return steps_; }
  /// Nanoseconds each step has taken since profiling was switched on; for benchmarks.
  void profile(bool on);
  [[nodiscard]] const std::vector<int64_t>& step_ns() const { return step_ns_; }

 private:
  friend class Lowering;

  std::string name_;
  std::vector<Recipe> recipes_;
  std::vector<NamedStep> steps_;
  std::vector<std::unique_ptr<DeviceMemory>> constants_;
  int64_t scratch_bytes_ = 0;
  int64_t step_scratch_offset_ = 0;  ///< scratch before this holds values
  // Filled anew by each launch; legal because an executable runs on one stream at a time.
  mutable std::vector<std::byte*> resolved_;
  mutable std::vector<int64_t> step_ns_;
  bool profiling_ = false;
};

}  // namespace sgactor::kernels::cpu
