// The part of NVML that nvml_devices.cc calls, without a driver: two devices, the second of which
// says as little as it may.
#include <cstdio>
#include <cstring>

// NOLINTBEGIN: the names and types are NVML's
namespace {
char device_of[2];
bool is_first(void* device) { return device == device_of; }
}  // namespace

extern "C" {

struct Memory {
  unsigned long long total, free, used;
};
struct PciInfo {
  char legacy[16];
  unsigned int domain, bus, device, device_id, subsystem_id;
  char bus_id[32];
};

int nvmlInit_v2() { return 0; }
int nvmlShutdown() { return 0; }
const char* nvmlErrorString(int) { return "Error"; }
int nvmlDeviceGetCount_v2(unsigned int* count) {
  *count = 2;
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void** device) {
  if (index > 1) return 2;
  *device = device_of + index;
  return 0;
}
int nvmlDeviceGetName(void* device, char* text, unsigned int length) {
  std::snprintf(text, length, "%s", is_first(device) ? "NVIDIA H200" : "NVIDIA Unheard-of 1");
  return 0;
}
int nvmlDeviceGetMemoryInfo(void* device, Memory* memory) {
  *memory = {is_first(device) ? 150754820096ULL : 8589934592ULL, 1, 2};
  return 0;
}
int nvmlDeviceGetUUID(void* device, char* text, unsigned int length) {
  if (!is_first(device)) return 3;
  std::snprintf(text, length, "GPU-1");
  return 0;
}
int nvmlDeviceGetPciInfo_v3(void* device, PciInfo* info) {
  if (!is_first(device)) return 3;
  std::memset(info, 0, sizeof *info);
  std::snprintf(info->bus_id, sizeof info->bus_id, "00000000:3B:00.0");
  return 0;
}
int nvmlDeviceGetNvLinkState(void* device, unsigned int link, unsigned int* active) {
  if (!is_first(device)) return 3;
  *active = link < 12 ? 1 : 0;
  return 0;
}
int nvmlDeviceGetMaxPcieLinkGeneration(void* device, unsigned int* generation) {
  *generation = 5;
  return is_first(device) ? 0 : 3;
}
int nvmlDeviceGetMaxPcieLinkWidth(void* device, unsigned int* width) {
  *width = 16;
  return is_first(device) ? 0 : 3;
}
}
// NOLINTEND
