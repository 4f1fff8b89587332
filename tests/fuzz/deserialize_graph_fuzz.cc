// deserialize_graph on hostile bytes: no crash, and what it takes serializes to the same graph.
#include "graph/ir/serial.h"
#include "graph/ir/text.h"

#include <cstdint>
#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sgactor::graph;
  const auto graph = deserialize_graph({reinterpret_cast<const char*>(data), size});
  if (!graph.ok()) return 0;
  const auto again = deserialize_graph(serialize_graph(*graph));
  // By bytes, since a NaN attribute makes a graph unequal to itself.
  if (!again.ok() || serialize_graph(*again) != serialize_graph(*graph)) std::abort();
  if (schema_hash(*again) != schema_hash(*graph)) std::abort();
  const auto parsed = parse_graph(print_graph(*graph));
  if (!parsed.ok()) std::abort();
  return 0;
}
