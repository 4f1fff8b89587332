#pragma once
#include "graph/base/normal_numbers.h"
#include "graph/base/shape.h"
#include "graph/base/status.h"

#include <cstddef>
#include <optional>
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
  /// The rule by which `load` would make the tensor, for devices that draw numbers themselves: of
  /// `type`'s elements in row-major order. Empty: only `load` knows.
  [[nodiscard]] virtual std::optional<NormalNumbers> numbers(const std::string& /*name*/,
                                                             const TensorType& /*type*/) const {
    return std::nullopt;
  }
};

}  // namespace sgactor::transport
