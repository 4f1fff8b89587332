#include "tests/unit/transport/topology/fake_nvml.h"

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <set>
#include <utility>

// NOLINTBEGIN: the names and types are NVML's
namespace {

constexpr int kDevices = 4;
struct State {
  std::mutex mutex;
  std::condition_variable raised;
  std::deque<std::pair<int, int>> events;
  std::set<int> listening, lost;
  int init_rc = 0;
  int open = 0;
} state;
char device_of[kDevices];
int index_of(void* device) { return static_cast<int>(static_cast<char*>(device) - device_of); }

}  // namespace

extern "C" {

struct EventData {
  void* device;
  unsigned long long type, data;
  unsigned int gpu_instance, compute_instance;
};

void fake_nvml_raise(int bus_index, int xid) {
  const std::lock_guard lock(state.mutex);
  if (state.listening.contains(bus_index)) state.events.emplace_back(bus_index, xid);
  state.raised.notify_all();
}
void fake_nvml_lose(int bus_index) {
  const std::lock_guard lock(state.mutex);
  state.lost.insert(bus_index);
  state.raised.notify_all();
}
void fake_nvml_init_fails(int rc) { state.init_rc = rc; }
int fake_nvml_open() { return state.open; }

int nvmlInit_v2() {
  if (state.init_rc == 0) ++state.open;
  return state.init_rc;
}
int nvmlShutdown() {
  --state.open;
  state.lost.clear();
  return 0;
}
const char* nvmlErrorString(int rc) { return rc == 9 ? "Driver Not Loaded" : "Error"; }
int nvmlDeviceGetCount_v2(unsigned int* count) {
  *count = kDevices;
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void** device) {
  if (index >= kDevices) return 2;
  *device = device_of + index;
  return 0;
}
int nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {
  if (std::strcmp(uuid, "GPU-3") != 0) return 6;
  *device = device_of + 3;
  return 0;
}
int nvmlDeviceGetTemperature(void* device, int, unsigned int* degrees) {
  const std::lock_guard lock(state.mutex);
  *degrees = 40;
  return state.lost.contains(index_of(device)) ? 15 : 0;
}
int nvmlEventSetCreate(void** set) {
  *set = &state;
  ++state.open;
  return 0;
}
int nvmlEventSetFree(void*) {
  --state.open;
  state.listening.clear();
  state.events.clear();
  return 0;
}
int nvmlDeviceRegisterEvents(void* device, unsigned long long types, void*) {
  state.listening.insert(index_of(device));
  return types == 8 ? 0 : 3;
}
int nvmlEventSetWait_v2(void*, EventData* event, unsigned int ms) {
  std::unique_lock lock(state.mutex);
  state.raised.wait_for(lock, std::chrono::milliseconds(ms),
                        [] { return !state.events.empty() || !state.lost.empty(); });
  if (!state.events.empty()) {
    const auto [index, xid] = state.events.front();
    state.events.pop_front();
    *event = {device_of + index, 8, static_cast<unsigned long long>(xid), 0, 0};
    return 0;
  }
  return state.lost.empty() ? 10 : 15;
}
}
// NOLINTEND
