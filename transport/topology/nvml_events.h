#pragma once
#include "graph/base/status.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace sgactor::transport {

/// What the driver said of one device.
struct DeviceEvent {
  int32_t device = 0;  ///< index as the CUDA runtime counts
  int32_t xid = 0;
  friend bool operator==(const DeviceEvent&, const DeviceEvent&) = default;
};

/// Where the CUDA runtime's device `index` is to be found by the driver: by its place on the PCI
/// bus, or by (the beginning of) its UUID. `visible` is CUDA_VISIBLE_DEVICES ("2,0",
/// "GPU-8932f937…"); empty: all devices, in the bus's order. Pure. Errors: kInvalidArgument if
/// `visible` has no such entry, or one of a kind that is not followed (a MIG instance).
struct DeviceAddress {
  int32_t bus_index = -1;
  std::string uuid;  ///< if not empty, it counts
};
Result<DeviceAddress> driver_address(int32_t index, const std::string& visible);

/// How many devices the CUDA runtime shows where the driver has `total`: all, or as many entries of
/// `visible` as come before the first that is no device. Pure.
int32_t num_visible_devices(int32_t total, const std::string& visible);

/// XID events of NVIDIA devices, as the management library (NVML) delivers them. A device that has
/// fallen off the bus reports nothing more itself; the wait's error does, and comes out as XID 79:
/// once, and the others are heard as before.
/// No context is made on any device, and nothing is changed. A thread of its own waits; next() and
/// event_fd() are for one other thread.
class NvmlEvents {
 public:
  struct Options {
    std::string file = "libnvidia-ml.so.1";  ///< of the library, as the loader finds it
    std::string visible;  ///< CUDA_VISIBLE_DEVICES of the processes that use the devices
  };
  /// Listens to these devices (indices as CUDA counts). One that cannot be heard is left out, with
  /// a warning; if that is all of them, its error is this one's. Errors: kUnsupported (no library,
  /// no driver, or it delivers no XIDs of a device, with what NVML says), kInvalidArgument as
  /// above.
  static Result<std::unique_ptr<NvmlEvents>> open(const std::vector<int32_t>& devices,
                                                  const Options& options);
  ~NvmlEvents();
  NvmlEvents(const NvmlEvents&) = delete;
  NvmlEvents& operator=(const NvmlEvents&) = delete;

  /// The oldest that was not taken yet. Never waits.
  std::optional<DeviceEvent> next();
  /// For poll(): readable while next() has something.
  [[nodiscard]] int event_fd() const;

 private:
  struct Impl;
  explicit NvmlEvents(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Devices that processes with these options see. Asks the driver, and makes no context; where its
/// library is missing, but `visible` is not, that is believed. Errors: kUnsupported, as above.
Result<int32_t> count_devices(const NvmlEvents::Options& options);

}  // namespace sgactor::transport
