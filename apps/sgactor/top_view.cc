#include "apps/sgactor/top_view.h"

#include "apps/sgactor/clock.h"
#include "apps/sgactor/job_spec.h"
#include "apps/sgactor/json_lines.h"
#include "apps/sgactor/printable.h"
#include "apps/sgactor/status_http.h"
#include "graph/base/units.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>

namespace sgactor::apps {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr int64_t kTailBytes = 64 * 1024;
constexpr int64_t kAnswerMs = 1000;
constexpr size_t kMaxAddressBytes = 512;

std::string this_host() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

/// A number of a JSON object, or 0 where it is null or missing.
double number_or_0(const Json& json, const char* key) { return field_or<double>(json, key, 0); }

/// What a line of metrics.jsonl and a status page call alike.
void read_step(const Json& json, RunView& view) {
  view.step = field_or<int64_t>(json, "step", 0);
  view.loss = number_or_0(json, "loss");
  view.grad_norm = number_or_0(json, "grad_norm");
  view.lr = number_or_0(json, "lr");
  view.tokens_per_second = number_or_0(json, "tok_s");
  view.step_ms = number_or_0(json, "step_ms");
  view.memory_gib = number_or_0(json, "mem_gib");
  view.generation = field_or<int64_t>(json, "generation", 0);
}

void read_metrics(const RunDirectory& run, RunView& view) {
  const auto lines = read_json_lines(run.metrics(), kTailBytes);
  if (lines.empty()) return;
  read_step(lines.back(), view);
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

/// A worker as a page or control/state.json tells of it, and its memory if it is of this host.
WorkerView worker_of(const Json& w, const std::string& host) {
  WorkerView out;
  out.index = field_or<int64_t>(w, "index", 0);
  out.host = field_or<std::string>(w, "host", "");
  out.pid = field_or<int64_t>(w, "pid", 0);
  out.ranks = field_or<std::vector<int64_t>>(w, "ranks", {});
  out.state = field_or<std::string>(w, "state", "");
  out.heard_ago = field_or<double>(w, "heartbeat_age_ms", -1000) * 1e-3;
  out.here = out.host == host && out.pid > 0;
  if (out.here) out.memory_bytes = resident_bytes(out.pid);
  return out;
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
    WorkerView worker = worker_of(w, host);
    if (worker.here) worker.state = process_state(worker.pid);
    view.workers.push_back(std::move(worker));
  }
}

RecoveryView recovery_of(const Json& line) {
  return {field_or<int64_t>(line, "step", 0), field_or<std::string>(line, "fault", ""),
          field_or<std::string>(line, "culprit", ""), number_or_0(line, "restored_ms")};
}

void read_recoveries(const RunDirectory& run, RunView& view) {
  for (const Json& line : read_json_lines(run.recoveries())) {
    view.recoveries.push_back(recovery_of(line));
  }
  view.num_recoveries = static_cast<int64_t>(view.recoveries.size());
}

/// What a run says of its page; nothing if it has none.
std::optional<NetAddress> page_of(const RunDirectory& run) {
  std::ifstream in(run.status_page(), std::ios::binary);
  std::string line;
  if (!std::getline(in, line) || line.size() > kMaxAddressBytes) return std::nullopt;
  auto address = parse_net_address(line);
  if (!address.ok() || address->port == 0) return std::nullopt;
  return std::move(*address);
}

std::string canonical(const std::string& path) {
  std::error_code error;
  return fs::weakly_canonical(fs::absolute(path, error), error).string();
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
    if (what == "start" || what == "resume") return;
    if (what != "done" && what != "failed" && what != "interrupted") continue;
    view.state = "ended: " + what;
    return;
  }
}

std::string ranks_text(const std::vector<int64_t>& ranks) {
  return ranks.empty() ? "spare" : fmt::format("{}", fmt::join(ranks, ","));
}

std::string head_text(const RunView& v) {
  const std::string of = v.num_steps > 0 ? fmt::format(" of {}", v.num_steps) : "";
  std::string out = fmt::format("run         {}: {}\n", v.path, v.state);
  if (!v.page.empty()) out += fmt::format("page        http://{}/\n", v.page);
  if (v.step == 0) return out + "step        none is done yet\n";
  out +=
      fmt::format("step        {}{}, {} ago\nloss        {:.4f}, gradient norm {:.3g}, lr {:.3g}\n",
                  v.step, of, format_seconds(v.seconds_since), v.loss, v.grad_norm, v.lr);
  out += fmt::format("rate        {} tokens/s, {} a step\n", format_count(v.tokens_per_second),
                     format_seconds(v.step_ms * 1e-3));
  if (v.memory_gib > 0) out += fmt::format("memory      {:.3g} GiB planned\n", v.memory_gib);
  if (v.seconds_left >= 0) out += fmt::format("left        {}\n", format_seconds(v.seconds_left));
  if (v.checkpoint > 0) out += fmt::format("checkpoint  step {}\n", v.checkpoint);
  if (v.generation > 0) out += fmt::format("generation  {}\n", v.generation);
  return out;
}

