#pragma once
#include "graph/base/status.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace sgactor::transport {

/// What a process' address says. Travels over the authenticated control plane only, yet is decoded
/// with care.
struct ProcessAddress {
  uint64_t host = 0;       ///< equal for processes that can share memory: kernel boot, network name
                           ///< space, user
  std::string local_name;  ///< abstract Unix socket; empty: no shared memory
  std::string tcp_place;   ///< where it listens, "10.0.0.1:41234"; empty: nowhere
  std::string ucx_address;  ///< UCX worker; empty: none
};

std::string encode_address(const ProcessAddress& address);
/// Errors: kInvalidArgument.
Result<ProcessAddress> decode_address(std::string_view bytes);
/// `host` of this process.
uint64_t this_host();

}  // namespace sgactor::transport
