#pragma once
#include "graph/base/philox.h"

namespace sgactor {

/// A tensor of random numbers by its rule: element i is mean + std * standard_normal(stream, i) of
/// graph/base/standard_normal.h, in f64; `mean` where std is 0.
struct NormalNumbers {
  PhiloxStream stream;
  double mean = 0;
  double std = 0;
};

}  // namespace sgactor
