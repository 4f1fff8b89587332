#pragma once
#include "graph/base/normal_numbers.h"
#include "graph/base/status.h"
#include "graph/ir/graph.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sgactor::kernels {

/// Where a value of a compiled body lives; the same meaning as graph::ValuePlace (this folder does
/// not see plans).
struct Place {
  enum class Space : uint8_t { kWorkspace = 0, kInput, kOutput } space = Space::kWorkspace;
  int32_t index = 0;
  int64_t offset = 0;
};

struct CompileRequest {
  const graph::Graph* body = nullptr;  ///< verified
  std::span<const Place> places;       ///< one a value
  int64_t workspace_bytes = 0;
  std::string name;  ///< for profiles and errors
};

/// Memory of a device: one arena a worker, staging buffers. Freed with the object. Every allocation
/// goes through Backend::allocate and is counted there.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  [[nodiscard]] virtual std::byte* data()
      const = 0;  ///< device pointer; host-readable only if Backend::host_visible()
  [[nodiscard]] virtual int64_t bytes() const = 0;
};

/// A subgraph ready to launch. Immutable; may be launched on any stream of its backend, on one at a
/// time.
class Executable {
 public:
  virtual ~Executable() = default;
  /// Scratch beyond the planned workspace (attention rows, split sums); one block a stream, sized
  /// to the largest executable.
  [[nodiscard]] virtual int64_t scratch_bytes() const = 0;
};

struct LaunchArgs {
  std::span<std::byte* const> inputs;  ///< in the order of the body's inputs
  std::span<std::byte* const> outputs;
  std::byte* workspace = nullptr;
  std::byte* scratch = nullptr;
};

/// What completed work reports. Times are steady-clock nanoseconds (0 where the backend keeps
/// none).
struct LaunchTiming {
  int64_t start_ns = 0;
  int64_t end_ns = 0;
};

/// Receives completions. Called from the backend's threads (or inline, in a backend without
/// threads) once a launch or copy, in stream order; must return quickly, must not throw, must not
/// call back into the stream.
class CompletionSink {
 public:
  virtual ~CompletionSink() = default;
  virtual void on_complete(uint64_t token, const Status& status, LaunchTiming timing) noexcept = 0;
};

/// A point in a stream's work. Recorded once, waited for by other streams.
class Event {
 public:
  virtual ~Event() = default;
  [[nodiscard]] virtual bool done() const = 0;
};

/// An in-order queue of launches and copies: a lane. Calls return at once; the pointers in `args`
/// are copied and the memory they name must stay valid until completion. Called from one thread at
/// a time. A failed launch completes with its Status and the stream refuses further work with the
/// same Status (sticky), as CUDA does.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual void launch(const Executable& executable, const LaunchArgs& args, uint64_t token,
                      CompletionSink& sink) = 0;
  virtual void copy(std::byte* to, const std::byte* from, int64_t bytes, uint64_t token,
                    CompletionSink& sink) = 0;
  virtual void fill_zero(std::byte* to, int64_t bytes, uint64_t token, CompletionSink& sink) = 0;
  virtual std::unique_ptr<Event> record() = 0;
  virtual void wait(const Event& event) = 0;
  /// Blocks the caller until all work is complete. For set-up and tests; never from an actor's
  /// handler.
  virtual void synchronize() = 0;
};

/// Counters of Backend::allocate, for "no allocation after start".
struct AllocationStats {
  int64_t num_allocations = 0;
  int64_t live_bytes = 0;
  int64_t peak_bytes = 0;
};

/// Launches of executables since the backend was made. `replayed`: their kernels went to the device
/// as one recorded graph (or a few), not one by one; 0 for backends without such graphs.
struct LaunchStats {
  int64_t plain = 0;
  int64_t replayed = 0;
  int64_t graphs = 0;  ///< recorded and kept
};