std::string workers_text(const RunView& v) {
  const bool heard = !v.page.empty();
  const auto line = [heard](const auto& index, const auto& host, const auto& pid,
                            const std::string& ranks, const std::string& memory,
                            const std::string& ago, const std::string& state) {
    return fmt::format("{:<11} {:<20} {:>8}  {:<16} {:>11}  {}{}\n", index, host, pid, ranks,
                       memory, heard ? fmt::format("{:<11}  ", ago) : "", state);
  };
  std::string out = line("worker", "host", "pid", "ranks", "memory", "heard", "state");
  for (const WorkerView& w : v.workers) {
    const std::string state = w.here || heard ? w.state : "on another host";
    out += line(w.index, w.host, w.pid, ranks_text(w.ranks),
                w.here && w.memory_bytes > 0 ? format_bytes(w.memory_bytes) : "-",
                w.heard_ago < 0 ? "-" : format_seconds(w.heard_ago) + " ago", state);
  }
  return out;
}

}  // namespace

Result<RunView> view_of_status(const std::string& json) {
  const Json status = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  const bool is_status = status.is_object() && status.contains("step") &&
                         status.contains("state") && status.contains("workers") &&
                         status["workers"].is_array();
  if (!is_status) return corruption("is no status page of sgactor");
  RunView view;
  view.path = field_or<std::string>(status, "run", "");
  view.state = field_or<std::string>(status, "state", "");
  view.running = view.state != "done" && view.state != "failed";
  if (!view.running) view.state = "ended: " + view.state;
  if (const auto why = field_or<std::string>(status, "trouble", ""); !why.empty()) {
    view.state += " (" + one_line(why) + ")";
  }
  read_step(status, view);
  view.num_steps = field_or<int64_t>(status, "steps", 0);
  view.seconds_since = number_or_0(status, "step_age_ms") * 1e-3;
  view.seconds_left = field_or<double>(status, "seconds_left", -1);
  view.checkpoint = field_or<int64_t>(status, "checkpoint_step", 0);
  const std::string host = this_host();
  for (const Json& w : status["workers"]) {
    if (w.is_object()) view.workers.push_back(worker_of(w, host));
  }
  view.has_processes = !view.workers.empty();
  const auto recoveries = status.find("recoveries");
  if (recoveries != status.end() && recoveries->is_array()) {
    for (const Json& line : *recoveries) {
      if (line.is_object()) view.recoveries.push_back(recovery_of(line));
    }
  }
  view.num_recoveries = field_or<int64_t>(status, "num_recoveries", 0);
  return view;
}

Result<RunView> read_page(const NetAddress& page) {
  const std::string where = to_string(page);
  SGA_ASSIGN(const HttpReply reply, http_get(page, "/status", kAnswerMs));
  auto view = view_of_status(reply.status == 200 ? reply.body : "");
  if (!view.ok()) {
    return make_status(Code::kUnsupported, where + " " + view.status().message(), Scope::kDevice);
  }
  view->page = where;
  return view;
}

Result<RunView> read_page_or_view(const RunDirectory& run) {
  if (const auto page = page_of(run)) {
    // Of a process that was killed the file stays, and its port may be another run's by now.
    auto view = read_page(*page);
    if (view.ok() && canonical(view->path) == canonical(run.path)) {
      view->path = run.path;
      return view;
    }
  }
  return read_view(run);
}

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
  if (v.has_processes) out += workers_text(v);
  out += fmt::format("recoveries  {}\n", v.num_recoveries);
  const size_t shown = std::min(most_recoveries, v.recoveries.size());
  for (size_t i = v.recoveries.size() - shown; i < v.recoveries.size(); ++i) {
    const RecoveryView& r = v.recoveries[i];
    out += fmt::format("  after step {}: {} ({}), {:.0f} ms until the state was restored\n", r.step,
                       r.fault, r.culprit, r.restored_ms);
  }
  return printable(out);
}

}  // namespace sgactor::apps
