#pragma once
#include "tests/differential/torch/parity_fixture.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace sgactor::differential {

/// PyTorch in float32 is within 3e-7 (losses, norms) and 1.2e-6 (norms of final weights) of PyTorch
/// in float64 on these models, so that 1e-5 leaves room for rounding and none for mistakes.
inline constexpr double kParityTolerance = 1e-5;
/// Of training with bf16 products (8 bits of mantissa) against PyTorch in float32.
inline constexpr double kParityToleranceBf16 = 2e-2;

inline const auto kParityModels = testing::Values("tied_gqa", "untied_mha", "qwen2_bias");

/// The fixture of tests/data/torch_parity/<model>; a failure of the test and an empty one if it
/// cannot be read.
ParityFixture load_fixture(const std::string& model);
/// Expects a step's numbers to be PyTorch's.
void expect_step(const ParityFixture& fixture, int64_t step, double loss, double grad_norm,
                 double learning_rate, double tolerance = kParityTolerance);
/// Expects the norm of a final weight, and its distance to PyTorch's, to be small.
void expect_weight(const ParityFixture& fixture, const std::string& name,
                   const std::vector<double>& values, double tolerance = kParityTolerance);

}  // namespace sgactor::differential
