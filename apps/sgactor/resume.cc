#include "apps/sgactor/resume.h"

#include "apps/sgactor/job_keys.h"
#include "graph/base/hash.h"
#include "graph/base/log.h"
#include "graph/ir/serial.h"
#include "graph/ir/text.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>

namespace sgactor::apps {
namespace {

/// Changing one of these would skip or repeat samples.
constexpr std::array<std::string_view, 9> kDataKeys = {
    "data.kind",        "data.path",     "data.tokenizer",
    "data.mock_tokens", "data.shuffle",  "data.validation_fraction",
    "training.seq_len", "training.seed", "training.global_batch_size"};

std::string next_line(std::string_view& text) {
  const size_t end = text.find('\n');
  std::string line(text.substr(0, end));
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  const size_t begin = line.find_first_not_of(' ');
  return begin == std::string::npos ? "" : line.substr(begin);
}

/// "checkpoint: …; job: …" for the first line of the graphs' text that differs.
std::string first_difference(const std::string& old_bytes, const std::string& new_bytes) {
  const auto old_graph = graph::deserialize_graph(old_bytes);
  const auto new_graph = graph::deserialize_graph(new_bytes);
  if (!old_graph.ok() || !new_graph.ok()) return "";
  const std::string old_text = graph::print_graph(*old_graph);
  const std::string new_text = graph::print_graph(*new_graph);
  std::string_view a = old_text;
  std::string_view b = new_text;
  while (!a.empty() || !b.empty()) {
    const std::string left = next_line(a);
    const std::string right = next_line(b);
    if (left != right) return "; first difference: checkpoint `" + left + "`, job `" + right + "`";
  }
  return "";
}

std::string value_of(const JobKey& key, const JobSpec& job) { return value_as_toml(key, job); }

}  // namespace

Result<ResumePoint> find_resume_point(const RunDirectory& run) {
  std::error_code error;
  if (!std::filesystem::is_directory(run.path, error))
    return invalid_argument("--resume: " + run.path + ": there is no such run directory");
  ResumePoint point;
  SGA_ASSIGN(const std::string path,
             transport::newest_checkpoint(run.checkpoints(), &point.skipped));
  SGA_ASSIGN(point.checkpoint, transport::Checkpoint::open(path));
  point.step = point.checkpoint->info().step;
  return point;
}

Status check_resumable(const transport::CheckpointInfo& info, const JobSpec& job,
                       uint64_t schema_hash, const std::string& graph_bytes) {
  const std::string where = "--resume: " + info.path;
  if (info.run_state == "IMPORTED") {
    return invalid_argument(where +
                            ": holds imported weights, no run; start a new run with "
                            "--model.weights=" +
                            info.path);
  }
  // Data first: a changed batch or length also changes the graph, and its key says more than an op.
  if (const auto old_job = parse_job(info.job, info.path, {}); old_job.ok()) {
    for (const std::string_view name : kDataKeys) {
      const JobKey& key = *find_job_key(name);
      const std::string then = value_of(key, *old_job);
      const std::string now = value_of(key, job);
      if (then == now) continue;
      return invalid_argument(job.at(name) + ": the run was started with " + then +
                              "; a resume with " + now +
                              " would skip or repeat samples; start a new run instead");
    }
  }
  if (info.schema_hash != schema_hash) {
    return invalid_argument(where + ": its training graph is another (schema_hash " +
                            hex64(info.schema_hash) + ", the job's is " + hex64(schema_hash) + ")" +
                            first_difference(info.graph, graph_bytes));
  }
  return {};
}

Status check_arithmetic(const RunDirectory& run, const RankArithmetic& is,
                        const RankArithmetic& was, bool allow_inexact) {
  const std::string difference = arithmetic_difference(is, was);
  if (difference.empty()) return {};
  if (!allow_inexact) return other_arithmetic(run, "this device", difference);
  log::warn("{}: bits may differ from here on (resilience.allow_inexact)", difference);
  return {};
}

std::vector<std::string> changed_keys(const transport::CheckpointInfo& info, const JobSpec& job) {
  std::vector<std::string> changes;
  const auto old_job = parse_job(info.job, info.path, {});
  if (!old_job.ok()) return changes;
  for (const JobKey& key : job_keys()) {
    const std::string then = value_of(key, *old_job);
    const std::string now = value_of(key, job);
    if (then != now) changes.push_back(key.full_name() + " " + then + " -> " + now);
  }
  if (old_job->decay_end() != job.decay_end() && old_job->optimizer.decay_steps == 0) {
    changes.push_back("the cosine's end " + std::to_string(old_job->decay_end()) + " -> " +
                      std::to_string(job.decay_end()) + " (optimizer.decay_steps is 0)");
  }
  return changes;
}

}  // namespace sgactor::apps
