// wire::decode on hostile bytes: no crash, and what it takes encodes to the same message.
#include "actors/protocol/wire.h"

#include <cstdint>
#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sgactor::actors::wire;
  const auto envelope = decode({reinterpret_cast<const char*>(data), size});
  if (!envelope.ok()) return 0;
  const auto bytes = encode(*envelope);
  if (!bytes.ok()) std::abort();
  const auto again = decode(*bytes);
  if (!again.ok() || again->body.index() != envelope->body.index()) std::abort();
  const auto twice = encode(*again);
  if (!twice.ok() || *twice != *bytes) std::abort();
  return 0;
}
