#include "kernels/symbolic/symbolic_backend.h"

#include "kernels/backend/inline_stream.h"
#include "kernels/symbolic/symbolic_hash.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>

namespace sgactor::kernels {
namespace {

constexpr int64_t kHashBytes = 8;

/// Shared by the backend and its memory, which may outlive it.
struct AllocationCounter {
  std::mutex mutex;
  AllocationStats stats;
};

class HashMemory final : public DeviceMemory {
 public:
  HashMemory(std::unique_ptr<uint64_t[]> words, int64_t bytes,
             std::shared_ptr<AllocationCounter> counter)
      : words_(std::move(words)), bytes_(bytes), counter_(std::move(counter)) {}
  HashMemory(const HashMemory&) = delete;
  HashMemory& operator=(const HashMemory&) = delete;
  ~HashMemory() override {
    const std::lock_guard lock(counter_->mutex);
    counter_->stats.live_bytes -= bytes_;
  }
  [[nodiscard]] std::byte* data() const override {
    return reinterpret_cast<std::byte*>(words_.get());
  }
  [[nodiscard]] int64_t bytes() const override { return bytes_; }

 private:
  std::unique_ptr<uint64_t[]> words_;
  int64_t bytes_;
  std::shared_ptr<AllocationCounter> counter_;
};

uint64_t load(const std::byte* from) {
  uint64_t hash = 0;
  std::memcpy(&hash, from, sizeof hash);
  return hash;
}
void store(std::byte* to, uint64_t hash) { std::memcpy(to, &hash, sizeof hash); }

class SymbolicExecutable final : public Executable {
 public:
  explicit SymbolicExecutable(const CompileRequest& request)
      : num_inputs_(request.body->inputs().size()),
        needs_workspace_(request.workspace_bytes > 0),
        name_(request.name) {
    for (const graph::Op& op : request.body->ops()) {
      Step step;
      step.is_view = op.kind == graph::OpKind::kReshape;
      step.hash = symbolic::op_hash(*request.body, op);
      for (graph::ValueId v : op.operands) step.operands.push_back(request.places[v]);
      for (graph::ValueId v : op.results) step.results.push_back(request.places[v]);
      max_operands_ = std::max(max_operands_, step.operands.size());
      steps_.push_back(std::move(step));
    }
    for (const graph::GraphOutput& output : request.body->outputs())
      outputs_.push_back(request.places[output.value]);
  }
  [[nodiscard]] int64_t scratch_bytes() const override { return 0; }

  [[nodiscard]] Status run(const LaunchArgs& args) const {
    if (args.inputs.size() != num_inputs_ || args.outputs.size() != outputs_.size() ||
        (args.workspace == nullptr && needs_workspace_)) {
      return invalid_argument(name_ + ": a launch takes " + std::to_string(num_inputs_) +
                              " inputs, " + std::to_string(outputs_.size()) +
                              " outputs and its workspace");
    }
    std::vector<uint64_t> operands;
    operands.reserve(max_operands_);
    for (const Step& step : steps_) {
      operands.clear();
      for (const Place& place : step.operands) operands.push_back(load(address(place, args)));
      // Operands are read before results are written, so updates in place need no care.
      for (uint32_t r = 0; r < step.results.size(); ++r) {
        store(address(step.results[r], args),
              step.is_view ? operands[0] : symbolic::result_hash(step.hash, operands, r));
      }
    }
    for (size_t i = 0; i < outputs_.size(); ++i)
      store(args.outputs[i], load(address(outputs_[i], args)));
    return {};
  }

 private:
  struct Step {
    uint64_t hash = 0;
    bool is_view = false;  ///< the result has its operand's hash, since it has its operand's bytes
    std::vector<Place> operands;
    std::vector<Place> results;
  };

  static std::byte* address(const Place& place, const LaunchArgs& args) {
    const auto index = static_cast<size_t>(place.index);
    if (place.space == Place::Space::kInput) return args.inputs[index] + place.offset;
    if (place.space == Place::Space::kOutput) return args.outputs[index] + place.offset;
    return args.workspace + place.offset;
  }

