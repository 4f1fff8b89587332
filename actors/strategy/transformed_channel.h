#pragma once
#include "actors/runtime/channel.h"
#include "actors/strategy/gradient_operations.h"
#include "actors/strategy/strategy.h"

#include <memory>
#include <vector>

namespace sgactor::actors {

/// A channel whose `operations` go through `transform`, one at a time and in the order in which
/// they are started, on a thread of its own; all others, and the drain, go to `inner`. Errors of
/// the transform name rank and launch. Pre: operations is not empty; spec.collectives is there.
std::unique_ptr<Channel> create_transformed_channel(const ChannelSpec& spec,
                                                    std::unique_ptr<Channel> inner,
                                                    std::vector<GradientOperation> operations,
                                                    std::unique_ptr<ChannelTransform> transform);

}  // namespace sgactor::actors
