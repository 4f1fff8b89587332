#include "apps/sgactor/top_view.h"

#include "apps/sgactor/clock.h"
#include "apps/sgactor/job_spec.h"
#include "apps/sgactor/json_lines.h"
#include "apps/sgactor/printable.h"
#include "graph/base/units.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace sgactor::apps {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr int64_t kTailBytes = 64 * 1024;

std::string this_host() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

/// A number of a JSON object, or 0 where it is null or missing.
double number_or_0(const Json& json, const char* key) { return field_or<double>(json, key, 0); }

void read_metrics(const RunDirectory& run, RunView& view) {
  const auto lines = read_json_lines(run.metrics(), kTailBytes);
  if (lines.empty()) return;
  const Json& last = lines.back();
  view.step = field_or<int64_t>(last, "step", 0);
  view.loss = number_or_0(last, "loss");
  view.grad_norm = number_or_0(last, "grad_norm");
  view.lr = number_or_0(last, "lr");
  view.tokens_per_second = number_or_0(last, "tok_s");
  view.step_ms = number_or_0(last, "step_ms");
  view.memory_gib = number_or_0(last, "mem_gib");
  view.generation = field_or<int64_t>(last, "generation", 0);
  std::error_code error;
  const auto written = fs::last_write_time(run.metrics(), error);
  if (error) return;
  const std::chrono::duration<double> age = fs::file_time_type::clock::now() - written;
  view.seconds_since = std::max(0.0, age.count());
}

/// The letter of /proc/PID/stat behind the name, which may hold anything.
std::string process_state(int64_t pid) {
  std::ifstream in(fmt::format("/proc/{}/stat", pid), std::ios::binary);
  std::string line;
  if (!std::getline(in, line)) return "gone";
  const size_t end = line.rfind(") ");
  const char letter = end == std::string::npos || end + 2 >= line.size() ? '?' : line[end + 2];
  if (letter == 'T' || letter == 't') return "stopped";
  return letter == 'Z' || letter == 'X' ? "gone" : "running";
}

int64_t resident_bytes(int64_t pid) {
  std::ifstream in(fmt::format("/proc/{}/statm", pid), std::ios::binary);
  int64_t total = 0;
  int64_t resident = 0;
  in >> total >> resident;
  return in ? resident * ::sysconf(_SC_PAGESIZE) : 0;
}

void read_workers(const RunDirectory& run, RunView& view) {
  std::ostringstream text;
  text << std::ifstream(run.state(), std::ios::binary).rdbuf();
  const Json state = Json::parse(text.str(), nullptr, /*allow_exceptions=*/false);
  if (!state.is_object() || !state.contains("workers") || !state["workers"].is_array()) return;
  view.has_processes = true;
  view.generation = field_or<int64_t>(state, "generation", view.generation);
  const std::string host = this_host();
  for (const Json& w : state["workers"]) {
    if (!w.is_object()) continue;
    WorkerView worker;
    worker.index = field_or<int64_t>(w, "index", 0);
    worker.host = field_or<std::string>(w, "host", "");
    worker.pid = field_or<int64_t>(w, "pid", 0);
    worker.ranks = field_or<std::vector<int64_t>>(w, "ranks", {});
    worker.here = worker.host == host && worker.pid > 0;
    if (worker.here) {
      worker.state = process_state(worker.pid);
      worker.memory_bytes = resident_bytes(worker.pid);
    }
    view.workers.push_back(std::move(worker));
  }
}

void read_recoveries(const RunDirectory& run, RunView& view) {
  for (const Json& line : read_json_lines(run.recoveries())) {
    view.recoveries.push_back(
        {field_or<int64_t>(line, "step", 0), field_or<std::string>(line, "fault", ""),
         field_or<std::string>(line, "culprit", ""), number_or_0(line, "restored_ms")});
  }
}

void read_standing(const RunDirectory& run, RunView& view) {
  view.running = !check_not_in_use(run).ok();
  view.state = view.running ? "running" : "not running";
  if (view.running) return;
  const auto lines = read_json_lines(run.audit(), kTailBytes);
  for (auto it = lines.rbegin(); it != lines.rend(); ++it) {
    if (field_or<std::string>(*it, "who", "") != "main") continue;
    const auto what = field_or<std::string>(*it, "what", "");
    // Where it only ever began, its process was killed.
    if (what != "start" && what != "resume") view.state = "ended: " + what;
    return;
  }
}

std::string ranks_text(const std::vector<int64_t>& ranks) {
  return ranks.empty() ? "spare" : fmt::format("{}", fmt::join(ranks, ","));
}

std::string head_text(const RunView& v) {
  const std::string of = v.num_steps > 0 ? fmt::format(" of {}", v.num_steps) : "";
  std::string out = fmt::format("run         {}: {}\n", v.path, v.state);
  if (v.step == 0) return out + "step        none is done yet\n";
  out +=
      fmt::format("step        {}{}, {} ago\nloss        {:.4f}, gradient norm {:.3g}, lr {:.3g}\n",
                  v.step, of, format_seconds(v.seconds_since), v.loss, v.grad_norm, v.lr);
  out += fmt::format("rate        {} tokens/s, {} a step\n", format_count(v.tokens_per_second),
                     format_seconds(v.step_ms * 1e-3));
  if (v.memory_gib > 0) out += fmt::format("memory      {:.3g} GiB planned\n", v.memory_gib);
  if (v.generation > 0) out += fmt::format("generation  {}\n", v.generation);
  return out;
}

}  // namespace

Result<RunView> read_view(const RunDirectory& run) {
  std::error_code error;
  if (!fs::is_regular_file(run.job(), error)) {
    return invalid_argument(run.path + ": is no run directory: expected job.resolved.toml");
  }
  RunView view;
  view.path = run.path;
  if (const auto job = load_job(run.job(), {}); job.ok()) view.num_steps = job->training.steps;
  read_metrics(run, view);
  read_workers(run, view);
  read_recoveries(run, view);
  read_standing(run, view);
  return view;
}

std::string view_text(const RunView& v, size_t most_recoveries) {
  std::string out = head_text(v);
  if (v.has_processes) {
    out += fmt::format("{:<11} {:<20} {:>8}  {:<16} {:>11}  {}\n", "worker", "host", "pid", "ranks",
                       "memory", "state");
    for (const WorkerView& w : v.workers) {
      out += fmt::format("{:<11} {:<20} {:>8}  {:<16} {:>11}  {}\n", w.index, w.host, w.pid,
                         ranks_text(w.ranks),
                         w.here && w.memory_bytes > 0 ? format_bytes(w.memory_bytes) : "-",
                         w.here ? w.state : "on another host");
    }
  }
  out += fmt::format("recoveries  {}\n", v.recoveries.size());
  const size_t shown = std::min(most_recoveries, v.recoveries.size());
  for (size_t i = v.recoveries.size() - shown; i < v.recoveries.size(); ++i) {
    const RecoveryView& r = v.recoveries[i];
    out += fmt::format("  after step {}: {} ({}), {:.0f} ms until the state was restored\n", r.step,
                       r.fault, r.culprit, r.restored_ms);
  }
  return printable(out);
}

}  // namespace sgactor::apps
