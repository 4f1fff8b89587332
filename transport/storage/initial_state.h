#pragma once
#include "graph/base/shape.h"
#include "transport/storage/state_source.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace sgactor::transport {

/// How one parameter starts: ones, or normal(0, std), or zeros if std is 0.
struct InitialParameter {
  std::string name;
  TensorType type;  ///< f32 or f64
  double std = 0;
  bool one = false;
};

/// Parameters as training from scratch starts them. Element i of parameter p is a pure function of
/// (seed, name of p, i): Philox keyed by the seed and a hash of the name, and standard_normal,
/// whose bits are the same on every machine. Every load computes anew. Knows parameters only; see
/// with_zero_moments.
std::unique_ptr<StateSource> make_initial_state(std::vector<InitialParameter> parameters,
                                                uint64_t seed);

/// `parameters` (an HfDirectory, an initial state), and zeros for the optimizer's moments: every
/// name that begins with "m/", "v/" or "amax/".
std::unique_ptr<StateSource> with_zero_moments(std::shared_ptr<const StateSource> parameters);

}  // namespace sgactor::transport
