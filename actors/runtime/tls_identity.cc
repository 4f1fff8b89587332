#include "actors/runtime/tls_identity.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <sstream>

namespace sgactor::actors {
namespace {

struct Free {
  void operator()(EVP_PKEY* p) const { EVP_PKEY_free(p); }
  void operator()(X509* p) const { X509_free(p); }
  void operator()(BIO* p) const { BIO_free(p); }
  void operator()(X509_EXTENSION* p) const { X509_EXTENSION_free(p); }
};
template <class T>
using Owned = std::unique_ptr<T, Free>;

constexpr long kValidSeconds = 30L * 24 * 3600;
constexpr std::string_view kTokenHead = "sgactor join token 1";
constexpr std::string_view kAddressKey = "address ";

Status openssl_failed(const char* what) {
  return internal_error(std::string("openssl: ") + what + " failed");
}

std::string drain(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  return {data, static_cast<size_t>(size)};
}
std::string pem_of(X509* certificate) {
  const Owned<BIO> bio(BIO_new(BIO_s_mem()));
  PEM_write_bio_X509(bio.get(), certificate);
  return drain(bio.get());
}
std::string pem_of(EVP_PKEY* key) {
  const Owned<BIO> bio(BIO_new(BIO_s_mem()));
  PEM_write_bio_PrivateKey(bio.get(), key, nullptr, nullptr, 0, nullptr, nullptr);
  return drain(bio.get());
}

Status add_extension(X509* certificate, X509* issuer, int nid, const char* value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const Owned<X509_EXTENSION> extension(X509V3_EXT_conf_nid(nullptr, &context, nid, value));
  if (!extension || X509_add_ext(certificate, extension.get(), -1) != 1) {
    return openssl_failed("X509_add_ext");
  }
  return {};
}

/// All but extensions and signature.
Result<Owned<X509>> new_certificate(EVP_PKEY* key, const std::string& name, X509* issuer) {
  Owned<X509> out(X509_new());
  std::array<unsigned char, 16> serial{};
  if (!out || RAND_bytes(serial.data(), static_cast<int>(serial.size())) != 1) {
    return openssl_failed("RAND_bytes");
  }
  serial[0] &= 0x7F;
  BIGNUM* number = BN_bin2bn(serial.data(), static_cast<int>(serial.size()), nullptr);
  BN_to_ASN1_INTEGER(number, X509_get_serialNumber(out.get()));
  BN_free(number);
  X509_set_version(out.get(), X509_VERSION_3);
  X509_gmtime_adj(X509_getm_notBefore(out.get()), -3600);
  X509_gmtime_adj(X509_getm_notAfter(out.get()), kValidSeconds);
  X509_set_pubkey(out.get(), key);
  X509_NAME* subject = X509_get_subject_name(out.get());
  X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  X509_set_issuer_name(out.get(), issuer == nullptr ? subject : X509_get_subject_name(issuer));
  return out;
}

class Authority final : public TlsAuthority {
 public:
  Status init() {
    key_.reset(EVP_PKEY_Q_keygen(nullptr, nullptr, "ED25519"));
    if (!key_) return openssl_failed("EVP_PKEY_Q_keygen");
    SGA_ASSIGN(certificate_, new_certificate(key_.get(), "sgactor job", nullptr));
    X509* own = certificate_.get();
    SGA_TRY(add_extension(own, own, NID_basic_constraints, "critical,CA:TRUE,pathlen:0"));
    SGA_TRY(add_extension(own, own, NID_key_usage, "critical,keyCertSign"));
    SGA_TRY(add_extension(own, own, NID_subject_key_identifier, "hash"));
    if (X509_sign(own, key_.get(), nullptr) == 0) return openssl_failed("X509_sign");
    return {};
  }
  Result<TlsIdentity> issue_server() const override {
    return issue("sgactor coordinator", "serverAuth");
  }
  Result<TlsIdentity> issue_member() const override {
    return issue("sgactor member", "clientAuth");
  }

 private:
  Result<TlsIdentity> issue(const std::string& name, const char* usage) const {
    const Owned<EVP_PKEY> key(EVP_PKEY_Q_keygen(nullptr, nullptr, "ED25519"));
    if (!key) return openssl_failed("EVP_PKEY_Q_keygen");
    SGA_ASSIGN(const Owned<X509> out, new_certificate(key.get(), name, certificate_.get()));
    X509* ca = certificate_.get();
    SGA_TRY(add_extension(out.get(), ca, NID_basic_constraints, "critical,CA:FALSE"));
    SGA_TRY(add_extension(out.get(), ca, NID_key_usage, "critical,digitalSignature"));
    SGA_TRY(add_extension(out.get(), ca, NID_ext_key_usage, usage));
    if (X509_sign(out.get(), key_.get(), nullptr) == 0) return openssl_failed("X509_sign");
    return TlsIdentity{pem_of(ca), pem_of(out.get()), pem_of(key.get())};
  }

