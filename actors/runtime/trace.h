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
  /// `lane`: one of kernels and channels, which record_steps looks at; only those of training.
  int32_t add_track(std::string name, bool lane = false);
  void enable(bool on) { set(kTraces, on); }
  [[nodiscard]] bool on() const { return (modes_.load(std::memory_order_relaxed) & kTraces) != 0; }

  /// Records the slices of lanes (no other track) of the next `num_steps` whole steps, for a
  /// profile: from the step behind the newest that lanes work on. Beside enable(), which goes on as
  /// it was. A second call begins anew.
  void record_steps(int64_t num_steps);
  /// The steps of record_steps are complete: a lane works on a later one, or the run is over
  /// (`ended`) and at least one is there. True once; takes what was recorded, as to_json.
  bool take_recorded(int32_t rank, bool ended, std::string* json);

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
  /// The same for a text of to_json or take_recorded.
  static Status write_text(const std::string& path, const std::string& json);

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
  enum Mode : uint8_t { kTraces = 1, kRecords = 2 };
  void set(Mode mode, bool on) {
    if (on) {
      modes_.fetch_or(mode, std::memory_order_relaxed);
    } else {
      modes_.fetch_and(static_cast<uint8_t>(~mode), std::memory_order_relaxed);
    }
  }
  void add(const Event& event);
  void record(const Event& event);
  [[nodiscard]] std::string json_of(const std::vector<Event>& events, int32_t rank) const;

  std::atomic<uint8_t> modes_{0};
  mutable std::mutex mutex_;
  std::vector<Track> tracks_;
  std::vector<Event> events_;
  std::vector<Event> recorded_;  // of record_steps
  int64_t num_wanted_ = 0;       // steps
  int64_t first_wanted_ = 0;     // 0: no slice since record_steps
  bool complete_ = false;
};

}  // namespace sgactor::actors