struct DeviceInfo {
  std::string backend;      ///< "cpu"
  std::string device;       ///< "cpu:0"
  std::string description;  ///< "AMD EPYC …, avx2, 2 threads, OpenBLAS 0.3.21 Zen"
  /// Equal fingerprints compute equal bits: device kind, kernel family, library versions.
  std::string fingerprint;
  int64_t memory_bytes = 0;  ///< of the device, free or not; 0: unknown
  /// Of these free for others and us as the backend was opened, its context and its streams for
  /// copies already there; what is allocated or freed later, by anyone, does not show. Where host
  /// and device are one: what the host can hand out without ending a process, its page cache and
  /// free swap counted in. 0: unknown.
  int64_t free_bytes = 0;
  /// Most that a process takes of free_bytes beside what allocate() gives: kernels and libraries
  /// that load when they are first used, recorded graphs.
  int64_t process_bytes = 0;
  /// Scratch of one logical rank's lanes, as a rule: Executable::scratch_bytes is known only when
  /// all is compiled.
  int64_t scratch_bytes = 0;
  int32_t num_threads = 1;
};

/// One device of one kind. Thread-safe but for streams (one caller each).
class Backend {
 public:
  virtual ~Backend() = default;
  [[nodiscard]] virtual const DeviceInfo& info() const = 0;
  [[nodiscard]] virtual bool host_visible() const = 0;
  /// Bytes a tensor takes in this backend's memory (native; 8 an element in `reference`; 8 a tensor
  /// in `symbolic`).
  [[nodiscard]] virtual int64_t storage_bytes(const TensorType& type) const = 0;
  /// Turns host bytes of native type into the backend's storage and back. Blocking; host-visible
  /// staging only for the run's start, checkpoints and tests.
  virtual Status write_tensor(std::byte* to, const TensorType& type,
                              std::span<const std::byte> native) = 0;
  virtual Status read_tensor(std::span<std::byte> native, const TensorType& type,
                             const std::byte* from) = 0;
  /// Makes a tensor of `type` at `to`, with the bits that the host computes. Blocking.
  /// Errors: kUnsupported: not here, or not of this type; the caller then makes the numbers itself.
  virtual Status fill_normal(std::byte* /*to*/, const TensorType& /*type*/,
                             const NormalNumbers& /*numbers*/) {
    return unsupported("this backend draws no numbers");
  }
  /// Errors: kUnsupported naming the op the backend lacks.
  virtual Result<std::unique_ptr<Executable>> compile(const CompileRequest& request) = 0;
  virtual Result<std::unique_ptr<DeviceMemory>> allocate(int64_t bytes, std::string_view label) = 0;
  /// Memory of the host that streams copy to and from as they do on the device, in native storage;
  /// host-readable. Not counted in allocation_stats. Here that of allocate(), for backends whose
  /// memory the host sees. Errors: kOutOfMemory.
  virtual Result<std::unique_ptr<DeviceMemory>> allocate_host(int64_t bytes,
                                                              std::string_view label) {
    return allocate(bytes, label);
  }
  virtual Result<std::unique_ptr<Stream>> create_stream() = 0;
  [[nodiscard]] virtual AllocationStats allocation_stats() const = 0;
  [[nodiscard]] virtual LaunchStats launch_stats() const { return {}; }
};

struct BackendOptions {
  int32_t num_threads = 0;  ///< 0: all cores this process may use
  int32_t device_index = 0;
};

/// A row of the explicit table that main() builds. No registration at static-initialisation time.
struct BackendEntry {
  std::string name;
  std::function<Result<std::unique_ptr<Backend>>(const BackendOptions&)>
      create;               ///< empty if unavailable
  std::string unavailable;  ///< why, if so: "libcudart.so.13: cannot open shared object file"
};

class BackendTable {
 public:
  void add(BackendEntry entry) { entries_.push_back(std::move(entry)); }
  [[nodiscard]] const std::vector<BackendEntry>& entries() const { return entries_; }
  /// Errors: kUnsupported: unknown name (with those known), or the reason why it is unavailable.
  Result<std::unique_ptr<Backend>> create(std::string_view name,
                                          const BackendOptions& options) const;

 private:
  std::vector<BackendEntry> entries_;
};

}  // namespace sgactor::kernels
