#include "actors/strategy/host_tensor.h"

#include <utility>

namespace sgactor::actors {

bool seen_by_host(const graph::Plan& plan, const kernels::Backend& backend) {
  return plan.storage == graph::StorageModel::kNative && backend.host_visible();
}

HostTensor::HostTensor(TensorType type, bool in_place)
    : type_(std::move(type)), in_place_(in_place) {
  if (!in_place_) copy_.resize(static_cast<size_t>(type_.num_elements()));
}

Result<std::span<float>> HostTensor::open(kernels::Backend& backend, std::byte* address,
                                          bool load) {
  if (in_place_) {
    return std::span<float>(reinterpret_cast<float*>(address),
                            static_cast<size_t>(type_.num_elements()));
  }
  if (load) {
    SGA_TRY(backend.read_tensor(std::as_writable_bytes(std::span<float>(copy_)), type_, address));
  }
  return std::span<float>(copy_);
}

Status HostTensor::store(kernels::Backend& backend, std::byte* address) {
  if (in_place_) return {};
  return backend.write_tensor(address, type_, std::as_bytes(std::span<const float>(copy_)));
}

}  // namespace sgactor::actors
