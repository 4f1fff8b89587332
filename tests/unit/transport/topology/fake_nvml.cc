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
struct EventSet {
  std::set<int> listening;
  std::deque<std::pair<int, int>> events;
};
struct State {
  std::mutex mutex;
  std::condition_variable raised;
  std::set<EventSet*> sets;
  std::set<int> lost;
  int init_rc = 0;
  int open = 0;
} state;
char device_of[kDevices];
int index_of(void* device) { return static_cast<int>(static_cast<char*>(device) - device_of); }
constexpr int kDeaf = 2;  // the device whose events cannot be heard, if told so
bool is_deaf = false;

}  // namespace

extern "C" {

struct EventData {
  void* device;
  unsigned long long type, data;
  unsigned int gpu_instance, compute_instance;
};

void fake_nvml_raise(int bus_index, int xid) {
  const std::lock_guard lock(state.mutex);
  for (EventSet* set : state.sets) {
    if (set->listening.contains(bus_index)) set->events.emplace_back(bus_index, xid);
  }
  state.raised.notify_all();
}
void fake_nvml_lose(int bus_index) {
  const std::lock_guard lock(state.mutex);
  state.lost.insert(bus_index);
  state.raised.notify_all();
}
void fake_nvml_deafen(bool deaf) { is_deaf = deaf; }
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
  const std::lock_guard lock(state.mutex);
  *set = *state.sets.insert(new EventSet).first;
  ++state.open;
  return 0;
}
int nvmlEventSetFree(void* set) {
  const std::lock_guard lock(state.mutex);
  state.sets.erase(static_cast<EventSet*>(set));
  delete static_cast<EventSet*>(set);
  --state.open;
  return 0;
}
int nvmlDeviceRegisterEvents(void* device, unsigned long long types, void* set) {
  const std::lock_guard lock(state.mutex);
  if (is_deaf && index_of(device) == kDeaf) return 3;
  if (state.lost.contains(index_of(device))) return 15;
  static_cast<EventSet*>(set)->listening.insert(index_of(device));
  return types == 8 ? 0 : 3;
}
int nvmlEventSetWait_v2(void* waits_on, EventData* event, unsigned int ms) {
  std::unique_lock lock(state.mutex);
  EventSet& set = *static_cast<EventSet*>(waits_on);
  const auto broken = [&set] {
    for (const int index : set.listening) {
      if (state.lost.contains(index)) return true;
    }
    return false;
  };
  state.raised.wait_for(lock, std::chrono::milliseconds(ms),
                        [&] { return !set.events.empty() || broken(); });
  if (broken()) return 15;  // whatever the other devices have to say
  if (set.events.empty()) return 10;
  const auto [index, xid] = set.events.front();
  set.events.pop_front();
  *event = {device_of + index, 8, static_cast<unsigned long long>(xid), 0, 0};
  return 0;
}
}
// NOLINTEND
