#pragma once
#include "actors/runtime/channel.h"

#include <string>
#include <vector>

namespace sgactor::actors {

/// What follows the transport where tensors are hashes: there a part of a tensor is no part of its
/// hash.
enum class HashStep : uint8_t { kNone = 0, kPiece, kGather };

/// One input and output of a launch, but for what differs from firing to firing.
struct Pair {
  transport::CollectiveRequest request;
  HashStep hash_step = HashStep::kNone;
  TensorType input, output;  ///< of no element where there is none
};

/// What a launch of a channel asks of the transport; all pairs are one operation.
struct Operation {
  std::string name;
  int32_t key = -1;
  std::vector<Pair> pairs;  ///< empty: a launch of another lane
};

/// One for each launch of the rank's program, without what differs from firing to firing; empty
/// names for those of other lanes.
std::vector<ChannelOperation> describe_operations(const ChannelSpec& spec);

/// One for each launch of the rank's program. Errors: as create_channel has them.
Result<std::vector<Operation>> build_operations(const ChannelSpec& spec);

}  // namespace sgactor::actors
