#pragma once
#include "apps/sgactor/net_address.h"
#include "graph/base/status.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace sgactor::apps {

struct HttpReply {
  int status = 0;
  std::string type;  ///< of its content, as "text/plain; charset=utf-8"
  std::string body;
};

/// Answers GET on one address, with threads of its own: at most four connections at a time, one
/// request each, of 8 KiB at most, over within two seconds or closed. Other methods are answered
/// 405, what is no HTTP 400 or nothing. Reads no body. Plain HTTP, for whoever reaches the address.
class HttpServer {
 public:
  /// Of a path without its query. Called by the server's threads, several at a time; may throw,
  /// which is answered 500.
  using Answer = std::function<HttpReply(const std::string& path)>;

  /// Binds exactly this address (a name: the first of its addresses that can be bound) and answers
  /// from then on. Errors: kUnsupported, scope kDevice, with the system's text.
  static Result<std::unique_ptr<HttpServer>> listen(const NetAddress& address, Answer answer);
  /// Closes what is open and waits for its threads, not for clients.
  virtual ~HttpServer() = default;
  /// That it is bound to: numbers, with the port that was free.
  [[nodiscard]] virtual const NetAddress& address() const = 0;
};

/// One GET, of at most `limit_ms` to connect and again between pieces. Follows no redirection. A
/// body above 16 MiB is an error. Errors: kUnsupported, scope kDevice: "does not answer: …".
Result<HttpReply> http_get(const NetAddress& address, const std::string& path, int64_t limit_ms);

}  // namespace sgactor::apps
