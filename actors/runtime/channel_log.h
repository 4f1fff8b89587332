#pragma once
#include "actors/runtime/channel.h"

#include <memory>

namespace sgactor::actors {

/// A channel over `inner`, which outlives a lost member: for the open step it keeps every operation
/// in the order of its start, with a copy of its inputs (or a pointer, where they are state that
/// only the update changes). An operation that ends with kDisconnected or kCancelled is suspended:
/// its sink hears nothing until resume() has carried it through, or abort() ends the run. All
/// members resume in the same generation, so that each operation meets all of its members again,
/// a fresh one among them that runs the step from its beginning; the bits are the same.
///
/// forget(step) drops the log at the step's commit, when every operation of it is complete; replays
/// still under way end on their own memory. Memory of the log is used again from step to step.
///
/// Of a staged channel (staged_channel.h) the log goes below it: it keeps the host's copies, of
/// state too.
std::unique_ptr<Channel> create_logged_channel(const ChannelSpec& spec,
                                               std::unique_ptr<Channel> inner);

}  // namespace sgactor::actors
