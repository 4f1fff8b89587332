#include "tests/differential/torch/parity_check.h"

#include <cmath>
#include <cstring>

namespace sgactor::differential {

namespace {

double relative(double value, double expected) {
  return std::abs(value - expected) / std::abs(expected);
}

}  // namespace

ParityFixture load_fixture(const std::string& model) {
  auto read = read_parity_fixture("tests/data/torch_parity/" + model);
  EXPECT_TRUE(read.ok()) << read.status().to_string();
  return read.ok() ? std::move(*read) : ParityFixture{};
}

void expect_step(const ParityFixture& fixture, int64_t step, double loss, double grad_norm,
                 double learning_rate, double tolerance) {
  const auto i = static_cast<size_t>(step - 1);
  EXPECT_LE(relative(loss, fixture.losses[i]), tolerance) << "loss of step " << step;
  EXPECT_LE(relative(grad_norm, fixture.grad_norms[i]), tolerance)
      << "gradient norm of step " << step;
  EXPECT_LE(relative(learning_rate, fixture.learning_rates[i]), 1e-7) << "rate of step " << step;
}

void expect_weight(const ParityFixture& fixture, const std::string& name,
                   const std::vector<double>& values, double tolerance) {
  const auto bytes = fixture.final_weights->tensor(name);
  ASSERT_TRUE(bytes.ok()) << bytes.status().to_string();
  ASSERT_EQ(bytes->size(), values.size() * sizeof(float)) << name;
  double norm = 0;
  double distance = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    float expected = 0;
    std::memcpy(&expected, bytes->data() + i * sizeof expected, sizeof expected);
    norm += values[i] * values[i];
    distance += (values[i] - expected) * (values[i] - expected);
  }
  const double expected_norm = fixture.final_norms.at(name);
  EXPECT_LE(relative(std::sqrt(norm), expected_norm), tolerance) << name;
  // Adam amplifies rounding where a gradient is near zero: single elements may be further apart.
  EXPECT_LE(std::sqrt(distance) / expected_norm, 10 * tolerance) << name;
}

}  // namespace sgactor::differential
