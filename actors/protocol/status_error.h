#pragma once
#include "graph/base/status.h"

#include <caf/allowed_unsafe_message_type.hpp>
#include <caf/atom.hpp>
#include <caf/error.hpp>

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(sgactor::Status)

namespace sgactor::actors {

/// Category of every error that is one of our Statuses.
using SgaCategory = caf::atom_constant<caf::atom("sga")>;

/// The error form of a Status: category "sga", its code, and the Status itself as context. An ok
/// Status becomes caf::none. Within a process only; the wire carries Statuses in a form of its own.
caf::error to_caf(const Status& status);

/// The Status inside an "sga" error; kInternal with CAF's rendering for any other error; ok for
/// none and for orderly ends (exit_reason::normal, user_shutdown).
Status from_caf(const caf::error& error);

}  // namespace sgactor::actors
