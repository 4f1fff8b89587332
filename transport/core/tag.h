#pragma once
#include "graph/base/hash.h"

#include <cstddef>
#include <cstdint>
#include <functional>

namespace sgactor::transport {

/// A process of the job that moves bytes: one a worker. Given by the control plane, never used
/// again within a job: a worker that comes back is a new peer.
using PeerId = uint32_t;

/// Number of the membership in which a message was sent. See Fabric::fence.
using Generation = uint32_t;

/// The whole identity of a message between two peers, compared in full: nothing is hashed away, so
/// two messages never meet by chance. A tag names one message of a generation; after a cancel the
/// same tag may be used again only in a later generation.
struct Tag {
  uint64_t key = 0;  ///< logical key of the collective: launch, step, micro-batch
  Generation generation = 0;
  int32_t source = 0;  ///< logical rank
  int32_t target = 0;  ///< logical rank
  uint32_t phase = 0;  ///< which message of the collective
  friend bool operator==(const Tag&, const Tag&) = default;
};
static_assert(sizeof(Tag) == 24);

struct TagHash {
  size_t operator()(const Tag& t) const {
    const uint64_t ranks = static_cast<uint64_t>(static_cast<uint32_t>(t.source)) << 32 |
                           static_cast<uint32_t>(t.target);
    const uint64_t rest = static_cast<uint64_t>(t.generation) << 32 | t.phase;
    return mix64(mix64(t.key, ranks), rest);
  }
};

}  // namespace sgactor::transport
