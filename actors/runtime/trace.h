#pragma once
#include "graph/base/status.h"

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace sgactor::actors {

/// Records what actors and lanes do as a Chrome trace (chrome://tracing, Perfetto): a track an
/// actor with a slice a message handled, a track a lane with a slice a kernel, arrows from where a
/// message was sent to where it was handled. Off, a call costs one atomic read. Thread-safe. Times
/// are nanoseconds of the steady clock.
class Tracer {
 public:
  /// A track, numbered from 0 in order of calls; call before the run starts. Also while off.
  int32_t add_track(std::string name, bool lane = false);
  void enable(bool on) { on_.store(on, std::memory_order_relaxed); }
  [[nodiscard]] bool on() const { return on_.load(std::memory_order_relaxed); }

  /// `name` must outlive the tracer (a literal, a plan's name).
  void slice(int32_t track, std::string_view name, int64_t start_ns, int64_t end_ns, int64_t step,
             int32_t micro_batch);
  /// Ends of an arrow; both sides derive `id` from the message's logical key.
  void flow_start(int32_t track, uint64_t id, int64_t now_ns);
  void flow_finish(int32_t track, uint64_t id, int64_t now_ns);

  [[nodiscard]] size_t num_events() const;
  /// Everything so far as trace JSON; `rank` becomes the process id.
  [[nodiscard]] std::string to_json(int32_t rank) const;
  /// Writes to_json, gzip-compressed. Blocks. Errors: kInternal naming the file.
  Status write(const std::string& path, int32_t rank) const;

 private:
  enum class Kind : uint8_t { kSlice, kFlowStart, kFlowFinish };
  struct Event {
    Kind kind;
    int32_t track;
    std::string_view name;
    int64_t start_ns, end_ns;
    uint64_t id;
    int64_t step;
    int32_t micro_batch;
  };
  struct Track {
    std::string name;
    bool lane;
  };
  void add(const Event& event);

  std::atomic<bool> on_{false};
  mutable std::mutex mutex_;
  std::vector<Track> tracks_;
  std::vector<Event> events_;
};

}  // namespace sgactor::actors
