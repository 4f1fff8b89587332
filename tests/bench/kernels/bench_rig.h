#pragma once
#include "kernels/backend/backend.h"
#include "kernels/cpu/executable.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace sgactor::bench {

/// A graph on the cpu backend with each value at its own place, outputs updated in place on their
/// inputs. Aborts with a message on errors: this is a tool.
class Rig {
 public:
  Rig(graph::Graph graph, int32_t num_threads);
  ~Rig();
  Rig(const Rig&) = delete;
  Rig& operator=(const Rig&) = delete;

  /// Fills float inputs with small random numbers and integer inputs with ids below `id_limit`.
  void fill_inputs(int64_t id_limit);
  /// Launches `repeats` times; the shortest launch in seconds.
  double best_seconds(int repeats);
  /// Seconds a launch by step of the executable, the fastest of `repeats` launches each.
  std::vector<double> seconds_by_step(int repeats);
  /// Seconds a launch by op kind, over `repeats` launches, largest first.
  std::vector<std::pair<std::string, double>> seconds_by_op(int repeats);
  [[nodiscard]] const graph::Graph& graph() const { return graph_; }
  [[nodiscard]] const kernels::DeviceInfo& device() const { return backend_->info(); }
  [[nodiscard]] const kernels::cpu::CpuExecutable& executable() const { return *executable_; }

 private:
  void place();
  double launch();

  graph::Graph graph_;
  std::unique_ptr<kernels::Backend> backend_;
  std::vector<kernels::Place> places_;
  int64_t workspace_bytes_ = 0;
  std::vector<std::unique_ptr<kernels::DeviceMemory>> memory_;
  std::vector<std::byte*> inputs_, outputs_;
  std::byte* workspace_ = nullptr;
  std::byte* scratch_ = nullptr;
  std::unique_ptr<kernels::Executable> owner_;
  kernels::cpu::CpuExecutable* executable_ = nullptr;
  std::unique_ptr<kernels::Stream> stream_;
};

/// What this machine can do at most with `num_threads`: multiply-adds in registers, and a copy that
/// is larger than the caches (bytes read plus bytes written).
double peak_gflops(int32_t num_threads);
double copy_gbytes_per_second(int32_t num_threads);

}  // namespace sgactor::bench
