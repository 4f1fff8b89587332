// Rules between keys, and what this build can run.
#include "apps/sgactor/byte_size.h"
#include "apps/sgactor/job_spec.h"
#include "apps/sgactor/net_address.h"

#include <fmt/format.h>

namespace sgactor::apps {

namespace {

// Beyond these a plan's sizes would not fit 64 bits, or its launch order no memory.
constexpr int64_t kMaxMicroBatchTokens = int64_t{1} << 26;
constexpr int64_t kMaxMicroBatches = 16384;

}  // namespace

Status check_combinations(const JobSpec& job) {
  const auto bad = [&](std::string_view key, const std::string& what) {
    return invalid_argument(job.at(key) + ": " + what);
  };
  if (job.model.preset.empty() && job.model.hf.empty())
    return bad("model.preset", "expected a preset, or model.hf with a Hugging Face directory");
  if (!job.model.preset.empty() && !job.model.hf.empty())
    return bad("model.hf", "give model.preset or model.hf, not both");
  if (job.data.kind != "mock" && job.data.path.empty())
    return bad("data.path", "expected a path, because data.kind is \"" + job.data.kind + "\"");
  if (job.data.tokenizer.empty()) return bad("data.tokenizer", "expected \"bytes\" or a file");
  const int64_t ranks = job.logical_ranks();
  if (job.training.micro_batch_start > 0 && !job.training.auto_micro_batch)
    return bad("training.micro_batch_start", "needs training.micro_batch_size = \"auto\"");
  const int64_t unit = job.training.micro_batch_size * ranks;
  if (job.training.global_batch_size % unit != 0) {
    return bad("training.global_batch_size",
               fmt::format("{} does not divide by training.micro_batch_size {} times {} "
                           "data-parallel rank{}; expected a multiple of {}",
                           job.training.global_batch_size, job.training.micro_batch_size, ranks,
                           ranks == 1 ? "" : "s", unit));
  }
  if (job.num_micro_batches() > kMaxMicroBatches) {
    return bad("training.global_batch_size",
               fmt::format("makes {} micro-batches a step; expected at most {}: raise "
                           "training.micro_batch_size",
                           job.num_micro_batches(), kMaxMicroBatches));
  }
  if (const int64_t tokens = job.training.micro_batch_size * job.training.seq_len;
      tokens > kMaxMicroBatchTokens) {
    return bad("training.micro_batch_size",
               fmt::format("makes micro-batches of {} tokens; expected at most {}", tokens,
                           kMaxMicroBatchTokens));
  }
  if (const std::string& budget = job.training.memory_budget;
      !budget.empty() && !parse_byte_size(budget)) {
    return bad("training.memory_budget",
               "expected bytes such as \"24 GiB\" or \"1500 MB\", got \"" + budget + "\"");
  }
  if (const std::string& room = job.compile.head_room;
      room != "auto" && room != "none" && !parse_byte_size(room)) {
    return bad("compile.head_room",
               "expected \"auto\", \"none\" or bytes such as \"2 GiB\", got \"" + room + "\"");
  }
  if (const std::string& size = job.compile.bucket_size;
      size != "auto" && size != "segment" && !parse_byte_size(size)) {
    return bad("compile.bucket_size",
               "expected \"auto\", \"segment\" or bytes such as \"25 MiB\", got \"" + size + "\"");
  }
  if (!job.profile.record.empty() && job.training.auto_micro_batch) {
    return bad("profile.record",
               "needs a number for training.micro_batch_size: times are of one size");
  }
  if (!job.log.status_page.empty()) {
    const auto address = parse_net_address(job.log.status_page);
    if (!address.ok()) return bad("log.status_page", address.status().message());
  }
  if (ranks < job.parallelism.data_parallel_degree) {
    return bad("parallelism.logical_data_parallel",
               fmt::format("expected at least parallelism.data_parallel_degree {}, got {}",
                           job.parallelism.data_parallel_degree, ranks));
  }
  if (job.optimizer.min_lr > job.optimizer.lr) {
    return bad("optimizer.min_lr", fmt::format("expected at most optimizer.lr {}, got {}",
                                               job.optimizer.lr, job.optimizer.min_lr));
  }
  if (job.resilience.verify_interval > 0) {
    const std::string needs = job.resilience.mode == "off" ? "resilience.mode \"mirror\""
                              : ranks < 2                  ? "two data-parallel ranks"
                                                           : "";
    if (!needs.empty()) {
      return bad("resilience.verify_interval",
                 "needs " + needs + ": a replica executes a rank's gradients again");
    }
  }
  if (job.training.validation_interval > 0 && job.data.validation_fraction <= 0)
    return bad("training.validation_interval", "needs data.validation_fraction above 0");
  return {};
}

Status check_supported(const JobSpec& job) {
  const auto lacks = [&](std::string_view key, const std::string& what) {
    return unsupported(job.at(key) + ": " + what);
  };
  if (job.resilience.mode == "replicas") {
    const std::string expected = "; expected \"mirror\" or \"off\"";
    if (job.logical_ranks() < 2) {
      return lacks("resilience.mode",
                   "there is one data-parallel rank, which has no replica" + expected);
    }
    if (job.parallelism.zero_stage > 0) {
      return lacks(
          "resilience.mode",
          fmt::format("with parallelism.zero_stage {} each rank holds state that no other has",
                      job.parallelism.zero_stage) +
              expected);
    }
  }
  return {};
}

}  // namespace sgactor::apps
