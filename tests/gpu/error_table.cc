// gpu_error_table [BACKEND]: the largest error of each op against the float64 reference, by dtype,
// over random cases, as the tolerance table measures it. Exit code 1 if one is above its tolerance,
// 77 without the backend.
#include "kernels/reference/reference_backend.h"
#include "tests/conformance/harness.h"
#include "tests/conformance/native.h"
#include "tests/conformance/op_cases.h"
#include "tests/conformance/tolerance.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>

namespace {

using namespace sgactor;           // NOLINT(google-build-using-namespace)
using namespace sgactor::testing;  // NOLINT(google-build-using-namespace)

constexpr uint64_t kCases = 8;

double largest_error(const std::vector<double>& got, const std::vector<double>& want) {
  double scale = 1;
  for (double x : want) {
    if (std::isfinite(x)) scale = std::max(scale, std::fabs(x));
  }
  double worst = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i] == want[i] || (std::isnan(got[i]) && std::isnan(want[i]))) continue;
    const double error = std::fabs(got[i] - want[i]) / scale;
    worst = std::isnan(error) ? INFINITY : std::max(worst, error);
  }
  return worst;
}

/// Negative: the backend lacks the op for the dtype.
double worst_of(kernels::Backend& backend, graph::OpKind kind, DType dtype) {
  double worst = 0;
  for (uint64_t seed = 0; seed < kCases; ++seed) {
    PhiloxDraw draw(1000 + seed);
    const OpCase c = make_case(kind, {.dtype = dtype, .max_dim = 100, .max_elements = 20000}, draw);
    const auto want = kernels::run_reference(c.graph, c.inputs);
    if (!c.status.ok() || !want.ok()) return INFINITY;
    const RunResult got = run_on(backend, c.graph, c.inputs);
    if (got.status.code() == Code::kUnsupported) return -1;
    if (!got.status.ok()) {
      std::printf("%s\n", got.status.to_string().c_str());
      return INFINITY;
    }
    for (size_t j = 0; j < got.outputs.size(); ++j) {
      const TensorType& type = c.graph.type(c.graph.outputs()[j].value);
      std::vector<double> expected = (*want)[j];
      // What only moves or rounds numbers is to be compared with the numbers rounded.
      if (is_exact(kind)) expected = from_native(type, to_native(type, expected));
      worst = std::max(worst, largest_error(from_native(type, got.outputs[j]), expected));
    }
  }
  return worst;
}

std::string cell(double error) {
  if (error < 0) return "-";
  char text[32];
  std::snprintf(text, sizeof text, "%.1e", error);
  return error == 0 ? "0" : text;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "cuda";
  const auto backend = conformance_backends().create(name, {});
  if (!backend.ok()) {
    std::printf("%s\n", backend.status().message().c_str());
    return 77;
  }
  int result = 0;
  std::printf("%-26s %8s %8s %8s\n", "op", "f64", "f32", "bf16");
  for (const graph::OpInfo& info : graph::op_table()) {
    if (info.communicates) continue;
    std::string line;
    for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16}) {
      const double error = worst_of(**backend, info.kind, dtype);
      if (error > tolerance_of(info.kind, dtype)) result = 1;
      line += "  " + std::string(8 - std::min<size_t>(8, cell(error).size()), ' ') + cell(error);
    }
    std::printf("%-24s%s\n", std::string(info.name).c_str(), line.c_str());
  }
  return result;
}
