#pragma once
#include "graph/base/dtype.h"

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

namespace sgactor {

/// Extents of a dense row-major tensor. Static: every dim is known, >= 0. Rank 0 is a scalar with
/// one element.
class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<int64_t> dims) : dims_(dims) {}
  explicit Shape(std::vector<int64_t> dims) : dims_(std::move(dims)) {}

  [[nodiscard]] int rank() const { return static_cast<int>(dims_.size()); }
  /// Extent of `dim`; negative counts from the end. Pre: -rank() <= dim < rank().
  [[nodiscard]] int64_t dim(int dim) const {
    return dims_[static_cast<size_t>(dim < 0 ? dim + rank() : dim)];
  }
  [[nodiscard]] const std::vector<int64_t>& dims() const { return dims_; }
  [[nodiscard]] int64_t num_elements() const {
    int64_t n = 1;
    for (int64_t d : dims_) n *= d;
    return n;
  }
  void set_dim(int dim, int64_t extent) {
    dims_[static_cast<size_t>(dim < 0 ? dim + rank() : dim)] = extent;
  }
  /// "[4096, 2048]"; a scalar prints "[]".
  [[nodiscard]] std::string to_string() const;
  friend bool operator==(const Shape&, const Shape&) = default;

 private:
  std::vector<int64_t> dims_;
};

/// Type of an IR value: element type and shape, dense row-major.
struct TensorType {
  DType dtype = DType::kF32;
  Shape shape;

  [[nodiscard]] int64_t num_elements() const { return shape.num_elements(); }
  /// Bytes in native storage.
  [[nodiscard]] int64_t bytes() const { return num_elements() * dtype_bytes(dtype); }
  /// "bf16[4096, 2048]"
  [[nodiscard]] std::string to_string() const;
  friend bool operator==(const TensorType&, const TensorType&) = default;
};

}  // namespace sgactor
