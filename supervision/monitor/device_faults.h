#pragma once
#include "supervision/policy/fault_policy.h"

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

namespace sgactor::supervision {

/// What a device's driver has reported.
struct DeviceFault {
  int32_t worker = -1;  ///< index of the worker that the device belongs to
  int32_t xid = 0;
};

/// Where a node hears of device faults: the driver's events, or an injector. One thread; next()
/// waits for nothing.
class DeviceFaults {
 public:
  virtual ~DeviceFaults() = default;
  /// The oldest that was not taken yet.
  virtual std::optional<DeviceFault> next() = 0;
};

/// Reports what it is told to: fault injection.
class InjectedDeviceFaults final : public DeviceFaults {
 public:
  void add(DeviceFault fault) { waiting_.push_back(fault); }
  std::optional<DeviceFault> next() override;

 private:
  std::deque<DeviceFault> waiting_;
};

/// What the table asks for.
Action action_of(const DeviceFault& fault);
/// "XID 79 (GPU_HAS_FALLEN_OFF_THE_BUS): drain host".
std::string to_string(const DeviceFault& fault);

}  // namespace sgactor::supervision