  Owned<EVP_PKEY> key_;
  Owned<X509> certificate_;
};

Status errno_status(const std::string& path) {
  return invalid_argument(path + ": " + std::strerror(errno));
}

Status write_all(int fd, const std::string& bytes, const std::string& path) {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t n = ::write(fd, bytes.data() + done, bytes.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno_status(path);
    done += static_cast<size_t>(n);
  }
  return {};
}

/// The PEM block of kind `label` in `text`, e.g. its n-th "CERTIFICATE"; empty if there is none.
std::string pem_block(const std::string& text, const std::string& label, int n) {
  const std::string begin = "-----BEGIN " + label + "-----";
  const std::string end = "-----END " + label + "-----\n";
  size_t from = text.find(begin);
  for (; n > 0 && from != std::string::npos; --n) from = text.find(begin, from + begin.size());
  if (from == std::string::npos) return {};
  const size_t to = text.find(end, from);
  return to == std::string::npos ? std::string() : text.substr(from, to + end.size() - from);
}

Result<std::string> read_private_file(const std::string& path) {
  constexpr off_t kMaxTokenBytes = 65536;
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return errno_status(path);
  struct stat info = {};
  ::fstat(fd, &info);
  std::string out;
  Status status;
  if (!S_ISREG(info.st_mode) || info.st_size > kMaxTokenBytes) {
    status = invalid_argument(path + ": not a token of sgactor");
  } else if ((info.st_mode & 077) != 0) {
    status = invalid_argument(fmt::format(
        "{}: others may read this token (mode {:04o}); expected 0600", path, info.st_mode & 07777));
  } else {
    out.resize(static_cast<size_t>(info.st_size));
    const ssize_t n = ::read(fd, out.data(), out.size());
    if (n < 0) status = errno_status(path);
    out.resize(n < 0 ? 0 : static_cast<size_t>(n));
  }
  ::close(fd);
  if (!status.ok()) return status;
  return out;
}

}  // namespace

Result<std::unique_ptr<TlsAuthority>> TlsAuthority::create() {
  auto out = std::make_unique<Authority>();
  SGA_TRY(out->init());
  return std::unique_ptr<TlsAuthority>(std::move(out));
}

Status write_token(const std::string& path, const JoinToken& token) {
  const std::string directory = std::filesystem::path(path).parent_path().string();
  if (!directory.empty() && ::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) {
    return errno_status(directory);
  }
  std::string text = fmt::format("{}\n", kTokenHead);
  for (const std::string& address : token.addresses) text += fmt::format("address {}\n", address);
  text += token.identity.ca + token.identity.certificate + token.identity.key;
  const std::string draft = path + ".new";
  ::unlink(draft.c_str());
  const int fd = ::open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return errno_status(draft);
  const Status written = write_all(fd, text, draft);
  ::close(fd);
  SGA_TRY(written);
  if (::rename(draft.c_str(), path.c_str()) != 0) return errno_status(path);
  return {};
}

Result<JoinToken> read_token(const std::string& path) {
  SGA_ASSIGN(const std::string text, read_private_file(path));
  JoinToken out;
  std::istringstream lines(text);
  std::string line;
  std::getline(lines, line);
  const bool is_token = line == kTokenHead;
  while (std::getline(lines, line) && line.starts_with(kAddressKey)) {
    out.addresses.push_back(line.substr(kAddressKey.size()));
  }
  out.identity.ca = pem_block(text, "CERTIFICATE", 0);
  out.identity.certificate = pem_block(text, "CERTIFICATE", 1);
  out.identity.key = pem_block(text, "PRIVATE KEY", 0);
  if (!is_token || out.identity.ca.empty() || out.identity.certificate.empty() ||
      out.identity.key.empty()) {
    return invalid_argument(path + ": not a token of sgactor");
  }
  return out;
}

Result<HostPort> parse_host_port(const std::string& text) {
  const auto expected = invalid_argument(text + ": expected HOST:PORT");
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) return expected;
  HostPort out;
  out.host = text.substr(0, colon);
  const std::string port = text.substr(colon + 1);
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), out.port);
  if (error != std::errc() || end != port.data() + port.size() || out.port == 0) return expected;
  if (out.host.front() == '[') {
    if (out.host.size() < 3 || out.host.back() != ']') return expected;
    out.host = out.host.substr(1, out.host.size() - 2);
  } else if (out.host.find(':') != std::string::npos) {
    return expected;
  }
  return out;
}

std::string hmac_sha256(std::string_view key, std::string_view message) {
  std::string out(32, '\0');
  unsigned int size = 0;
  HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
       reinterpret_cast<const unsigned char*>(message.data()), message.size(),
       reinterpret_cast<unsigned char*>(out.data()), &size);
  return out;
}

Result<std::string> random_bytes(size_t count) {
  std::string out(count, '\0');
  if (RAND_bytes(reinterpret_cast<unsigned char*>(out.data()), static_cast<int>(count)) != 1) {
    return openssl_failed("RAND_bytes");
  }
  return out;
}

}  // namespace sgactor::actors
