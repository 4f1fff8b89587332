#include "transport/topology/nvml_devices.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>

namespace sgactor::transport {
namespace {

// NVML's binary interface, declared here since its header is in few installations. Versioned names
// ("_v2") keep their layout.
using NvmlDevice = void*;
struct NvmlMemory {
  unsigned long long total;  // NOLINT(google-runtime-int): as NVML declares it
  unsigned long long free;   // NOLINT(google-runtime-int)
  unsigned long long used;   // NOLINT(google-runtime-int)
};
struct NvmlPciInfo {
  std::array<char, 16> legacy_bus_id;
  unsigned int domain;
  unsigned int bus;
  unsigned int device;
  unsigned int device_id;
  unsigned int subsystem_id;
  std::array<char, 32> bus_id;
};
static_assert(sizeof(NvmlPciInfo) == 68);

constexpr int kNvmlOk = 0;
constexpr unsigned int kMostLinks = 18;  // NVML_NVLINK_MAX_LINKS
constexpr size_t kTextBytes = 96;        // both NVML_DEVICE_NAME_V2_ and _UUID_V2_BUFFER_SIZE

/// Functions that every driver of the last ten years has come first; the others may be missing.
struct Nvml {
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  const char* (*error_string)(int) = nullptr;
  int (*count)(unsigned int*) = nullptr;
  int (*by_index)(unsigned int, NvmlDevice*) = nullptr;
  int (*name)(NvmlDevice, char*, unsigned int) = nullptr;
  int (*memory)(NvmlDevice, NvmlMemory*) = nullptr;
  int (*uuid)(NvmlDevice, char*, unsigned int) = nullptr;
  int (*pci)(NvmlDevice, NvmlPciInfo*) = nullptr;
  int (*link_state)(NvmlDevice, unsigned int, unsigned int*) = nullptr;
  int (*pcie_generation)(NvmlDevice, unsigned int*) = nullptr;
  int (*pcie_width)(NvmlDevice, unsigned int*) = nullptr;
};

Status absent(const std::string& text) {
  return make_status(Code::kUnsupported, text, Scope::kDevice);
}

template <class Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

/// The library stays loaded: it keeps threads and handlers of its own.
Result<Nvml> load(const std::string& file) {
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = dlerror();
    return absent(why == nullptr ? file : why);
  }
  Nvml nvml;
  const bool all = find(library, "nvmlInit_v2", nvml.init) &&
                   find(library, "nvmlShutdown", nvml.shutdown) &&
                   find(library, "nvmlErrorString", nvml.error_string) &&
                   find(library, "nvmlDeviceGetCount_v2", nvml.count) &&
                   find(library, "nvmlDeviceGetHandleByIndex_v2", nvml.by_index) &&
                   find(library, "nvmlDeviceGetName", nvml.name) &&
                   find(library, "nvmlDeviceGetMemoryInfo", nvml.memory);
  if (!all) return absent(file + ": too old, it does not describe devices");
  find(library, "nvmlDeviceGetUUID", nvml.uuid);
  find(library, "nvmlDeviceGetPciInfo_v3", nvml.pci);
  find(library, "nvmlDeviceGetNvLinkState", nvml.link_state);
  find(library, "nvmlDeviceGetMaxPcieLinkGeneration", nvml.pcie_generation);
  find(library, "nvmlDeviceGetMaxPcieLinkWidth", nvml.pcie_width);
  return nvml;
}

template <class Function>
std::string text_of(Function function, NvmlDevice device) {
  std::array<char, kTextBytes> text{};
  if (function == nullptr || function(device, text.data(), text.size()) != kNvmlOk) return {};
  text.back() = 0;
  return text.data();
}

int32_t number_of(int (*function)(NvmlDevice, unsigned int*), NvmlDevice device) {
  unsigned int value = 0;
  const bool known = function != nullptr && function(device, &value) == kNvmlOk;
  return known ? static_cast<int32_t>(value) : 0;
}

NvidiaDevice describe(const Nvml& nvml, NvmlDevice device) {
  NvidiaDevice out;
  out.name = text_of(nvml.name, device);
  out.uuid = text_of(nvml.uuid, device);
  NvmlMemory memory{};
  if (nvml.memory(device, &memory) == kNvmlOk) {
    out.memory_bytes = static_cast<int64_t>(memory.total);
  }
  NvmlPciInfo pci{};
  if (nvml.pci != nullptr && nvml.pci(device, &pci) == kNvmlOk) {
    pci.bus_id.back() = 0;
    out.pci = pci.bus_id.data();
  }
  for (unsigned int link = 0; nvml.link_state != nullptr && link < kMostLinks; ++link) {
    unsigned int active = 0;
    if (nvml.link_state(device, link, &active) == kNvmlOk && active != 0) ++out.nvlinks;
  }
  out.pcie_generation = number_of(nvml.pcie_generation, device);
  out.pcie_width = number_of(nvml.pcie_width, device);
  return out;
}

}  // namespace

Result<std::vector<NvidiaDevice>> list_nvidia_devices(const std::string& library) {
  SGA_ASSIGN(const Nvml nvml, load(library));
  if (const int rc = nvml.init(); rc != kNvmlOk) {
    const char* text = nvml.error_string(rc);
    return absent(fmt::format("nvml: {}", text == nullptr ? "cannot start" : text));
  }
  std::vector<NvidiaDevice> out;
  unsigned int count = 0;
  const bool counted = nvml.count(&count) == kNvmlOk;
  for (unsigned int i = 0; counted && i < count; ++i) {
    NvmlDevice device = nullptr;
    NvidiaDevice described;
    if (nvml.by_index(i, &device) == kNvmlOk) described = describe(nvml, device);
    described.index = static_cast<int32_t>(i);
    out.push_back(std::move(described));
  }
  nvml.shutdown();
  if (!counted) return absent("nvml: devices cannot be counted");
  return out;
}

}  // namespace sgactor::transport
