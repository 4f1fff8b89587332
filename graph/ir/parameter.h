#pragma once
#include "graph/base/shape.h"

#include <string>

namespace sgactor::graph {

/// A parameter as Hugging Face names and shapes it.
struct ParameterSpec {
  std::string name;  ///< "model.layers.0.self_attn.q_proj.weight"
  TensorType type;
  bool decays = true;   ///< weight decay applies (matrices; not norms and biases)
  double init_std = 0;  ///< normal(0, init_std); 0 with init_one: ones; 0 without: zeros
  bool init_one = false;
};

}  // namespace sgactor::graph