  std::vector<Step> steps_;
  std::vector<Place> outputs_;
  size_t num_inputs_;
  size_t max_operands_ = 0;
  bool needs_workspace_;
  std::string name_;
};

class SymbolicBackend final : public Backend {
 public:
  explicit SymbolicBackend(int32_t device_index) {
    info_.backend = "symbolic";
    info_.device = "sim:" + std::to_string(device_index);
    info_.description = "a 64-bit hash a tensor";
    info_.fingerprint = "symbolic-1";
    info_.num_threads = 1;
  }
  [[nodiscard]] const DeviceInfo& info() const override { return info_; }
  [[nodiscard]] bool host_visible() const override { return true; }
  [[nodiscard]] int64_t storage_bytes(const TensorType& /*type*/) const override {
    return kHashBytes;
  }
  Status write_tensor(std::byte* to, const TensorType& type,
                      std::span<const std::byte> native) override {
    SGA_TRY(check_size(type, native.size()));
    store(to, symbolic::tensor_hash(native));
    return {};
  }
  Status read_tensor(std::span<std::byte> native, const TensorType& type,
                     const std::byte* from) override {
    SGA_TRY(check_size(type, native.size()));
    symbolic::tensor_bytes(load(from), type, native);
    return {};
  }

  Result<std::unique_ptr<Executable>> compile(const CompileRequest& request) override {
    SGA_TRY(check_request(request));
    return std::unique_ptr<Executable>(std::make_unique<SymbolicExecutable>(request));
  }

  Result<std::unique_ptr<DeviceMemory>> allocate(int64_t bytes, std::string_view label) override {
    if (bytes < 0) return invalid_argument("allocation of a negative number of bytes");
    const auto num_words = static_cast<size_t>((bytes / kHashBytes) + 1);
    std::unique_ptr<uint64_t[]> words(new (std::nothrow) uint64_t[num_words]());
    if (words == nullptr) {
      return make_status(Code::kOutOfMemory, "no memory for " + std::to_string(bytes) +
                                                 " bytes of " + std::string(label));
    }
    const std::lock_guard lock(counter_->mutex);
    AllocationStats& stats = counter_->stats;
    stats.num_allocations += 1;
    stats.live_bytes += bytes;
    stats.peak_bytes = std::max(stats.peak_bytes, stats.live_bytes);
    return std::unique_ptr<DeviceMemory>(
        std::make_unique<HashMemory>(std::move(words), bytes, counter_));
  }
  Result<std::unique_ptr<Stream>> create_stream() override {
    return std::unique_ptr<Stream>(std::make_unique<InlineStream<SymbolicExecutable>>(nullptr));
  }
  [[nodiscard]] AllocationStats allocation_stats() const override {
    const std::lock_guard lock(counter_->mutex);
    return counter_->stats;
  }

 private:
  static Status check_size(const TensorType& type, size_t bytes) {
    if (static_cast<int64_t>(bytes) == type.bytes()) return {};
    return invalid_argument("tensor " + type.to_string() + " takes " +
                            std::to_string(type.bytes()) + " bytes, not " + std::to_string(bytes));
  }

  static Status check_request(const CompileRequest& request) {
    if (request.body == nullptr || request.places.size() != request.body->values().size())
      return invalid_argument(request.name + ": compile needs a body and one place a value");
    for (size_t v = 0; v < request.places.size(); ++v) {
      const Place& place = request.places[v];
      const auto count = static_cast<int64_t>(
          place.space == Place::Space::kInput    ? request.body->inputs().size()
          : place.space == Place::Space::kOutput ? request.body->outputs().size()
                                                 : 1);
      const bool fits = place.space != Place::Space::kWorkspace ||
                        place.offset <= request.workspace_bytes - kHashBytes;
      if (place.index < 0 || place.index >= count || place.offset < 0 || !fits) {
        return invalid_argument(request.name + ": value " + std::to_string(v) +
                                " has no valid place");
      }
    }
    return {};
  }

  DeviceInfo info_;
  std::shared_ptr<AllocationCounter> counter_ = std::make_shared<AllocationCounter>();
};

}  // namespace

Result<std::unique_ptr<Backend>> create_symbolic_backend(const BackendOptions& options) {
  return std::unique_ptr<Backend>(std::make_unique<SymbolicBackend>(options.device_index));
}

}  // namespace sgactor::kernels
