#include "kernels/reference/reference_backend.h"

#include "kernels/backend/inline_stream.h"
#include "kernels/reference/kernels.h"
#include "kernels/reference/rounding.h"

#include <chrono>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>

namespace sgactor::kernels {
namespace {

using reference::Tensor;

constexpr int64_t kCellBytes = 8;
constexpr std::align_val_t kAlignment{64};

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// Shared by the backend and its memory, which may outlive it.
struct AllocationCounter {
  std::mutex mutex;
  AllocationStats stats;
};

class HostMemory final : public DeviceMemory {
 public:
  HostMemory(std::byte* data, int64_t bytes, std::shared_ptr<AllocationCounter> counter)
      : data_(data), bytes_(bytes), counter_(std::move(counter)) {}
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;
  ~HostMemory() override {
    ::operator delete(data_, kAlignment);
    const std::lock_guard lock(counter_->mutex);
    counter_->stats.live_bytes -= bytes_;
  }
  [[nodiscard]] std::byte* data() const override { return data_; }
  [[nodiscard]] int64_t bytes() const override { return bytes_; }

 private:
  std::byte* data_;
  int64_t bytes_;
  std::shared_ptr<AllocationCounter> counter_;
};

class ReferenceExecutable final : public Executable {
 public:
  ReferenceExecutable(const CompileRequest& request)
      : body_(*request.body),
        places_(request.places.begin(), request.places.end()),
        needs_workspace_(request.workspace_bytes > 0),
        name_(request.name) {}
  [[nodiscard]] int64_t scratch_bytes() const override { return 0; }

  [[nodiscard]] Status run(const LaunchArgs& args) const {
    SGA_TRY(check(args));
    std::vector<Tensor> operands;
    std::vector<Tensor> results;
    for (const graph::Op& op : body_.ops()) {
      operands.clear();
      results.clear();
      for (graph::ValueId v : op.operands) operands.push_back(tensor(v, args));
      for (graph::ValueId v : op.results) results.push_back(tensor(v, args));
      if (Status s = reference::run_op(op, operands, results); !s.ok())
        return s.with_context(name_);
    }
    copy_shared_outputs(args);
    return {};
  }

 private:
  [[nodiscard]] Status check(const LaunchArgs& args) const {
    if (args.inputs.size() == body_.inputs().size() &&
        args.outputs.size() == body_.outputs().size() &&
        (args.workspace != nullptr || !needs_workspace_)) {
      return {};
    }
    return invalid_argument(name_ + ": a launch takes " + std::to_string(body_.inputs().size()) +
                            " inputs, " + std::to_string(body_.outputs().size()) +
                            " outputs and its workspace");
  }

  [[nodiscard]] Tensor tensor(graph::ValueId v, const LaunchArgs& args) const {
    const Place& place = places_[v];
    const auto index = static_cast<size_t>(place.index);
    std::byte* base = place.space == Place::Space::kInput    ? args.inputs[index]
                      : place.space == Place::Space::kOutput ? args.outputs[index]
                                                             : args.workspace;
    return {&body_.type(v), base + place.offset};
  }

  /// A value may be several outputs, or an output and an input; it has one place, and the other
  /// outputs get copies.
  void copy_shared_outputs(const LaunchArgs& args) const {
    for (size_t i = 0; i < body_.outputs().size(); ++i) {
      const Tensor from = tensor(body_.outputs()[i].value, args);
      if (from.data != args.outputs[i] && from.bytes() > 0)
        std::memmove(args.outputs[i], from.data, static_cast<size_t>(from.bytes()));
    }
  }

  graph::Graph body_;
  std::vector<Place> places_;
  bool needs_workspace_;
  std::string name_;
};

class ReferenceBackend final : public Backend {
 public:
  ReferenceBackend() {
    info_.backend = "reference";
    info_.device = "reference:0";
    info_.description = "float64 oracle, one thread";
    info_.fingerprint = "reference-1";
    info_.num_threads = 1;
  }
  [[nodiscard]] const DeviceInfo& info() const override { return info_; }
  [[nodiscard]] bool host_visible() const override { return true; }
  [[nodiscard]] int64_t storage_bytes(const TensorType& type) const override {
    return type.num_elements() * kCellBytes;
  }
  Status write_tensor(std::byte* to, const TensorType& type,
                      std::span<const std::byte> native) override {
    return reference::decode(type, native, to);
  }
  Status read_tensor(std::span<std::byte> native, const TensorType& type,
                     const std::byte* from) override {
    return reference::encode(type, from, native);
  }

  Result<std::unique_ptr<Executable>> compile(const CompileRequest& request) override {
    SGA_TRY(check_request(request));
    return std::unique_ptr<Executable>(std::make_unique<ReferenceExecutable>(request));
  }

  Result<std::unique_ptr<DeviceMemory>> allocate(int64_t bytes, std::string_view label) override {
    if (bytes < 0) return invalid_argument("allocation of a negative number of bytes");
    void* data = ::operator new(static_cast<size_t>(bytes), kAlignment, std::nothrow);
    if (data == nullptr) {
      return make_status(Code::kOutOfMemory, "no memory for " + std::to_string(bytes) +
                                                 " bytes of " + std::string(label));
    }
    std::memset(data, 0, static_cast<size_t>(bytes));
    const std::lock_guard lock(counter_->mutex);
    AllocationStats& stats = counter_->stats;
    stats.num_allocations += 1;
    stats.live_bytes += bytes;
    stats.peak_bytes = std::max(stats.peak_bytes, stats.live_bytes);
    return std::unique_ptr<DeviceMemory>(
        std::make_unique<HostMemory>(static_cast<std::byte*>(data), bytes, counter_));
  }
  Result<std::unique_ptr<Stream>> create_stream() override {
    return std::unique_ptr<Stream>(std::make_unique<InlineStream<ReferenceExecutable>>(now_ns));
  }
  [[nodiscard]] AllocationStats allocation_stats() const override {
    const std::lock_guard lock(counter_->mutex);
    return counter_->stats;
  }

 private:
  [[nodiscard]] Status check_request(const CompileRequest& request) const {
    if (request.body == nullptr || request.places.size() != request.body->values().size())
      return invalid_argument(request.name + ": compile needs a body and one place a value");
    for (size_t v = 0; v < request.places.size(); ++v) {
      const Place& place = request.places[v];
      const TensorType& type = request.body->type(static_cast<graph::ValueId>(v));
      const auto count = static_cast<int64_t>(
          place.space == Place::Space::kInput    ? request.body->inputs().size()
          : place.space == Place::Space::kOutput ? request.body->outputs().size()
                                                 : 1);
      const bool fits = place.space != Place::Space::kWorkspace ||
                        place.offset <= request.workspace_bytes - storage_bytes(type);
      if (place.index < 0 || place.index >= count || place.offset < 0 ||
          place.offset % kCellBytes != 0 || !fits) {
        return invalid_argument(request.name + ": value " + std::to_string(v) + " " +
                                type.to_string() + " has no valid place");
      }
    }
    return {};
  }

  DeviceInfo info_;
  std::shared_ptr<AllocationCounter> counter_ = std::make_shared<AllocationCounter>();
};

}  // namespace

Result<std::unique_ptr<Backend>> create_reference_backend(const BackendOptions& /*options*/) {
  return std::unique_ptr<Backend>(std::make_unique<ReferenceBackend>());
}

}  // namespace sgactor::kernels
