#pragma once
#include "actors/runtime/channel.h"

#include <memory>

namespace sgactor::actors {

/// A channel for memory that the host does not see, over `inner`, which is given the host's: inputs
/// are read into it before the operation starts, results written from it before `sink` hears, both
/// on a thread of the channel. Operations start in `inner` in the order in which they were started
/// here. What layer() puts below works on the host's copies, which live until the operation is
/// complete. Borrows what the spec names. Errors: as build_operations has them.
Result<std::unique_ptr<Channel>> create_staged_channel(const ChannelSpec& spec,
                                                       std::unique_ptr<Channel> inner);

}  // namespace sgactor::actors
