#include "kernels/cpu/executable.h"

#include <chrono>

namespace sgactor::kernels::cpu {
namespace {

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::byte* base_of(const Place& place, const LaunchArgs& args) {
  switch (place.space) {
    case Place::Space::kInput:
      return args.inputs[static_cast<size_t>(place.index)];
    case Place::Space::kOutput:
      return args.outputs[static_cast<size_t>(place.index)];
    case Place::Space::kWorkspace:
      break;
  }
  return args.workspace;
}

}  // namespace

void CpuExecutable::profile(bool on) {
  profiling_ = on;
  step_ns_.assign(steps_.size(), 0);
}

Status CpuExecutable::run(ThreadPool& pool, const LaunchArgs& args) const {
  for (size_t v = 0; v < recipes_.size(); ++v) {
    const Recipe& recipe = recipes_[v];
    std::byte* base = recipe.constant != nullptr ? recipe.constant
                      : recipe.in_scratch        ? args.scratch
                                                 : base_of(recipe.place, args);
    resolved_[v] = base == nullptr ? nullptr : base + recipe.place.offset;
  }
  ThreadPool::Session session(pool);
  const Frame frame{
      .values = resolved_.data(), .scratch = args.scratch + step_scratch_offset_, .pool = &session};
  for (size_t i = 0; i < steps_.size(); ++i) {
    const int64_t start = profiling_ ? now_ns() : 0;
    if (Status s = steps_[i].run(frame); !s.ok()) return s.with_context(name_);
    if (profiling_) step_ns_[i] += now_ns() - start;
  }
  return {};
}

}  // namespace sgactor::kernels::cpu
