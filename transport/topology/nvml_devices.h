#pragma once
#include "graph/base/status.h"

#include <cstdint>
#include <string>
#include <vector>

namespace sgactor::transport {

/// An NVIDIA device as the driver describes it. 0 or empty: it does not say.
struct NvidiaDevice {
  int32_t index = 0;  ///< in the order of the PCI bus; CUDA_VISIBLE_DEVICES does not count here
  std::string name;   ///< "NVIDIA H200"
  std::string uuid;   ///< "GPU-8932f937-…"
  std::string pci;    ///< "00000000:3B:00.0"
  int64_t memory_bytes = 0;
  int32_t nvlinks = 0;          ///< links that are active
  int32_t pcie_generation = 0;  ///< the most that device and slot do together
  int32_t pcie_width = 0;       ///< lanes, likewise
};

/// All NVIDIA devices of this host, by the management library `library` (NVML), as the loader finds
/// it. Makes no context on any device and changes nothing. Errors: kUnsupported: no such library or
/// no driver, with what the loader or NVML says.
Result<std::vector<NvidiaDevice>> list_nvidia_devices(
    const std::string& library = "libnvidia-ml.so.1");

}  // namespace sgactor::transport
