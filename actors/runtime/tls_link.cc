#include "actors/runtime/tls_link.h"

#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace sgactor::actors {
namespace {

constexpr size_t kHeadBytes = 4;
constexpr size_t kReadBytes = 65536;

struct Free {
  void operator()(EVP_PKEY* p) const { EVP_PKEY_free(p); }
  void operator()(X509* p) const { X509_free(p); }
  void operator()(BIO* p) const { BIO_free(p); }
  void operator()(SSL_CTX* p) const { SSL_CTX_free(p); }
};
template <class T>
using Owned = std::unique_ptr<T, Free>;

Owned<BIO> reader(const std::string& text) {
  return Owned<BIO>(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}
Owned<X509> certificate(const std::string& pem) {
  return Owned<X509>(PEM_read_bio_X509(reader(pem).get(), nullptr, nullptr, nullptr));
}
/// No passphrase is ever asked for on the terminal.
int no_passphrase(char*, int, int, void*) { return 0; }

std::string openssl_reason() {
  const unsigned long code = ERR_get_error();
  ERR_clear_error();
  if (code == 0) return "closed";
  const char* reason = ERR_reason_error_string(code);
  return reason != nullptr ? reason : "TLS error";
}

}  // namespace

Result<std::shared_ptr<TlsContext>> TlsContext::create(const TlsIdentity& identity) {
  const Owned<X509> ca = certificate(identity.ca);
  const Owned<X509> own = certificate(identity.certificate);
  const Owned<EVP_PKEY> key(
      PEM_read_bio_PrivateKey(reader(identity.key).get(), nullptr, no_passphrase, nullptr));
  Owned<SSL_CTX> context(SSL_CTX_new(TLS_method()));
  if (!ca || !own || !key || !context) {
    ERR_clear_error();
    return invalid_argument("TLS identity: CA, certificate and key are all needed");
  }
  if (SSL_CTX_use_certificate(context.get(), own.get()) != 1 ||
      SSL_CTX_use_PrivateKey(context.get(), key.get()) != 1 ||
      SSL_CTX_check_private_key(context.get()) != 1 ||
      X509_STORE_add_cert(SSL_CTX_get_cert_store(context.get()), ca.get()) != 1 ||
      SSL_CTX_set_min_proto_version(context.get(), TLS1_3_VERSION) != 1) {
    return invalid_argument("TLS identity: " + openssl_reason());
  }
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  SSL_CTX_set_mode(context.get(), SSL_MODE_ENABLE_PARTIAL_WRITE |
                                      SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                      SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  SSL_CTX_set_num_tickets(context.get(), 0);
  SSL_CTX_set_options(context.get(), SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION);
  SSL_CTX_set_max_cert_list(context.get(), 16384);
  return std::shared_ptr<TlsContext>(new TlsContext(context.release()));
}

TlsContext::~TlsContext() { SSL_CTX_free(context_); }

TlsLink::TlsLink(const TlsContext& context, int fd, bool accepts, std::string address,
                 int64_t now_ms)
    : last_heard_ms(now_ms),
      last_sent_ms(now_ms),
      ssl_(SSL_new(context.get())),
      fd_(fd),
      accepts_(accepts),
      address_(std::move(address)) {
  if (ssl_ == nullptr) return;
  SSL_set_fd(ssl_, fd);
  if (accepts) {
    SSL_set_accept_state(ssl_);
  } else {
    SSL_set_connect_state(ssl_);
  }
}

TlsLink::~TlsLink() {
  if (open_) SSL_shutdown(ssl_);  // tells the other side if the socket takes it; waits for nobody
  SSL_free(ssl_);
  ERR_clear_error();
  ::close(fd_);
}

Status TlsLink::failed(int rc, const char* when) {
  const int error = SSL_get_error(ssl_, rc);
  if (error == SSL_ERROR_WANT_READ) return {};
  if (error == SSL_ERROR_WANT_WRITE) {
    wants_write_ = true;
    return {};
  }
  if (error == SSL_ERROR_ZERO_RETURN) {
    return make_status(Code::kDisconnected, address_ + ": closed by the other side");
  }
  if (error == SSL_ERROR_SYSCALL) {
    const std::string why = errno != 0 ? std::strerror(errno) : "closed";
    ERR_clear_error();
    return make_status(Code::kDisconnected, fmt::format("{}: {} {}", address_, when, why));
  }
  const long verdict = SSL_get_verify_result(ssl_);
  const std::string reason = openssl_reason();
  if (verdict != X509_V_OK) {
    return corruption(
        fmt::format("{}: not of this job ({})", address_, X509_verify_cert_error_string(verdict)));
  }
  return corruption(fmt::format("{}: {} {}", address_, when, reason));
}

Status TlsLink::shake_hands() {
  if (ssl_ == nullptr) return internal_error("openssl: SSL_new failed");
  ERR_clear_error();
  errno = 0;
  const int rc = SSL_do_handshake(ssl_);
  if (rc == 1) {
    open_ = true;
    return {};
  }
  return failed(rc, "handshake:");
}

bool TlsLink::just_opened() {
  if (!open_ || told_open_) return false;
  told_open_ = true;
  return true;
}

Status TlsLink::pump() {
  wants_write_ = false;
  if (!open_) SGA_TRY(shake_hands());
  return open_ ? write_some() : Status();
}

Status TlsLink::write_some() {
  while (!outgoing_.empty()) {
    const std::string& first = outgoing_.front();
    ERR_clear_error();
    errno = 0;
    size_t written = 0;
    const int rc =
        SSL_write_ex(ssl_, first.data() + sent_of_first_, first.size() - sent_of_first_, &written);
    if (rc != 1) return failed(rc, "sending:");
    sent_of_first_ += written;
    queued_bytes_ -= written;
    if (sent_of_first_ < first.size()) continue;
    outgoing_.pop_front();
    sent_of_first_ = 0;
  }
  return {};
}

void TlsLink::queue_frame(std::string_view bytes) {
  const auto size = static_cast<uint32_t>(bytes.size());
  std::string frame;
  frame.reserve(kHeadBytes + bytes.size());
  for (size_t i = 0; i < kHeadBytes; ++i) {
    frame.push_back(static_cast<char>(size >> (8 * i) & 0xFF));
  }
  frame.append(bytes);
  queued_bytes_ += frame.size();
  outgoing_.push_back(std::move(frame));
}

Result<bool> TlsLink::read_frame(size_t limit, std::string& out) {
  if (!open_) return false;
  size_t wanted = kHeadBytes;
  while (true) {
    if (incoming_.size() >= kHeadBytes) {
      uint32_t size = 0;
      for (size_t i = 0; i < kHeadBytes; ++i) {
        size |= static_cast<uint32_t>(static_cast<unsigned char>(incoming_[i])) << (8 * i);
      }
      if (size > limit) {
        return corruption(
            fmt::format("{}: a frame of {} bytes, at most {}", address_, size, limit));
      }
      wanted = kHeadBytes + size;
      if (incoming_.size() == wanted) {
        out = incoming_.substr(kHeadBytes);
        incoming_.clear();
        incoming_.shrink_to_fit();
        return true;
      }
    }
    std::array<char, kReadBytes> buffer;
    const size_t most = std::min(buffer.size(), wanted - incoming_.size());
    ERR_clear_error();
    errno = 0;
    size_t got = 0;
    const int rc = SSL_read_ex(ssl_, buffer.data(), most, &got);
    if (rc != 1) {
      SGA_TRY(failed(rc, "receiving:"));
      return false;
    }
    incoming_.append(buffer.data(), got);
  }
}

}  // namespace sgactor::actors
