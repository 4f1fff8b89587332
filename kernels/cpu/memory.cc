#include "kernels/cpu/memory.h"

#include "graph/base/units.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace sgactor::kernels::cpu {
namespace {

constexpr int64_t kHugePage = 2 * kMiB;
constexpr int64_t kLine = 64;

class AlignedMemory final : public DeviceMemory {
 public:
  AlignedMemory(std::shared_ptr<AllocationCounter> counter, std::byte* data, int64_t bytes,
                void* mapping, int64_t mapping_bytes)
      : counter_(std::move(counter)),
        data_(data),
        bytes_(bytes),
        mapping_(mapping),
        mapping_bytes_(mapping_bytes) {
    counter_->add(bytes_);
  }
  ~AlignedMemory() override {
    counter_->remove(bytes_);
    if (mapping_ != nullptr) {
      munmap(mapping_, static_cast<size_t>(mapping_bytes_));
    } else {
      std::free(data_);
    }
  }
  AlignedMemory(const AlignedMemory&) = delete;
  AlignedMemory& operator=(const AlignedMemory&) = delete;

  [[nodiscard]] std::byte* data() const override { return data_; }
  [[nodiscard]] int64_t bytes() const override { return bytes_; }

 private:
  std::shared_ptr<AllocationCounter> counter_;
  std::byte* data_;
  int64_t bytes_;
  void* mapping_;
  int64_t mapping_bytes_;
};

Status out_of_memory(int64_t bytes, std::string_view label) {
  return make_status(Code::kOutOfMemory,
                     fmt::format("cpu: no memory for {} of {}", format_bytes(bytes), label),
                     Scope::kDevice);
}

}  // namespace

void AllocationCounter::add(int64_t bytes) {
  num_.fetch_add(1);
  const int64_t live = live_.fetch_add(bytes) + bytes;
  int64_t peak = peak_.load();
  while (live > peak && !peak_.compare_exchange_weak(peak, live)) {
  }
}

void AllocationCounter::remove(int64_t bytes) { live_.fetch_sub(bytes); }

AllocationStats AllocationCounter::stats() const {
  return {.num_allocations = num_.load(), .live_bytes = live_.load(), .peak_bytes = peak_.load()};
}

Result<std::unique_ptr<DeviceMemory>> allocate_aligned(std::shared_ptr<AllocationCounter> counter,
                                                       int64_t bytes, std::string_view label) {
  if (bytes < 0) {
    return invalid_argument(fmt::format("cpu: cannot allocate {} bytes for {}", bytes, label));
  }
  if (bytes < kHugePage) {
    const auto size = static_cast<size_t>(round_up(std::max<int64_t>(bytes, 1), kLine));
    auto* data = static_cast<std::byte*>(std::aligned_alloc(kLine, size));
    if (data == nullptr) return out_of_memory(bytes, label);
    std::memset(data, 0, size);
    return std::unique_ptr<DeviceMemory>(
        std::make_unique<AlignedMemory>(std::move(counter), data, bytes, nullptr, 0));
  }
  const int64_t mapping_bytes = round_up(bytes, kHugePage) + kHugePage;
  void* mapping = mmap(nullptr, static_cast<size_t>(mapping_bytes), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) return out_of_memory(bytes, label);
  const auto address = static_cast<int64_t>(reinterpret_cast<uintptr_t>(mapping));
  auto* data = static_cast<std::byte*>(mapping) + (round_up(address, kHugePage) - address);
  // Advice only: without huge pages everything works, slower.
  (void)madvise(data, static_cast<size_t>(round_up(bytes, kHugePage)), MADV_HUGEPAGE);
  return std::unique_ptr<DeviceMemory>(
      std::make_unique<AlignedMemory>(std::move(counter), data, bytes, mapping, mapping_bytes));
}

}  // namespace sgactor::kernels::cpu
