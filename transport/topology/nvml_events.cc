#include "transport/topology/nvml_events.h"

#include "graph/base/log.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <limits>
#include <mutex>
#include <set>
#include <string_view>
#include <thread>
#include <utility>

namespace sgactor::transport {
namespace {

// NVML's binary interface, declared here since its header is in few installations. Versioned names
// ("_v2") keep their layout.
using NvmlDevice = void*;
using NvmlEventSet = void*;
struct NvmlEventData {
  NvmlDevice device;
  unsigned long long type;  // NOLINT(google-runtime-int): as NVML declares it
  unsigned long long data;  // NOLINT(google-runtime-int)
  unsigned int gpu_instance;
  unsigned int compute_instance;
};
static_assert(sizeof(NvmlEventData) == 32);
constexpr unsigned long long kXidEvent = 0x8;  // NOLINT(google-runtime-int)
constexpr int kNvmlOk = 0;
constexpr int kNvmlTimeout = 10;
constexpr int kNvmlGpuIsLost = 15;
constexpr int32_t kXidFallenOffTheBus = 79;
// How long the end of this object may have to wait.
constexpr unsigned int kWaitMs = 100;
constexpr int kMostErrors = 10;

struct Nvml {
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  const char* (*error_string)(int) = nullptr;
  int (*count)(unsigned int*) = nullptr;
  int (*by_index)(unsigned int, NvmlDevice*) = nullptr;
  int (*by_uuid)(const char*, NvmlDevice*) = nullptr;
  int (*temperature)(NvmlDevice, int, unsigned int*) = nullptr;
  int (*make_set)(NvmlEventSet*) = nullptr;
  int (*free_set)(NvmlEventSet) = nullptr;
  int (*listen)(NvmlDevice, unsigned long long, NvmlEventSet) = nullptr;  // NOLINT
  int (*wait)(NvmlEventSet, NvmlEventData*, unsigned int) = nullptr;
};

template <class Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

Status unheard(const std::string& text) {
  return make_status(Code::kUnsupported, text, Scope::kDevice);
}

Status load_functions(void* library, const std::string& name, Nvml& nvml) {
  const bool all = find(library, "nvmlInit_v2", nvml.init) &&
                   find(library, "nvmlShutdown", nvml.shutdown) &&
                   find(library, "nvmlErrorString", nvml.error_string) &&
                   find(library, "nvmlDeviceGetCount_v2", nvml.count) &&
                   find(library, "nvmlDeviceGetHandleByIndex_v2", nvml.by_index) &&
                   find(library, "nvmlDeviceGetHandleByUUID", nvml.by_uuid) &&
                   find(library, "nvmlDeviceGetTemperature", nvml.temperature) &&
                   find(library, "nvmlEventSetCreate", nvml.make_set) &&
                   find(library, "nvmlEventSetFree", nvml.free_set) &&
                   find(library, "nvmlDeviceRegisterEvents", nvml.listen) &&
                   find(library, "nvmlEventSetWait_v2", nvml.wait);
  return all ? Status() : unheard(name + ": too old, it lacks events");
}

/// Ready to be asked; shutdown() is due afterwards. The library stays loaded: it keeps threads and
/// handlers of its own.
Result<Nvml> start(const std::string& file) {
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = dlerror();
    return unheard(fmt::format("nvml: {}", why == nullptr ? file : why));
  }
  Nvml nvml;
  SGA_TRY(load_functions(library, file, nvml));
  if (const int rc = nvml.init(); rc != kNvmlOk) {
    const char* text = nvml.error_string(rc);
    return unheard(fmt::format("nvml: {}", text == nullptr ? "cannot start" : text));
  }
  return nvml;
}

}  // namespace

int32_t num_visible_devices(int32_t total, const std::string& visible) {
  if (visible.empty()) return total;
  int32_t num = 0;
  for (size_t begin = 0; begin <= visible.size(); ++num) {
    const size_t end = std::min(visible.find(',', begin), visible.size());
    const std::string_view entry(visible.data() + begin, end - begin);
    begin = end + 1;
    if (entry.starts_with("GPU-") || entry.starts_with("MIG-")) continue;
    int32_t index = -1;
    const auto [rest, error] = std::from_chars(entry.data(), entry.data() + entry.size(), index);
    const bool whole = error == std::errc() && rest == entry.data() + entry.size();
    if (!whole || index < 0 || index >= total) break;
  }
  return num;
}

Result<int32_t> count_devices(const NvmlEvents::Options& options) {
  const auto nvml = start(options.file);
  if (!nvml.ok() && !options.visible.empty()) {
    return num_visible_devices(std::numeric_limits<int32_t>::max(), options.visible);
  }
  if (!nvml.ok()) return nvml.status();
  unsigned int total = 0;
  const int rc = nvml->count(&total);
  nvml->shutdown();
  if (rc != kNvmlOk) return unheard("nvml: devices cannot be counted");
  return num_visible_devices(static_cast<int32_t>(total), options.visible);
}

Result<DeviceAddress> driver_address(int32_t index, const std::string& visible) {
  if (visible.empty()) return DeviceAddress{index, ""};
  size_t begin = 0;
  for (int32_t i = 0; i < index; ++i) {
    begin = visible.find(',', begin);
    if (begin == std::string::npos) break;
    ++begin;
  }
  const auto refuse = [&](std::string_view what) {
    return invalid_argument(
        fmt::format("device {}: CUDA_VISIBLE_DEVICES is \"{}\", {}", index, visible, what));
  };
  if (index < 0 || begin == std::string::npos) return refuse("which has no such entry");
  const std::string entry = visible.substr(begin, visible.find(',', begin) - begin);
  if (entry.starts_with("GPU-")) return DeviceAddress{-1, entry};
  DeviceAddress address;
  const auto [end, error] =
      std::from_chars(entry.data(), entry.data() + entry.size(), address.bus_index);
  if (error != std::errc() || end != entry.data() + entry.size() || address.bus_index < 0) {
    return refuse("expected numbers or GPU-UUIDs");
  }
  return address;
}

