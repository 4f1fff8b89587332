#include "apps/sgactor/run_recorder.h"

#include "apps/sgactor/clock.h"
#include "apps/sgactor/float_bits.h"
#include "apps/sgactor/profile_file.h"
#include "apps/sgactor/status_board.h"
#include "graph/base/hash.h"
#include "graph/base/log.h"
#include "graph/base/units.h"
#include "transport/storage/run_files.h"

#include <nlohmann/json.hpp>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>

namespace sgactor::apps {
namespace {

using Json = nlohmann::ordered_json;

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
/// A JSON string of any bytes: what is not UTF-8 is replaced, where dump() alone would throw.
std::string quoted(const std::string& text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

double tokens_per_second(const actors::StepReport& r) {
  return r.step_ms > 0 ? static_cast<double>(r.tokens) / (r.step_ms * 1e-3) : 0;
}

Status open_append(std::ofstream& out, const std::string& file) {
  SGA_TRY(transport::cut_unfinished_line(file));
  out.open(file, std::ios::binary | std::ios::app);
  if (out) return {};
  return make_status(Code::kInternal, file + ": cannot write: " + std::strerror(errno));
}

Json metrics_of(const actors::StepReport& r, double flops_per_token, int64_t memory_bytes,
                double peak_flops) {
  const double rate = tokens_per_second(r);
  Json line;
  line["step"] = r.step;
  line["loss"] = r.loss;  // a NaN is written as null; loss_bits still has it
  line["loss_bits"] = float_bits(r.loss);
  line["grad_norm"] = r.grad_norm;
  line["lr"] = r.lr;
  line["tokens"] = r.tokens;
  line["tok_s"] = rate;
  line["step_ms"] = r.step_ms;
  line["tflops"] = rate * flops_per_token * 1e-12;
  line["mfu"] = peak_flops > 0 ? Json(rate * flops_per_token / peak_flops) : Json();
  line["mem_gib"] = static_cast<double>(memory_bytes) / static_cast<double>(kGiB);
  line["overlap"] = nullptr;  // launches of a run that is not traced are not timed
  line["generation"] = r.generation;
  return line;
}

/// A curve for each number of a metrics line, named as there.
TensorBoardEvents::Scalars curves_of(const Json& metrics) {
  TensorBoardEvents::Scalars curves;
  for (const auto& [key, value] : metrics.items())
    if (value.is_number() && key != "step") curves.emplace_back("train/" + key, value);
  return curves;
}

}  // namespace

std::string metrics_line(const actors::StepReport& report, double flops_per_token,
                         int64_t memory_bytes, double peak_flops) {
  return metrics_of(report, flops_per_token, memory_bytes, peak_flops).dump();
}

double known_peak_flops(const JobSpec& job, const std::string& devices, int64_t workers) {
  const auto loaded = load_cluster(job);
  if (!loaded.ok() || loaded->cluster == nullptr) return 0;
  const graph::DeviceSpec& device = loaded->cluster->hosts[0].devices[0];
  const auto is_cpu = [](const std::string& kind) { return kind.starts_with("cpu"); };
  const bool same =
      is_cpu(devices) == is_cpu(device.kind) && (is_cpu(devices) || devices.starts_with("cuda"));
  // What a GPU reaches is stated for products in 16 bits.
  if (!same || (!is_cpu(devices) && job.training.dtype != "bf16")) return 0;
  const JobSpec::Parallelism& p = job.parallelism;
  const int64_t mesh =
      p.data_parallel_degree * p.tensor_parallel_degree * p.pipeline_parallel_degree;
  return device.flops_per_s * static_cast<double>(workers > 0 ? workers : mesh);
}

RunRecorder::RunRecorder(RecorderOptions options)
    : options_(std::move(options)),
      validation_(std::numeric_limits<double>::quiet_NaN()),
      colour_(wants_colour(STDOUT_FILENO)) {}

Status RunRecorder::open() {
  SGA_TRY(open_append(metrics_, options_.run.metrics()));
  SGA_TRY(open_append(audit_, options_.run.audit()));
  if (!options_.tensorboard.empty())
    SGA_TRY(events_.open(options_.tensorboard, options_.first_step));
  time_left_.step_done(steady_seconds(), 0);
  return {};
}

void RunRecorder::write(std::ofstream& out, const std::string& file, const std::string& line) {
  out << line << '\n' << std::flush;
  if (!out) keep(make_status(Code::kInternal, file + ": cannot write: " + std::strerror(errno)));
}

void RunRecorder::keep(const Status& status) {
  if (status.ok() || !status_.ok()) return;
  status_ = status;
  log::error("{}", status_.message());
}

void RunRecorder::audit(const std::string& who, const std::string& what,
                        const std::string& fields) {
  write(audit_, options_.run.audit(),
        fmt::format("{{\"time\":{:.3f},\"who\":{},\"what\":{}{}{}}}", unix_seconds(), quoted(who),
                    quoted(what), fields.empty() ? "" : ",", fields));
}

/// For the status page.
void RunRecorder::show(const actors::StepReport& r, double seconds_left) {
  if (options_.status == nullptr) return;
  StepFacts facts;
  facts.step = r.step;
  facts.measured = true;
  facts.loss = r.loss;
  facts.grad_norm = r.grad_norm;
  facts.lr = r.lr;
  facts.tokens = r.tokens;
  facts.all_tokens = tokens_;
  facts.tokens_per_second = tokens_per_second(r);
  facts.step_ms = r.step_ms;
  const double flops = facts.tokens_per_second * options_.flops_per_token;
  facts.tflops = flops * 1e-12;
  if (options_.peak_flops > 0) facts.mfu = flops / options_.peak_flops;
  facts.memory_bytes = options_.memory_bytes;
  facts.seconds_left = seconds_left;
  facts.generation = r.generation;
  facts.done_ms = now_ms();
  options_.status->set_step(facts);
}

void RunRecorder::on_step(const actors::StepReport& r) {
  last_ = r;
  tokens_ += r.tokens;
  const Json metrics =
      metrics_of(r, options_.flops_per_token, options_.memory_bytes, options_.peak_flops);
  write(metrics_, options_.run.metrics(), metrics.dump());
  if (!options_.tensorboard.empty()) keep(events_.add(r.step, curves_of(metrics)));
  audit("coordinator", "commit",
        fmt::format("\"step\":{},\"generation\":{},\"sample_hash\":\"{}\",\"loss_bits\":\"{}\"",
                    r.step, r.generation, hex64(r.sample_hash), float_bits(r.loss)));
  const double left = time_left_.step_done(steady_seconds(), options_.last_step - r.step);
  show(r, left);
  if (r.step % options_.log_interval != 0 && r.step != options_.last_step &&
      r.step != options_.first_step)
    return;
  ProgressFacts facts;
  facts.step = r.step;
  facts.first_step = options_.first_step;
  facts.last_step = options_.last_step;
  facts.loss = r.loss;
  facts.grad_norm = r.grad_norm;
  facts.lr = r.lr;
  facts.tokens_per_second = tokens_per_second(r);
  facts.tflops = facts.tokens_per_second * options_.flops_per_token * 1e-12;
  facts.memory_bytes = options_.memory_bytes;
  facts.seconds_left = left;
  std::printf("%s\n", progress_line(facts, colour_).c_str());
  std::fflush(stdout);
}

void RunRecorder::on_validation(int64_t step, double loss) {
  validation_ = loss;
  if (options_.status != nullptr) options_.status->set_validation(step, loss);
  if (!validations_.is_open()) {
    if (Status s = open_append(validations_, options_.run.validation()); !s.ok() && status_.ok())
      status_ = s;
  }
  Json line;
  line["step"] = step;
  line["loss"] = loss;
  line["loss_bits"] = float_bits(static_cast<float>(loss));
  write(validations_, options_.run.validation(), line.dump());
  keep(events_.add(step, {{"validation/loss", loss}}));
  std::printf("step %lld  validation loss %.4f\n", static_cast<long long>(step), loss);
  std::fflush(stdout);
}

void RunRecorder::on_checkpoint(int64_t step, const std::string& path,
                                const transport::WriteStats& stats) {
  ++checkpoints_;
  if (options_.status != nullptr) options_.status->set_checkpoint(step);
  audit("checkpoint_writer", "checkpoint",
        fmt::format("\"step\":{},\"path\":{},\"written_bytes\":{},\"reused_bytes\":{},"
                    "\"seconds\":{:.4f}",
                    step, quoted(path), stats.bytes_written, stats.bytes_reused, stats.seconds));
  log::debug("checkpoint of step {} in {}: {} written, {} reused", step, path,
             format_bytes(stats.bytes_written), format_bytes(stats.bytes_reused));
}

void RunRecorder::on_verified(const actors::VerifiedStep& v) {
  if (v.rank < 0) return audit("coordinator", "verified", fmt::format("\"step\":{}", v.step));
  audit("coordinator", "wrong bits",
        fmt::format("\"step\":{},\"rank\":{},\"hash\":\"{}\",\"checker\":{},\"checker_hash\":"
                    "\"{}\",\"umpire\":{},\"umpire_hash\":\"{}\",\"liar\":{}",
                    v.step, v.rank, hex64(v.own_hash), v.checker, hex64(v.checker_hash), v.umpire,
                    hex64(v.umpire_hash), v.liar));
}

}  // namespace sgactor::apps
