#include "supervision/monitor/driver_faults.h"

namespace sgactor::supervision {

Status DriverFaults::assign(int32_t worker, int32_t device, const std::vector<int32_t>& devices) {
  if (!tried_) {
    tried_ = true;
    SGA_ASSIGN(events_, transport::NvmlEvents::open(devices, options_));
  }
  if (events_ == nullptr) return {};
  take();
  device_of_[worker] = device;
  return {};
}

void DriverFaults::take() {
  if (events_ == nullptr) return;
  while (const auto event = events_->next()) {
    for (const auto& [worker, device] : device_of_) {
      if (device == event->device) waiting_.push_back({worker, event->xid});
    }
  }
}

std::optional<DeviceFault> DriverFaults::next() {
  take();
  if (waiting_.empty()) return std::nullopt;
  const DeviceFault fault = waiting_.front();
  waiting_.pop_front();
  return fault;
}

}  // namespace sgactor::supervision
