#pragma once
#include "graph/base/shape.h"
#include "graph/base/status.h"
#include "graph/plan/plan.h"
#include "kernels/backend/backend.h"

#include <cstddef>
#include <span>
#include <vector>

namespace sgactor::actors {

/// Whether a strategy can work on the rank's memory as it lies, without a copy: native elements
/// that the host sees.
bool seen_by_host(const graph::Plan& plan, const kernels::Backend& backend);

/// An f32 tensor of a rank as a strategy sees it: the memory itself where the host sees it, else a
/// copy in host memory, kept between uses.
class HostTensor {
 public:
  /// `in_place` as seen_by_host says. Pre: type.dtype is kF32.
  HostTensor(TensorType type, bool in_place);

  /// Gives the elements at `address`; with `load` a copy is filled from there. Blocks. Valid until
  /// the next call.
  Result<std::span<float>> open(kernels::Backend& backend, std::byte* address, bool load);
  /// Writes a copy back. Blocks.
  Status store(kernels::Backend& backend, std::byte* address);
  [[nodiscard]] const TensorType& type() const { return type_; }

 private:
  TensorType type_;
  bool in_place_;
  std::vector<float> copy_;
};

}  // namespace sgactor::actors
