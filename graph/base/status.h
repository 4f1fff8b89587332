#pragma once
#include <cstdint>
#include <memory>
#include <source_location>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace sgactor {

/// What happened. The list is closed: a new kind of failure maps to the nearest code and says more
/// in the message.
enum class Code : uint8_t {
  kOk = 0,
  kInvalidArgument,  ///< the user's input (command, job file, data, checkpoint of another schema)
                     ///< is wrong
  kInvalidPlan,      ///< a graph or plan breaks one of its rules
  kUnsupported,      ///< well-formed, but this build or device cannot do it
  kOutOfMemory,
  kTimeout,
  kDisconnected,
  kOverloaded,
  kDeviceFault,
  kCorruption,  ///< bytes that fail their checksum, or a file that is cut
  kCancelled,
  kInternal,
};

/// How much has to be thrown away. Ordered: a larger scope includes the smaller ones.
enum class Scope : uint8_t { kCall = 0, kChannel, kActor, kDevice, kRank, kJob };

/// Where a failure was first decided. Fields that are not known stay at their defaults.
struct Origin {
  int32_t rank = -1;  ///< logical rank
  std::string actor;  ///< actor or op name
  int64_t step = -1;
  int64_t generation = -1;
  std::string where;  ///< "file:line"
  friend bool operator==(const Origin&, const Origin&) = default;
};

/// Outcome of a call. Cheap when ok (no allocation). Copyable, crosses processes.
/// Thread-compatible: const access from many threads is fine.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, Scope scope, std::string message, Origin origin = {});

  [[nodiscard]] bool ok() const { return !rep_; }
  [[nodiscard]] Code code() const { return rep_ ? rep_->code : Code::kOk; }
  [[nodiscard]] Scope scope() const { return rep_ ? rep_->scope : Scope::kCall; }
  [[nodiscard]] const std::string& message() const;
  [[nodiscard]] const Origin& origin() const;
  /// "invalid argument (call): the message [rank 3, step 7, file:line]"
  [[nodiscard]] std::string to_string() const;
  /// Same status with `prefix + ": "` before the message; ok stays ok.
  [[nodiscard]] Status with_context(std::string_view prefix) const;
  [[nodiscard]] Status with_origin(Origin origin) const;

 private:
  struct Rep {
    Code code;
    Scope scope;
    std::string message;
    Origin origin;
  };
  // Value semantics through a shared immutable representation, so that a Status is one pointer wide
  // when ok.
  std::shared_ptr<const Rep> rep_;
};

std::string_view to_string(Code code);
std::string_view to_string(Scope scope);

/// Makes a Status of scope kCall that remembers the caller's file and line.
Status make_status(Code code, std::string message, Scope scope = Scope::kCall,
                   std::source_location where = std::source_location::current());
inline Status invalid_argument(std::string message,
                               std::source_location where = std::source_location::current()) {
  return make_status(Code::kInvalidArgument, std::move(message), Scope::kCall, where);
}
inline Status invalid_plan(std::string message,
                           std::source_location where = std::source_location::current()) {
  return make_status(Code::kInvalidPlan, std::move(message), Scope::kCall, where);
}
inline Status unsupported(std::string message,
                          std::source_location where = std::source_location::current()) {
  return make_status(Code::kUnsupported, std::move(message), Scope::kCall, where);
}
inline Status corruption(std::string message,
                         std::source_location where = std::source_location::current()) {
  return make_status(Code::kCorruption, std::move(message), Scope::kCall, where);
}
inline Status internal_error(std::string message,
                             std::source_location where = std::source_location::current()) {
  return make_status(Code::kInternal, std::move(message), Scope::kActor, where);
}

/// A value or the Status that says why there is none. Never holds an ok Status.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value)
      : rep_(std::in_place_index<0>, std::move(value)) {}  // NOLINT(google-explicit-constructor)
  Result(Status status)
      : rep_(std::in_place_index<1>, std::move(status)) {}  // NOLINT(google-explicit-constructor)

  [[nodiscard]] bool ok() const { return rep_.index() == 0; }
  [[nodiscard]] Status status() const { return ok() ? Status() : std::get<1>(rep_); }
  /// Pre: ok().
  [[nodiscard]] T& value() & { return std::get<0>(rep_); }
  [[nodiscard]] const T& value() const& { return std::get<0>(rep_); }
  [[nodiscard]] T&& value() && { return std::get<0>(std::move(rep_)); }
  T* operator->() { return &std::get<0>(rep_); }
  const T* operator->() const { return &std::get<0>(rep_); }
  T& operator*() & { return std::get<0>(rep_); }
  const T& operator*() const& { return std::get<0>(rep_); }
  T&& operator*() && { return std::get<0>(std::move(rep_)); }

 private:
  std::variant<T, Status> rep_;
};

[[noreturn]] void check_failed(const char* condition, const std::string& message,
                               std::source_location where = std::source_location::current());

}  // namespace sgactor

#define SGA_CONCAT_INNER(a, b) a##b
#define SGA_CONCAT(a, b) SGA_CONCAT_INNER(a, b)

/// Returns the Status of `expr` from the enclosing function if it is not ok.
#define SGA_TRY(expr)                                                               \
  do {                                                                              \
    if (::sgactor::Status sga_status = (expr); !sga_status.ok()) return sga_status; \
  } while (false)

/// `SGA_ASSIGN(auto x, f());` binds the value of a Result or returns its Status.
#define SGA_ASSIGN(var, expr) SGA_ASSIGN_IMPL(SGA_CONCAT(sga_result_, __LINE__), var, expr)
#define SGA_ASSIGN_IMPL(tmp, var, expr) \
  auto tmp = (expr);                    \
  if (!tmp.ok()) return tmp.status();   \
  var = std::move(tmp).value()

/// Aborts on our own bugs. Never reachable from user input, plan bytes or the network.
#define SGA_CHECK(cond, message)                            \
  do {                                                      \
    if (!(cond)) ::sgactor::check_failed(#cond, (message)); \
  } while (false)
