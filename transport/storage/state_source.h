#pragma once
#include "graph/base/shape.h"
#include "graph/base/status.h"

#include <cstddef>
#include <span>
#include <string>

namespace sgactor::transport {

/// Where persistent tensors come from at start: initialisation, a checkpoint, a Hugging Face
/// directory. Read-only and thread-safe.
class StateSource {
 public:
  virtual ~StateSource() = default;
  /// Fills `out` (type.bytes() bytes, row-major native) with tensor `name` ("model.norm.weight",
  /// "m/…", "v/…"). Errors: kInvalidArgument (no such tensor, or another type, both named),
  /// kCorruption.
  virtual Status load(const std::string& name, const TensorType& type,
                      std::span<std::byte> out) const = 0;
  /// The tensor is known to be zeros: whoever wants it need not load it. False if in doubt.
  [[nodiscard]] virtual bool is_zero(const std::string& /*name*/) const { return false; }
};

}  // namespace sgactor::transport
