#include "graph/base/shape.h"

namespace sgactor {

std::string Shape::to_string() const {
  std::string text = "[";
  for (size_t i = 0; i < dims_.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(dims_[i]);
  return text + "]";
}

std::string TensorType::to_string() const {
  return std::string(dtype_name(dtype)) + shape.to_string();
}

}  // namespace sgactor
