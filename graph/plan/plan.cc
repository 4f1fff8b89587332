#include "graph/plan/plan.h"

#include <algorithm>
#include <array>

namespace sgactor::graph {
namespace {

constexpr std::array<std::string_view, 8> kBufferKindNames = {
    "parameter", "moment", "accumulator", "scalar", "metric", "batch", "activation", "workspace"};
constexpr std::array<std::string_view, 3> kStorageNames = {"native", "float64", "hash"};

}  // namespace

std::string_view to_string(BufferKind kind) {
  const auto index = static_cast<size_t>(kind);
  return index < kBufferKindNames.size() ? kBufferKindNames[index] : "?";
}

std::string_view to_string(StorageModel model) {
  const auto index = static_cast<size_t>(model);
  return index < kStorageNames.size() ? kStorageNames[index] : "?";
}

BufferKind buffer_kind(Role role) {
  switch (role) {
    case Role::kParameter:
      return BufferKind::kParameter;
    case Role::kMoment:
      return BufferKind::kMoment;
    case Role::kAccumulator:
      return BufferKind::kAccumulator;
    case Role::kTokens:
    case Role::kTargets:
      return BufferKind::kBatch;
    case Role::kScalar:
      return BufferKind::kScalar;
    case Role::kLoss:
    case Role::kLogits:
    case Role::kMetric:
      return BufferKind::kMetric;
    case Role::kActivation:
      break;
  }
  return BufferKind::kActivation;
}

int64_t storage_bytes(const TensorType& type, StorageModel model) {
  switch (model) {
    case StorageModel::kNative:
      return type.bytes();
    case StorageModel::kFloat64:
      // Saturates: 2^62 bytes of u8, which a type may have, would overflow.
      return std::min(type.num_elements(), int64_t{1} << 59) * 8;
    case StorageModel::kHash:
      return 8;
  }
  return 0;
}

}  // namespace sgactor::graph
