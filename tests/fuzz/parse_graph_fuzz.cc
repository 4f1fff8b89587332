// parse_graph on hostile text: no crash, and what it takes prints and parses to the same text.
#include "graph/ir/serial.h"
#include "graph/ir/text.h"

#include <cstdint>
#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sgactor::graph;
  const auto graph = parse_graph({reinterpret_cast<const char*>(data), size});
  if (!graph.ok()) return 0;
  const std::string text = print_graph(*graph);
  const auto again = parse_graph(text);
  if (!again.ok() || print_graph(*again) != text) std::abort();
  if (schema_hash(*again) != schema_hash(*graph)) std::abort();
  return 0;
}
