#include "apps/sgactor/audit_record.h"

#include "apps/sgactor/json_lines.h"
#include "graph/base/hash.h"
#include "transport/storage/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <limits>
#include <utility>

namespace sgactor::apps {
namespace {

using Json = nlohmann::ordered_json;

/// A start after a checkpoint: what was recorded of later steps before counts no more.
void add_start(const Json& line, RunRecord& record) {
  RecordedStart start;
  start.first_step = field_or<int64_t>(line, "first_step", 1);
  start.version = field_or<std::string>(line, "version", "");
  start.job_hash = field_or<std::string>(line, "job_hash", "");
  start.schema_hash = field_or<std::string>(line, "schema_hash", "");
  start.device = field_or<std::string>(line, "device", "");
  start.fingerprint_hash = field_or<std::string>(line, "fingerprint_hash", "");
  std::erase_if(record.starts,
                [&](const RecordedStart& s) { return s.first_step >= start.first_step; });
  record.sizes.erase(record.sizes.lower_bound(start.first_step), record.sizes.end());
  record.starts.push_back(std::move(start));
}

void add_line(const Json& line, RunRecord& record) {
  const auto what = field_or<std::string>(line, "what", "");
  const auto step = field_or<int64_t>(line, "step", 0);
  if (what == "start" || what == "resume") {
    add_start(line, record);
  } else if (what == "commit") {
    record.samples[step] = field_or<std::string>(line, "sample_hash", "");
  } else if (what == "micro_batch_size") {
    record.sizes[step + 1] = field_or<int64_t>(line, "to", 0);
  } else {
    add_arithmetic(line, record.arithmetic);
  }
}

std::string hash_of(const JobSpec& job) { return hex64(hash64(write_job(job, false))); }

/// The jobs that a run directory holds, by hash.
class KnownJobs {
 public:
  static Result<KnownJobs> create(const RunDirectory& run) {
    KnownJobs out;
    SGA_ASSIGN(out.resolved_, load_job(run.job(), {}));
    out.add(out.resolved_);
    const auto copies = transport::list_checkpoints(run.checkpoints());
    if (!copies.ok()) return out;
    for (const auto& copy : *copies) {
      if (!copy.status.ok()) continue;
      const auto checkpoint = transport::Checkpoint::open(copy.path);
      if (!checkpoint.ok()) continue;
      auto job = parse_job((*checkpoint)->info().job, copy.path, {});
      if (!job.ok()) continue;
      // A copy says with which size the tuner went on, the start's hash what it was given.
      if (job->training.auto_micro_batch) {
        for (const int64_t given : {out.resolved_.training.micro_batch_start, int64_t{0}}) {
          JobSpec started = *job;
          started.training.micro_batch_start = given;
          out.add(std::move(started));
        }
      }
      out.add(std::move(*job));
    }
    return out;
  }

  /// The job of a start whose last step was `last`; null: not here. An empty hash is the resolved
  /// job's.
  const JobSpec* find(const std::string& hash, int64_t last) {
    if (hash.empty()) return &resolved_;
    if (const auto it = jobs_.find(hash); it != jobs_.end()) return &it->second;
    JobSpec shorter = resolved_;
    shorter.training.steps = last;
    if (hash_of(shorter) != hash) return nullptr;
    return &jobs_.emplace(hash, std::move(shorter)).first->second;
  }

 private:
  void add(JobSpec job) {
    std::string hash = hash_of(job);
    jobs_.emplace(std::move(hash), std::move(job));
  }

  JobSpec resolved_;
  std::map<std::string, JobSpec> jobs_;
};

/// A start that changed nothing goes on with the piece before it.
void add_piece(AuditPiece piece, std::vector<AuditPiece>& out) {
  if (!out.empty() && write_job(out.back().job, false) == write_job(piece.job, false)) {
    out.back().last = piece.last;
  } else {
    out.push_back(std::move(piece));
  }
}

/// Cuts steps [first, last] of one job where another micro-batch size was chosen. A resumed run
/// goes on with the size that was last in use.
void add_pieces(const RunRecord& record, const JobSpec& job, int64_t first, int64_t last,
                std::vector<AuditPiece>& out) {
  AuditPiece piece{first, last, job};
  const auto set_size = [&piece](int64_t size) {
    if (size > 0) piece.job.training.micro_batch_size = size;
  };
  auto next = record.sizes.upper_bound(first);
  if (!job.training.auto_micro_batch) next = record.sizes.end();
  piece.job.training.auto_micro_batch = false;
  piece.job.training.micro_batch_start = 0;
  if (job.training.auto_micro_batch && next != record.sizes.begin()) {
    set_size(std::prev(next)->second);
  }
  for (; next != record.sizes.end() && next->first <= last; ++next) {
    piece.last = next->first - 1;
    add_piece(piece, out);
    piece.first = next->first;
    piece.last = last;
    set_size(next->second);
  }
  add_piece(std::move(piece), out);
}

}  // namespace

Result<RunRecord> read_run_record(const RunDirectory& run) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(run.job(), error) ||
      !std::filesystem::is_regular_file(run.metrics(), error)) {
    return invalid_argument(run.path +
                            ": is no run directory: expected job.resolved.toml and metrics.jsonl");
  }
  RunRecord record;
  for (const Json& line : read_json_lines(run.metrics())) {
    const auto step = field_or<int64_t>(line, "step", 0);
    if (!record.loss_bits.emplace(step, field_or<std::string>(line, "loss_bits", "")).second) {
      return corruption(fmt::format("{}: step {} has two lines", run.metrics(), step));
    }
  }
  if (record.loss_bits.empty()) return invalid_argument(run.metrics() + ": holds no step");
  for (const Json& line : read_json_lines(run.audit())) add_line(line, record);
  if (record.starts.empty()) record.starts.emplace_back();
  return record;
}

Result<std::vector<AuditPiece>> audit_pieces(const RunDirectory& run, const RunRecord& record,
                                             int64_t first, int64_t last) {
  SGA_ASSIGN(KnownJobs jobs, KnownJobs::create(run));
  std::vector<AuditPiece> out;
  for (size_t i = 0; i < record.starts.size(); ++i) {
    const RecordedStart& start = record.starts[i];
    const bool newest = i + 1 == record.starts.size();
    const int64_t end =
        newest ? std::numeric_limits<int64_t>::max() : record.starts[i + 1].first_step - 1;
    // What lies before the first start that is known was executed by the same job, or nobody knows.
    const int64_t begin = i == 0 ? std::min<int64_t>(1, start.first_step) : start.first_step;
    if (end < first || begin > last) continue;
    const JobSpec* job = jobs.find(start.job_hash, end);
    if (job == nullptr) {
      return invalid_argument(fmt::format(
          "{}: steps {} to {} were trained with a job that the run no longer holds (job_hash {}); "
          "--steps {}.. leaves them out",
          run.path, begin, end, start.job_hash, end + 1));
    }
    add_pieces(record, *job, std::max(begin, first), std::min(end, last), out);
  }
  return out;
}

}  // namespace sgactor::apps
