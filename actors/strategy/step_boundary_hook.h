#pragma once
#include "actors/runtime/behaviours.h"
#include "actors/strategy/strategy.h"

#include <memory>

namespace sgactor::actors {

/// Shows `behaviour` the parameters of the context's rank: at once, as they are before the first
/// step, and at each step's end on a thread of its own. Borrows context and collectives. Errors: of
/// behaviour.start; kUnsupported: a parameter that is not f32, or hashes for tensors.
Result<std::shared_ptr<StepHook>> create_step_boundary_hook(
    const ProgramContext& context, transport::Collectives& collectives,
    std::unique_ptr<StepBehaviour> behaviour);

}  // namespace sgactor::actors
