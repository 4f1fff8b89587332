#pragma once
#include "supervision/monitor/device_faults.h"
#include "transport/topology/nvml_events.h"

#include <map>
#include <memory>
#include <string>

namespace sgactor::supervision {

/// Faults that the NVIDIA driver reports of the devices of a node's workers. One thread.
class DriverFaults final : public DeviceFaults {
 public:
  explicit DriverFaults(transport::NvmlEvents::Options options = {})
      : options_(std::move(options)) {}

  /// `worker` runs on this device (index as CUDA counts) from now on; what the driver reported
  /// before is not its. The first call begins to listen, to all of `devices`. Errors: as
  /// NvmlEvents::open; nothing is heard then, and later calls do nothing.
  Status assign(int32_t worker, int32_t device, const std::vector<int32_t>& devices);
  /// The worker has ended.
  void forget(int32_t worker) { device_of_.erase(worker); }
  /// A fault of a device on which several workers run is one of each.
  std::optional<DeviceFault> next() override;
  /// For poll(); -1: nothing is listened to.
  [[nodiscard]] int event_fd() const { return events_ == nullptr ? -1 : events_->event_fd(); }

 private:
  void take();

  transport::NvmlEvents::Options options_;
  bool tried_ = false;
  std::unique_ptr<transport::NvmlEvents> events_;
  std::map<int32_t, int32_t> device_of_;  ///< by worker
  std::deque<DeviceFault> waiting_;
};

}  // namespace sgactor::supervision
