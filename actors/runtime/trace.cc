#include "actors/runtime/trace.h"

#include "graph/base/json_text.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace sgactor::actors {
namespace {

double micros(int64_t ns) { return static_cast<double>(ns) / 1000.0; }

}  // namespace

int32_t Tracer::add_track(std::string name, bool lane) {
  const std::lock_guard lock(mutex_);
  tracks_.push_back({std::move(name), lane});
  return static_cast<int32_t>(tracks_.size()) - 1;
}

void Tracer::add(const Event& event) {
  const std::lock_guard lock(mutex_);
  events_.push_back(event);
}

void Tracer::slice(int32_t track, std::string_view name, int64_t start_ns, int64_t end_ns,
                   int64_t step, int32_t micro_batch) {
  const uint8_t modes = modes_.load(std::memory_order_relaxed);
  if (modes == 0) return;
  const Event event{Kind::kSlice, track, name, start_ns, end_ns, 0, step, micro_batch};
  if ((modes & kTraces) != 0) add(event);
  if ((modes & kRecords) != 0) record(event);
}

void Tracer::record_steps(int64_t num_steps) {
  const std::lock_guard lock(mutex_);
  recorded_.clear();
  num_wanted_ = num_steps;
  first_wanted_ = 0;
  complete_ = false;
  set(kRecords, true);
}

void Tracer::record(const Event& event) {
  const std::lock_guard lock(mutex_);
  if (complete_ || !tracks_[static_cast<size_t>(event.track)].lane) return;
  if (first_wanted_ == 0) first_wanted_ = event.step + 1;
  if (event.step >= first_wanted_ + num_wanted_) {
    complete_ = true;
    set(kRecords, false);
  } else if (event.step >= first_wanted_) {
    recorded_.push_back(event);
  }
}

bool Tracer::take_recorded(int32_t rank, bool ended, std::string* json) {
  const std::lock_guard lock(mutex_);
  if (!complete_ && (!ended || recorded_.empty())) return false;
  complete_ = false;
  set(kRecords, false);
  *json = json_of(recorded_, rank);
  recorded_ = {};
  return true;
}

void Tracer::flow_start(int32_t track, uint64_t id, int64_t now_ns) {
  if (on()) add({Kind::kFlowStart, track, "message", now_ns, now_ns, id, 0, 0});
}

void Tracer::flow_finish(int32_t track, uint64_t id, int64_t now_ns) {
  if (on()) add({Kind::kFlowFinish, track, "message", now_ns, now_ns, id, 0, 0});
}

size_t Tracer::num_events() const {
  const std::lock_guard lock(mutex_);
  return events_.size();
}

std::string Tracer::to_json(int32_t rank) const {
  const std::lock_guard lock(mutex_);
  return json_of(events_, rank);
}

std::string Tracer::json_of(const std::vector<Event>& events, int32_t rank) const {
  int64_t origin = 0;
  for (const Event& e : events) origin = origin == 0 ? e.start_ns : std::min(origin, e.start_ns);
  std::string out = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  out += fmt::format(R"({{"ph":"M","name":"process_name","pid":{},"args":{{"name":"rank {}"}}}})",
                     rank, rank);
  for (size_t t = 0; t < tracks_.size(); ++t) {
    out += fmt::format(
        ",\n"
        R"({{"ph":"M","name":"thread_name","pid":{},"tid":{},"args":{{"name":"{}"}}}},)"
        "\n"
        R"({{"ph":"M","name":"thread_sort_index","pid":{},"tid":{},"args":{{"sort_index":{}}}}})",
        rank, t, json_text(tracks_[t].name), rank, t,
        static_cast<int64_t>(t) - (tracks_[t].lane ? 1000 : 0));
  }
  for (const Event& e : events) {
    const double ts = micros(e.start_ns - origin);
    if (e.kind == Kind::kSlice) {
      out += fmt::format(
          ",\n"
          R"({{"ph":"X","name":"{}","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f},"args":{{"step":{},"micro_batch":{}}}}})",
          json_text(e.name), rank, e.track, ts, micros(e.end_ns - e.start_ns), e.step,
          e.micro_batch);
    } else {
      out += fmt::format(
          ",\n"
          R"({{"ph":"{}","cat":"message","name":"message","id":"{:x}","pid":{},"tid":{},"ts":{:.3f}{}}})",
          e.kind == Kind::kFlowStart ? "s" : "f", e.id, rank, e.track, ts,
          e.kind == Kind::kFlowStart ? "" : R"(,"bp":"e")");
    }
  }
  out += "\n]}\n";
  return out;
}

Status Tracer::write(const std::string& path, int32_t rank) const {
  return write_text(path, to_json(rank));
}

Status Tracer::write_text(const std::string& path, const std::string& json) {
  gzFile file = gzopen(path.c_str(), "wb6");
  if (file == nullptr) return internal_error(fmt::format("{}: {}", path, std::strerror(errno)));
  bool whole = true;
  for (size_t at = 0; at < json.size() && whole; at += size_t{1} << 20) {
    const size_t n = std::min(json.size() - at, size_t{1} << 20);
    whole = gzwrite(file, json.data() + at, static_cast<unsigned>(n)) == static_cast<int>(n);
  }
  if (gzclose(file) != Z_OK || !whole) {
    return internal_error(fmt::format("{}: trace could not be written", path));
  }
  return {};
}

}  // namespace sgactor::actors
