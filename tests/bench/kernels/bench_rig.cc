#include "tests/bench/kernels/bench_rig.h"

#include "graph/base/philox.h"
#include "graph/base/units.h"
#include "graph/ir/op_table.h"
#include "kernels/cpu/cpu_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <thread>
#include <utility>

namespace sgactor::bench {
namespace {

using graph::AliasSpec;
using graph::ValueId;
using kernels::Place;

template <class T>
T must(Result<T> result) {
  if (!result.ok()) {
    fmt::print(stderr, "{}\n", result.status().to_string());
    std::exit(1);
  }
  return std::move(result).value();
}

class Last final : public kernels::CompletionSink {
 public:
  void on_complete(uint64_t, const Status& s, kernels::LaunchTiming t) noexcept override {
    status = s;
    timing = t;
  }
  Status status;
  kernels::LaunchTiming timing;
};

double seconds_of(int32_t num_threads, const std::function<void(int32_t)>& work) {
  double best = 1e9;
  for (int round = 0; round < 5; ++round) {
    const auto start = std::chrono::steady_clock::now();
    std::vector<std::thread> threads;
    for (int32_t t = 1; t < num_threads; ++t) threads.emplace_back(work, t);
    work(0);
    for (std::thread& t : threads) t.join();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    best = std::min(best, took.count());
  }
  return best;
}

}  // namespace

Rig::Rig(graph::Graph graph, int32_t num_threads) : graph_(std::move(graph)) {
  backend_ = must(kernels::create_cpu_backend({.num_threads = num_threads}));
  place();
  owner_ = must(backend_->compile(
      {.body = &graph_, .places = places_, .workspace_bytes = workspace_bytes_, .name = "bench"}));
  executable_ = static_cast<kernels::cpu::CpuExecutable*>(owner_.get());
  memory_.push_back(must(backend_->allocate(workspace_bytes_, "workspace")));
  workspace_ = memory_.back()->data();
  memory_.push_back(must(backend_->allocate(executable_->scratch_bytes(), "scratch")));
  scratch_ = memory_.back()->data();
  stream_ = must(backend_->create_stream());
}

Rig::~Rig() = default;

void Rig::place() {
  places_.resize(graph_.values().size());
  for (size_t i = 0; i < graph_.inputs().size(); ++i) {
    const ValueId v = graph_.inputs()[i].value;
    places_[v] = {.space = Place::Space::kInput, .index = static_cast<int32_t>(i)};
    memory_.push_back(must(backend_->allocate(graph_.type(v).bytes(), "input")));
    inputs_.push_back(memory_.back()->data());
  }
  for (const graph::Op& op : graph_.ops()) {
    for (ValueId v : op.results) {
      places_[v] = {.offset = workspace_bytes_};
      workspace_bytes_ += round_up(graph_.type(v).bytes(), 256);
    }
    for (const AliasSpec& alias : graph::op_info(op.kind).aliases) {
      if (alias.kind == AliasSpec::Kind::kMay) continue;
      places_[op.results[static_cast<size_t>(alias.result)]] =
          places_[op.operands[static_cast<size_t>(alias.operand)]];
    }
  }
  for (const graph::GraphOutput& out : graph_.outputs()) {
    const Place& at = places_[out.value];
    if (at.space == Place::Space::kInput) {
      outputs_.push_back(inputs_[static_cast<size_t>(at.index)]);
      continue;
    }
    memory_.push_back(must(backend_->allocate(graph_.type(out.value).bytes(), "output")));
    outputs_.push_back(memory_.back()->data());
    if (at.space == Place::Space::kWorkspace) {
      places_[out.value] = {.space = Place::Space::kOutput,
                            .index = static_cast<int32_t>(outputs_.size() - 1)};
    }
  }
}

void Rig::fill_inputs(int64_t id_limit) {
  for (size_t i = 0; i < inputs_.size(); ++i) {
    const TensorType& type = graph_.type(graph_.inputs()[i].value);
    const PhiloxStream rng{.seed = 1, .stream = i};
    for (int64_t e = 0; e < type.num_elements(); ++e) {
      const double u = rng.uniform(static_cast<uint64_t>(e));
      if (type.dtype == DType::kF32) {
        reinterpret_cast<float*>(inputs_[i])[e] = static_cast<float>(0.1 * (u - 0.5));
      } else if (type.dtype == DType::kI32) {
        reinterpret_cast<int32_t*>(inputs_[i])[e] =
            static_cast<int32_t>(u * static_cast<double>(id_limit));
      } else if (type.dtype == DType::kF64) {
        reinterpret_cast<double*>(inputs_[i])[e] = 1;
      }
    }
  }
}

double Rig::launch() {
  Last sink;
  stream_->launch(
      *executable_,
      {.inputs = inputs_, .outputs = outputs_, .workspace = workspace_, .scratch = scratch_}, 0,
      sink);
  stream_->synchronize();
  if (!sink.status.ok()) {
    fmt::print(stderr, "{}\n", sink.status.to_string());
    std::exit(1);
  }
  return static_cast<double>(sink.timing.end_ns - sink.timing.start_ns) * 1e-9;
}

double Rig::best_seconds(int repeats) {
  double best = 1e9;
  for (int i = 0; i < repeats; ++i) best = std::min(best, launch());
  return best;
}

std::vector<double> Rig::seconds_by_step(int repeats) {
  launch();
  // The fastest run of each step: what others on the machine cost does not count.
  std::vector<int64_t> best(executable_->steps().size(), INT64_MAX);
  for (int i = 0; i < repeats; ++i) {
    executable_->profile(true);
    launch();
    for (size_t s = 0; s < best.size(); ++s) {
      best[s] = std::min(best[s], executable_->step_ns()[s]);
    }
  }
  executable_->profile(false);
  std::vector<double> seconds;
  for (int64_t ns : best) seconds.push_back(static_cast<double>(ns) * 1e-9);
  return seconds;
}

std::vector<std::pair<std::string, double>> Rig::seconds_by_op(int repeats) {
  const std::vector<double> seconds = seconds_by_step(repeats);
  std::map<std::string, double> by_op;
  for (size_t s = 0; s < seconds.size(); ++s) by_op[executable_->steps()[s].op] += seconds[s];
  std::vector<std::pair<std::string, double>> sorted(by_op.begin(), by_op.end());
  std::sort(sorted.begin(), sorted.end(),
            [](const auto& a, const auto& b) { return a.second > b.second; });
  return sorted;
}

double peak_gflops(int32_t num_threads) {
  const kernels::cpu::KernelTable& k = kernels::cpu::select_kernel_table();
  // One block of C on panels that stay in the first-level cache: as near to the units as a kernel
  // gets.
  constexpr int64_t kDepth = 256;
  constexpr int kRepeats = 20000;
  const double seconds = seconds_of(num_threads, [&](int32_t) {
    std::vector<float> a(static_cast<size_t>(k.gemm_rows * kDepth), 0.5F);
    std::vector<float> b(static_cast<size_t>(k.gemm_columns * kDepth), 0.25F);
    std::vector<float> c(static_cast<size_t>(k.gemm_rows * k.gemm_columns));
    for (int i = 0; i < kRepeats; ++i) {
      k.gemm_packed(c.data(), k.gemm_columns, a.data(), b.data(), k.gemm_rows, k.gemm_columns,
                    kDepth, false);
    }
  });
  return 2e-9 * k.gemm_rows * k.gemm_columns * kDepth * kRepeats * num_threads / seconds;
}

double copy_gbytes_per_second(int32_t num_threads) {
  constexpr size_t kBytes = size_t{128} << 20;
  std::vector<std::vector<char>> from(static_cast<size_t>(num_threads)), to(from.size());
  for (auto& v : from) v.assign(kBytes, 1);
  for (auto& v : to) v.assign(kBytes, 0);
  const double seconds = seconds_of(num_threads, [&](int32_t t) {
    std::memcpy(to[static_cast<size_t>(t)].data(), from[static_cast<size_t>(t)].data(), kBytes);
  });
  return 2e-9 * static_cast<double>(kBytes) * num_threads / seconds;
}

}  // namespace sgactor::bench
