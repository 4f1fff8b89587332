// deserialize_plan on hostile bytes: no crash, and what it takes verifies, prints, and serializes
// to the same plan.
#include "graph/plan/serial.h"

#include <cstdint>
#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sgactor::graph;
  const auto plan = deserialize_plan({reinterpret_cast<const char*>(data), size});
  if (!plan.ok()) return 0;
  if (!verify_plan(*plan).ok()) std::abort();
  const std::string bytes = serialize_plan(*plan);
  const auto again = deserialize_plan(bytes);
  if (!again.ok() || serialize_plan(*again) != bytes) std::abort();
  if (print_plan(*plan).empty()) std::abort();
  return 0;
}