struct NvmlEvents::Impl {
  ~Impl() {
    {
      const std::lock_guard lock(mutex);
      stop = true;
    }
    stopped.notify_all();
    if (thread.joinable()) thread.join();
    if (set != nullptr) nvml.free_set(set);
    if (ready) nvml.shutdown();
    if (fd >= 0) ::close(fd);
  }

  [[nodiscard]] Status failed(int32_t index, int rc) const {
    const char* text = nvml.error_string(rc);
    return unheard(fmt::format("nvml: device {}: {}", index, text == nullptr ? "error" : text));
  }

  Status add(int32_t index, const std::string& visible) {
    SGA_ASSIGN(const DeviceAddress address, driver_address(index, visible));
    NvmlDevice device = nullptr;
    int rc = address.uuid.empty()
                 ? nvml.by_index(static_cast<unsigned int>(address.bus_index), &device)
                 : nvml.by_uuid(address.uuid.c_str(), &device);
    if (rc == kNvmlOk) rc = nvml.listen(device, kXidEvent, set);
    if (rc != kNvmlOk) return failed(index, rc);
    devices.emplace_back(device, index);
    return {};
  }

  void report(NvmlDevice device, int32_t xid) {
    for (const auto& [known, index] : devices) {
      if (known != device) continue;
      const std::lock_guard lock(mutex);
      events.push_back({index, xid});
      const uint64_t one = 1;
      (void)!::write(fd, &one, sizeof(one));
    }
  }

  /// The wait's error names no device, and comes again as long as the lost one is listened to.
  void report_lost() {
    std::vector<NvmlDevice> found;
    for (const auto& [device, index] : devices) {
      unsigned int degrees = 0;
      if (lost.contains(device) || nvml.temperature(device, 0, &degrees) != kNvmlGpuIsLost) {
        continue;
      }
      lost.insert(device);
      found.push_back(device);
    }
    if (!found.empty()) listen_to_others();
    for (const NvmlDevice device : found) report(device, kXidFallenOffTheBus);
  }

  /// The old set is given up last: what happens meanwhile is in both.
  void listen_to_others() {
    NvmlEventSet others = nullptr;
    if (nvml.make_set(&others) != kNvmlOk) return;
    for (const auto& [device, index] : devices) {
      if (!lost.contains(device)) (void)nvml.listen(device, kXidEvent, others);
    }
    nvml.free_set(std::exchange(set, others));
  }

  void run() {
    int errors = 0;
    while (!stop) {
      NvmlEventData event = {};
      const int rc = nvml.wait(set, &event, kWaitMs);
      if (rc == kNvmlOk) {
        errors = 0;
        if ((event.type & kXidEvent) != 0) report(event.device, static_cast<int32_t>(event.data));
      } else if (rc == kNvmlTimeout) {
        errors = 0;
      } else {
        if (rc == kNvmlGpuIsLost) report_lost();
        if (++errors < kMostErrors) {
          std::unique_lock lock(mutex);
          stopped.wait_for(lock, std::chrono::milliseconds(kWaitMs),
                           [this] { return stop.load(); });
          continue;
        }
        const char* text = nvml.error_string(rc);
        log::warn("nvml: {}; XID events are no longer heard", text == nullptr ? "error" : text);
        return;
      }
    }
  }

  Nvml nvml;
  bool ready = false;
  NvmlEventSet set = nullptr;
  int fd = -1;
  std::vector<std::pair<NvmlDevice, int32_t>> devices;
  std::set<NvmlDevice> lost;  ///< of the thread
  std::mutex mutex;
  std::deque<DeviceEvent> events;
  std::atomic<bool> stop{false};
  std::condition_variable stopped;
  std::thread thread;
};

NvmlEvents::NvmlEvents(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
NvmlEvents::~NvmlEvents() = default;

Result<std::unique_ptr<NvmlEvents>> NvmlEvents::open(const std::vector<int32_t>& devices,
                                                     const Options& options) {
  auto impl = std::make_unique<Impl>();
  SGA_ASSIGN(impl->nvml, start(options.file));
  impl->ready = true;
  if (impl->nvml.make_set(&impl->set) != kNvmlOk) return unheard("nvml: no event set");
  Status first;
  for (const int32_t index : devices) {
    const Status added = impl->add(index, options.visible);
    if (added.ok()) continue;
    if (devices.size() > 1) log::warn("XID events are not heard: {}", added.message());
    if (first.ok()) first = added;
  }
  if (impl->devices.empty() && !first.ok()) return first;
  impl->fd = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (impl->fd < 0) return make_status(Code::kInternal, "eventfd: cannot make one");
  impl->thread = std::thread([raw = impl.get()] { raw->run(); });
  return std::unique_ptr<NvmlEvents>(new NvmlEvents(std::move(impl)));
}

std::optional<DeviceEvent> NvmlEvents::next() {
  const std::lock_guard lock(impl_->mutex);
  if (impl_->events.empty()) return std::nullopt;
  const DeviceEvent event = impl_->events.front();
  impl_->events.pop_front();
  if (impl_->events.empty()) {
    uint64_t count = 0;
    (void)!::read(impl_->fd, &count, sizeof(count));
  }
  return event;
}

int NvmlEvents::event_fd() const { return impl_->fd; }

}  // namespace sgactor::transport
