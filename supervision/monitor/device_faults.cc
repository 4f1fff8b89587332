#include "supervision/monitor/device_faults.h"

#include <fmt/format.h>

namespace sgactor::supervision {

std::optional<DeviceFault> InjectedDeviceFaults::next() {
  if (waiting_.empty()) return std::nullopt;
  const DeviceFault fault = waiting_.front();
  waiting_.pop_front();
  return fault;
}

Action action_of(const DeviceFault& fault) { return action_of(xid_action(fault.xid)); }

std::string to_string(const DeviceFault& fault) {
  const std::string_view name = xid_name(fault.xid);
  return fmt::format("XID {} ({}): {}", fault.xid, name.empty() ? "unknown" : name,
                     to_string(action_of(fault)));
}

}  // namespace sgactor::supervision
