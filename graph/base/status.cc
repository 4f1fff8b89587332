#include "graph/base/status.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace sgactor {
namespace {

std::string place_of(const std::source_location& where) {
  std::string_view file = where.file_name();
  // The build maps paths to the root of the tree; a build that does not (an editor's, say) gives
  // absolute ones.
  if (file.starts_with('/')) {
    size_t first = file.size();
    for (std::string_view top : {"/graph/", "/kernels/", "/transport/", "/actors/", "/supervision/",
                                 "/apps/", "/tests/"}) {
      first = std::min(first, file.find(top));
    }
    if (first < file.size()) file.remove_prefix(first + 1);
  }
  return std::string(file) + ":" + std::to_string(where.line());
}

const std::string kEmptyString;
const Origin kEmptyOrigin;

}  // namespace

Status::Status(Code code, Scope scope, std::string message, Origin origin) {
  if (code != Code::kOk) {
    rep_ = std::make_shared<const Rep>(Rep{code, scope, std::move(message), std::move(origin)});
  }
}

const std::string& Status::message() const { return rep_ ? rep_->message : kEmptyString; }
const Origin& Status::origin() const { return rep_ ? rep_->origin : kEmptyOrigin; }

std::string Status::to_string() const {
  if (ok()) return "ok";
  std::string text = std::string(sgactor::to_string(code())) + " (" +
                     std::string(sgactor::to_string(scope())) + "): " + message();
  std::string tail;
  auto add = [&](const std::string& part) { tail += (tail.empty() ? "" : ", ") + part; };
  const Origin& from = origin();
  if (from.rank >= 0) add("rank " + std::to_string(from.rank));
  if (!from.actor.empty()) add(from.actor);
  if (from.step >= 0) add("step " + std::to_string(from.step));
  if (from.generation >= 0) add("generation " + std::to_string(from.generation));
  if (!from.where.empty()) add(from.where);
  return tail.empty() ? text : text + " [" + tail + "]";
}

Status Status::with_context(std::string_view prefix) const {
  if (ok()) return *this;
  return Status(code(), scope(), std::string(prefix) + ": " + message(), origin());
}

Status Status::with_origin(Origin origin) const {
  if (ok()) return *this;
  return Status(code(), scope(), message(), std::move(origin));
}

std::string_view to_string(Code code) {
  switch (code) {
    case Code::kOk:
      return "ok";
    case Code::kInvalidArgument:
      return "invalid argument";
    case Code::kInvalidPlan:
      return "invalid plan";
    case Code::kUnsupported:
      return "unsupported";
    case Code::kOutOfMemory:
      return "out of memory";
    case Code::kTimeout:
      return "timeout";
    case Code::kDisconnected:
      return "disconnected";
    case Code::kOverloaded:
      return "overloaded";
    case Code::kDeviceFault:
      return "device fault";
    case Code::kCorruption:
      return "corruption";
    case Code::kCancelled:
      return "cancelled";
    case Code::kInternal:
      return "internal";
  }
  return "unknown";
}

std::string_view to_string(Scope scope) {
  switch (scope) {
    case Scope::kCall:
      return "call";
    case Scope::kChannel:
      return "channel";
    case Scope::kActor:
      return "actor";
    case Scope::kDevice:
      return "device";
    case Scope::kRank:
      return "rank";
    case Scope::kJob:
      return "job";
  }
  return "unknown";
}

Status make_status(Code code, std::string message, Scope scope, std::source_location where) {
  Origin origin;
  origin.where = place_of(where);
  return Status(code, scope, std::move(message), std::move(origin));
}

void check_failed(const char* condition, const std::string& message, std::source_location where) {
  std::fprintf(stderr, "sgactor bug: check '%s' failed at %s: %s\n", condition,
               place_of(where).c_str(), message.c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace sgactor
