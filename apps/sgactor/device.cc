#include "apps/sgactor/device.h"

#include "apps/sgactor/cluster_ranks.h"
#include "graph/base/units.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <vector>

namespace sgactor::apps {
namespace {

/// Of a validation plan, which has no parameters of its own.
int64_t own_bytes(const graph::Plan& validation) {
  if (validation.programs.empty()) return 0;
  const graph::RankProgram& program = validation.programs[0];
  int64_t bytes = program.arena_bytes;
  for (const graph::Buffer& b : program.buffers) {
    if (b.kind == graph::BufferKind::kParameter) bytes -= b.bytes;
  }
  return bytes;
}

}  // namespace

Result<DeviceSpec> parse_devices(const std::string& text) {
  DeviceSpec spec;
  const size_t colon = text.find(':');
  spec.backend = text.substr(0, colon);
  if (colon == std::string::npos) return spec;
  const std::string count = text.substr(colon + 1);
  const auto expected = invalid_argument("--devices " + text +
                                         ": expected cpu, cpu:THREADS, reference, symbolic, "
                                         "cuda, cuda:INDEX or cuda:all");
  if (spec.backend == "cuda" && count == "all") return spec;
  int32_t number = 0;
  const auto [end, error] = std::from_chars(count.data(), count.data() + count.size(), number);
  const int32_t least = spec.backend == "cuda" ? 0 : 1;
  if (error != std::errc() || end != count.data() + count.size() || number < least || number > 4096)
    return expected;
  if (spec.backend == "cpu") {
    spec.options.num_threads = number;
  } else if (spec.backend == "cuda") {
    spec.options.device_index = number;
  } else {
    return expected;
  }
  return spec;
}

Result<std::unique_ptr<kernels::Backend>> create_device(const kernels::BackendTable& backends,
                                                        const DeviceSpec& device) {
  auto backend = backends.create(device.backend, device.options);
  if (backend.ok()) return backend;
  const Status& s = backend.status();
  return Status(Code::kUnsupported, Scope::kDevice, s.message(), s.origin());
}

graph::StorageModel storage_model(const kernels::Backend& backend) {
  const TensorType four{DType::kF32, Shape{4}};
  const int64_t bytes = backend.storage_bytes(four);
  for (const auto model : {graph::StorageModel::kFloat64, graph::StorageModel::kHash}) {
    if (bytes == graph::storage_bytes(four, model)) return model;
  }
  return graph::StorageModel::kNative;
}

int64_t hosted_bytes(const graph::Plan& plan, const graph::Plan* validation, int64_t workers) {
  if (plan.ranks.empty()) return 0;
  // As the runtime has it: the first rank validates, where it holds the whole model.
  const auto sharded = [](const graph::Buffer& b) {
    return b.kind == graph::BufferKind::kParameter && b.slice.sharded();
  };
  const int32_t first = rank_at(plan, 0, 0, 0);
  const auto& buffers =
      plan.programs[static_cast<size_t>(plan.ranks[static_cast<size_t>(first)].program)].buffers;
  const bool whole = plan.mesh.pp == 1 && plan.mesh.tp == 1 &&
                     std::none_of(buffers.begin(), buffers.end(), sharded);
  const int32_t validates = validation != nullptr && whole ? first : -1;
  const auto most = static_cast<int64_t>(plan.ranks.size());
  const auto dealt = deal_ranks(plan, static_cast<int32_t>(std::clamp<int64_t>(workers, 1, most)));
  int64_t busiest = 0;
  for (const std::vector<int32_t>& ranks : dealt) {
    int64_t bytes = 0;
    for (const int32_t r : ranks) {
      const int32_t program = plan.ranks[static_cast<size_t>(r)].program;
      bytes += plan.programs[static_cast<size_t>(program)].arena_bytes;
      if (r == validates) bytes += own_bytes(*validation);
    }
    busiest = std::max(busiest, bytes);
  }
  return busiest;
}

Status check_memory(const graph::Plan& plan, const kernels::Backend& backend,
                    const graph::Plan* validation, int64_t workers) {
  const int64_t there = backend.info().memory_bytes;
  const int64_t needed = hosted_bytes(plan, validation, workers);
  if (there <= 0 || needed <= there) return {};
  const auto ranks = static_cast<int64_t>(plan.ranks.size());
  const int64_t hosted = (ranks + workers - 1) / std::max<int64_t>(workers, 1);
  const std::string share =
      hosted > 1 ? fmt::format(" for the {} ranks of one process", hosted) : std::string();
  return make_status(
      Code::kOutOfMemory,
      fmt::format("the plan needs {}{} and {} has {}; less take a smaller "
                  "training.micro_batch_size, training.seq_len or model, training.recompute, "
                  "training.memory_budget, and, with more workers, parallelism.zero_stage, "
                  "parallelism.tensor_parallel_degree or parallelism.pipeline_parallel_degree",
                  format_bytes(needed), share, backend.info().device, format_bytes(there)),
      Scope::kDevice);
}

}  // namespace sgactor::apps
