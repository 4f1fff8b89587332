#pragma once
#include "graph/base/status.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace sgactor::actors {

/// Who a process is towards the others of a job, all PEM: the job's CA, and a certificate of that
/// CA with its key. Whoever holds one may take part in the job.
struct TlsIdentity {
  std::string ca;
  std::string certificate;
  std::string key;
};

/// The job's certificate authority: made at start, kept in memory, gone with the process. Ed25519,
/// certificates valid for 30 days from an hour ago (clocks of hosts differ).
class TlsAuthority {
 public:
  static Result<std::unique_ptr<TlsAuthority>> create();
  virtual ~TlsAuthority() = default;
  /// For the process that listens: other processes take no other for it.
  [[nodiscard]] virtual Result<TlsIdentity> issue_server() const = 0;
  /// For a process that joins. Not taken as a server.
  [[nodiscard]] virtual Result<TlsIdentity> issue_member() const = 0;
};

/// What a process needs to join: where the coordinator listens, and an identity.
struct JoinToken {
  std::vector<std::string> addresses;  ///< "host:port", the best first
  TlsIdentity identity;
};
/// Writes the token as `path` with mode 0600, whole or not at all, replacing an older one; its
/// directory is made with mode 0700 if missing. Errors: kInvalidArgument with errno's text.
Status write_token(const std::string& path, const JoinToken& token);
/// Errors: kInvalidArgument naming the file: missing, readable by others (its mode is shown), or no
/// token.
Result<JoinToken> read_token(const std::string& path);

/// "host:port" -> host and port; "[::1]:80" too. Errors: kInvalidArgument "…: expected HOST:PORT".
struct HostPort {
  std::string host;
  uint16_t port = 0;
};
Result<HostPort> parse_host_port(const std::string& text);

/// HMAC-SHA-256 of `message` under `key`, 32 bytes.
std::string hmac_sha256(std::string_view key, std::string_view message);
/// Unpredictable bytes. Errors: kInternal if the system has none.
Result<std::string> random_bytes(size_t count);

}  // namespace sgactor::actors
