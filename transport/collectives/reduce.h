#pragma once
#include "transport/collectives/collectives.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace sgactor::transport {

/// out[i] = the sources' elements i combined by the fixed tree of Algorithm::kExact: neighbours
/// level by level in the given order, an odd one carried up. bf16 is combined in f32 and rounded
/// once; integers wrap around; one source is copied. `out` may be one of the sources, but not
/// overlap one otherwise. Pure; the bits depend on nothing but the sources and their order.
/// Pre: at least one source; every pointer aligned to its element.
void reduce_in_order(Element element, Reduction reduction,
                     std::span<const std::byte* const> sources, std::byte* out, int64_t count);

}  // namespace sgactor::transport
