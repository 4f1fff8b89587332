#include "actors/protocol/status_error.h"

#include <caf/exit_reason.hpp>
#include <caf/make_message.hpp>
#include <caf/message.hpp>
#include <caf/sec.hpp>
#include <caf/to_string.hpp>
#include <fmt/format.h>

namespace sgactor::actors {

caf::error to_caf(const Status& status) {
  if (status.ok()) return caf::none;
  return {static_cast<uint8_t>(status.code()), SgaCategory::value, caf::make_message(status)};
}

Status from_caf(const caf::error& error) {
  if (!error) return {};
  if (error.category() == SgaCategory::value) {
    if (error.context().match_elements<Status>()) return error.context().get_as<Status>(0);
    return make_status(static_cast<Code>(error.code()), "an actor failed", Scope::kActor);
  }
  if (error == caf::exit_reason::normal || error == caf::exit_reason::user_shutdown) return {};
  return internal_error(fmt::format("actor runtime: {}", caf::to_string(error)));
}

}  // namespace sgactor::actors
