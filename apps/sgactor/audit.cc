// sgactor audit: executes a past run again and compares bits.
#include "apps/sgactor/audit_record.h"
#include "apps/sgactor/audit_run.h"
#include "apps/sgactor/command_line.h"
#include "apps/sgactor/device.h"
#include "apps/sgactor/stop_signal.h"
#include "apps/sgactor/strategy_choice.h"
#include "graph/base/hash.h"
#include "graph/base/log.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace sgactor::apps {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct AuditOptions {
  std::string run;
  std::string steps;
  std::string devices;
  bool json = false;
};

/// Removed with all that is in it, also after a failure.
class ScratchDirectory {
 public:
  ScratchDirectory() = default;
  ~ScratchDirectory() {
    std::error_code error;
    if (!path_.empty()) fs::remove_all(path_, error);
  }
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;
  Status make() {
    std::error_code error;
    const fs::path parent = fs::temp_directory_path(error);
    if (error) return internal_error("no directory for temporary files: " + error.message());
    std::string name = (parent / "sgactor-audit-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) return internal_error(name + ": cannot create");
    path_ = name;
    return {};
  }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

struct StepRange {
  int64_t first = 0;
  int64_t last = 0;
};

/// "A..B", "A..", "..B" or "A", within the steps of the run.
Result<StepRange> parse_range(const std::string& text, const RunRecord& record) {
  StepRange range{record.first_step(), record.last_step()};
  if (text.empty()) return range;
  const size_t dots = text.find("..");
  const std::string first = text.substr(0, dots);
  const std::string last = dots == std::string::npos ? first : text.substr(dots + 2);
  const auto read = [](const std::string& digits, int64_t& out) {
    const char* end = digits.data() + digits.size();
    const auto [rest, error] = std::from_chars(digits.data(), end, out);
    return digits.empty() || (error == std::errc() && rest == end);
  };
  const bool good = (!first.empty() || !last.empty()) && read(first, range.first) &&
                    read(last, range.last) && range.first >= record.first_step() &&
                    range.first <= range.last && range.last <= record.last_step();
  if (good) return range;
  return invalid_argument(fmt::format("--steps {}: expected A..B of the run's steps {} to {}", text,
                                      record.first_step(), record.last_step()));
}

/// "cpu" of "cpu:0".
std::string kind_of(const std::string& device) { return device.substr(0, device.find(':')); }

/// The newest whole checkpoint of a step up to `last`; empty: none.
std::string newest_until(const std::vector<transport::CheckpointListing>& found, int64_t last,
                         int64_t& step) {
  std::string path;
  for (const transport::CheckpointListing& c : found) {
    if (!c.status.ok() || c.step > last) continue;
    path = c.path;
    step = c.step;
  }
  return path;
}

/// Of steps that are executed again: which of them ranks computed otherwise than this device does.
void note_arithmetic(const RunRecord& record, int64_t first, int64_t last,
                     const std::string& fingerprint, std::vector<std::string>& notes) {
  for (auto it = record.arithmetic.begin(); it != record.arithmetic.end(); ++it) {
    const auto next = std::next(it);
    const int64_t begin = std::max(first, it->first);
    const int64_t end = next == record.arithmetic.end() ? last : std::min(last, next->first - 1);
    if (begin > end) continue;
    const auto num_ranks = static_cast<int64_t>(it->second.size());
    const std::string difference =
        arithmetic_difference(same_arithmetic(num_ranks, fingerprint), it->second);
    if (difference.empty()) continue;
    notes.push_back(fmt::format("steps {} to {}: {}: bits may differ", begin, end, difference));
  }
}

/// Why bits may differ although nothing is wrong.
std::vector<std::string> notes_of(const RunRecord& record, int64_t first, int64_t last,
                                  const kernels::DeviceInfo& here) {
  std::vector<std::string> notes;
  const RecordedStart& start = record.starts.back();
  const std::string was = kind_of(start.device);
  if (!was.empty() && was != kind_of(here.device)) {
    notes.push_back(
        fmt::format("the run used {}, this is {}: bits may differ", start.device, here.device));
  } else if (!record.arithmetic.empty()) {
    note_arithmetic(record, first, last, here.fingerprint, notes);
  } else if (!start.fingerprint_hash.empty() &&
             start.fingerprint_hash != hex64(hash64(here.fingerprint))) {
    notes.push_back("the run's device, kernels or libraries were others: bits may differ");
  }
  if (!start.version.empty() && start.version != SGA_VERSION) {
    notes.push_back(fmt::format("the run is of sgactor {}, this is {}: bits may differ",
                                start.version, SGA_VERSION));
  }
  return notes;
}

Json to_json(const AuditDifference& d) {
  return {{"step", d.step},
          {"what", d.what},
          {"was", d.was.empty() ? Json() : Json(d.was)},
          {"is", d.is}};
}

std::string text_of(const AuditDifference& d) {
  return fmt::format("step {}  {} was {}, is {}", d.step, d.what,
                     d.was.empty() ? "not recorded" : d.was, d.is);
}

struct Audit {
  AuditOptions options;
  StepRange range;
  int64_t from_step = 0;  ///< the step after which execution begins
  std::string device;
  std::vector<std::string> notes;
};

void print_json(const Audit& audit, const AuditWork& work, const AuditResult& r) {
  Json out = {{"run", audit.options.run},
              {"device", audit.device},
              {"first_step", audit.range.first},
              {"last_step", audit.range.last},
              {"from_step", audit.from_step},
              {"steps", r.steps},
              {"steps_of_other_loss_bits", r.other_losses},
              {"steps_of_other_samples", r.other_samples},
              {"steps_of_unknown_samples", r.unknown_samples}};
  out["checkpoint"] = work.final_checkpoint.empty() ? Json() : Json(work.final_checkpoint);
  out["tensors"] = r.state ? Json(r.state->num_tensors) : Json();
  out["tensors_of_other_bits"] = r.state ? Json(r.state->tensors.size()) : Json();
  out["equal"] = r.equal();
  out["interrupted"] = r.interrupted;
  out["notes"] = audit.notes;
  out["differences"] = Json::array();
  for (const AuditDifference& d : r.differences) out["differences"].push_back(to_json(d));
  std::printf("%s\n", out.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
}

void print_text(const Audit& audit, const AuditWork& work, const AuditResult& r) {
  if (r.state) {
    for (const TensorDifference& d : r.state->tensors) {
      std::printf("state after step %lld  %s\n", static_cast<long long>(audit.range.last),
                  difference_text(d).c_str());
    }
  }
  std::string text = fmt::format("{} steps compared: {} of other loss bits, {} of other samples",
                                 r.steps, r.other_losses, r.other_samples);
  if (r.unknown_samples > 0) text += fmt::format(", {} without a record", r.unknown_samples);
  if (r.state) {
    text += fmt::format("; state: {} of {} tensors differ from {}", r.state->tensors.size(),
                        r.state->num_tensors, work.final_checkpoint);
  } else if (!r.interrupted) {
    text += fmt::format("; the run has no checkpoint of step {}", audit.range.last);
  }
  std::printf("%s\n%s\n", text.c_str(),
              r.interrupted ? "interrupted"
              : r.equal()   ? "equal: every bit that was compared"
                            : "different");
}

/// Jobs as this process trains them: alone, with no copies and nothing recorded.
Status prepare_jobs(const CommandLine& line, std::vector<AuditPiece>& pieces) {
  for (AuditPiece& piece : pieces) {
    piece.job.resilience.mode = "off";
    piece.job.resilience.verify_interval = 0;
    piece.job.profile = {};  // measured times change no bit
    SGA_TRY(check_supported(piece.job));
    SGA_TRY(choose_strategy(*line.strategies, piece.job));
  }
  return {};
}

/// Finds where to begin and what to compare with at the end.
Status plan_work(const CommandLine& line, const RunDirectory& run, const RunRecord& record,
                 Audit& audit, AuditWork& work) {
  std::vector<transport::CheckpointListing> found;
  if (auto listed = transport::list_checkpoints(run.checkpoints()); listed.ok()) found = *listed;
  const int64_t last = audit.range.last;
  work.first_compared = audit.range.first;
  // A range that begins with the run's first step is to check the start too.
  if (audit.range.first > 1) {
    work.checkpoint = newest_until(found, audit.range.first - 1, audit.from_step);
  }
  SGA_ASSIGN(work.pieces, audit_pieces(run, record, audit.from_step + 1, last));
  SGA_TRY(prepare_jobs(line, work.pieces));
  const bool cut = !work.checkpoint.empty() || work.pieces.size() > 1;
  const Status resumes = check_strategy_resumes(work.pieces.back().job);
  if (cut && !resumes.ok()) {
    work.checkpoint.clear();
    audit.from_step = 0;
    SGA_ASSIGN(work.pieces, audit_pieces(run, record, 1, last));
    SGA_TRY(prepare_jobs(line, work.pieces));
    if (work.pieces.size() > 1) return resumes;
  }
  int64_t step = 0;
  const std::string newest = newest_until(found, last, step);
  if (step == last) work.final_checkpoint = newest;
  return {};
}

void print_head(const Audit& audit, const AuditWork& work) {
  std::printf(
      "run       %s, steps %lld to %lld\nfrom      %s\ndevice    %s\n", audit.options.run.c_str(),
      static_cast<long long>(audit.range.first), static_cast<long long>(audit.range.last),
      work.checkpoint.empty() ? "the start" : work.checkpoint.c_str(), audit.device.c_str());
  for (const std::string& note : audit.notes) std::printf("note      %s\n", note.c_str());
  std::fflush(stdout);
}

/// Takes the step that show_steps() has written back.
void clear_line() {
  if (::isatty(STDERR_FILENO) == 1) std::fprintf(stderr, "\r\x1b[K");
}

/// Differences as they come, and, for who waits at a terminal, how far it is.
void show_steps(AuditWork& work, int64_t last) {
  work.on_difference = [](const AuditDifference& d) {
    clear_line();
    std::printf("%s\n", text_of(d).c_str());
    std::fflush(stdout);
  };
  if (::isatty(STDERR_FILENO) != 1) return;
  work.on_step = [last](int64_t step) {
    std::fprintf(stderr, "\rstep %lld of %lld", static_cast<long long>(step),
                 static_cast<long long>(last));
  };
}

Result<int> audit_run(const CommandLine& line, const AuditOptions& options) {
  const RunDirectory run{options.run};
  Audit audit;
  audit.options = options;
  SGA_ASSIGN(const RunRecord record, read_run_record(run));
  SGA_ASSIGN(audit.range, parse_range(options.steps, record));
  AuditWork work;
  work.record = &record;
  SGA_TRY(plan_work(line, run, record, audit, work));
  log::init({.level = log_level(work.pieces.back().job.log.level)});
  const std::string recorded = kind_of(record.starts.back().device);
  const std::string devices = !options.devices.empty() ? options.devices
                              : recorded.empty()       ? "cpu"
                                                       : recorded;
  SGA_ASSIGN(const DeviceSpec device, parse_devices(devices));
  SGA_ASSIGN(const auto backend, create_device(*line.backends, device));
  audit.device = backend->info().device;
  audit.notes = notes_of(record, audit.from_step + 1, audit.range.last, backend->info());
  ScratchDirectory scratch;
  SGA_TRY(scratch.make());
  work.scratch = scratch.path();
  work.backend = backend.get();
  work.stop = &install_stop_signals();
  if (!options.json) {
    print_head(audit, work);
    show_steps(work, audit.range.last);
  }
  auto result_or = run_audit(work);
  clear_line();
  SGA_ASSIGN(const AuditResult result, std::move(result_or));
  options.json ? print_json(audit, work, result) : print_text(audit, work, result);
  if (result.interrupted) return kExitInterrupted;
  return result.equal() ? kExitDone : kExitFailed;
}

}  // namespace

void add_audit(CLI::App& app, CommandLine& line) {
  CLI::App* sub = app.add_subcommand("audit", "execute a past run again and compare bits");
  auto options = std::make_shared<AuditOptions>();
  sub->add_option("run", options->run, "its run directory, which is only read")->required();
  sub->add_option("--steps", options->steps,
                  "A..B: compare these; begins after the newest checkpoint before A");
  sub->add_option("--devices", options->devices, "as for train; the kind that the run used");
  sub->add_flag("--json", options->json, "one JSON object");
  sub->footer(
      "All logical ranks are in this process. Exit code 0: all bits agree; 1: they do not; 2: no "
      "run.");
  sub->callback(
      [&line, options] { line.action = [&line, options] { return audit_run(line, *options); }; });
}

}  // namespace sgactor::apps
