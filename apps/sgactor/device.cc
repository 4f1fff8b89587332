#include "apps/sgactor/device.h"

#include "graph/base/units.h"

#include <charconv>

namespace sgactor::apps {

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

Status check_memory(const graph::Plan& plan, const kernels::Backend& backend) {
  const int64_t needed = plan.programs.empty() ? 0 : plan.programs[0].arena_bytes;
  const int64_t there = backend.info().memory_bytes;
  if (there <= 0 || needed <= there) return {};
  return make_status(Code::kOutOfMemory,
                     "the plan needs " + format_bytes(needed) + " and " + backend.info().device +
                         " has " + format_bytes(there) +
                         "; smaller: training.micro_batch_size, training.seq_len or the model",
                     Scope::kDevice);
}

}  // namespace sgactor::apps
