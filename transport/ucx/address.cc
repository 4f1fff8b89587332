#include "transport/ucx/address.h"

#include "graph/base/hash.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <vector>

namespace sgactor::transport {
namespace {

constexpr std::string_view kMagic = "SGADDR2\n";
constexpr size_t kMaxString = 4096;

void put(std::string& out, const void* bytes, size_t n) {
  out.append(static_cast<const char*>(bytes), n);
}

void put_string(std::string& out, std::string_view text) {
  const auto n = static_cast<uint32_t>(text.size());
  put(out, &n, sizeof(n));
  out += text;
}

bool take(std::string_view& in, void* to, size_t n) {
  if (in.size() < n) return false;
  std::memcpy(to, in.data(), n);
  in.remove_prefix(n);
  return true;
}

bool take_string(std::string_view& in, std::string& to) {
  uint32_t n = 0;
  if (!take(in, &n, sizeof(n)) || n > kMaxString || n > in.size()) return false;
  to = in.substr(0, n);
  in.remove_prefix(n);
  return true;
}

}  // namespace

std::string encode_address(const ProcessAddress& address) {
  std::string out(kMagic);
  put(out, &address.host, sizeof(address.host));
  put_string(out, address.local_name);
  put_string(out, address.tcp_place);
  put_string(out, address.ucx_address);
  return out;
}

Result<ProcessAddress> decode_address(std::string_view bytes) {
  ProcessAddress address;
  if (!bytes.starts_with(kMagic)) return invalid_argument("not a process' address");
  bytes.remove_prefix(kMagic.size());
  if (!take(bytes, &address.host, sizeof(address.host)) ||
      !take_string(bytes, address.local_name) || !take_string(bytes, address.tcp_place) ||
      !take_string(bytes, address.ucx_address) || !bytes.empty()) {
    return invalid_argument("a process' address that is cut");
  }
  return address;
}

uint64_t this_host() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  std::getline(file, boot);
  struct stat net {};
  const bool has_net = stat("/proc/self/ns/net", &net) == 0;
  return hash64(fmt::format("{} {} {} {}", boot, has_net ? net.st_dev : 0, has_net ? net.st_ino : 0,
                            getuid()));
}

}  // namespace sgactor::transport
