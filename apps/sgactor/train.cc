// sgactor train: reads a job, compiles it, runs it through the actors, records it.
#include "actors/runtime/training.h"
#include "apps/sgactor/command_line.h"
#include "apps/sgactor/device.h"
#include "apps/sgactor/run_directory.h"
#include "apps/sgactor/run_recorder.h"
#include "apps/sgactor/run_report.h"
#include "apps/sgactor/run_summary.h"
#include "apps/sgactor/start.h"
#include "apps/sgactor/stop_signal.h"
#include "apps/sgactor/training_setup.h"
#include "graph/base/hash.h"
#include "graph/base/log.h"
#include "transport/storage/run_files.h"

#include <CLI/CLI.hpp>

#include <cstdio>
#include <ctime>
#include <filesystem>
#include <memory>

namespace sgactor::apps {
namespace {

struct TrainOptions {
  std::string job;
  std::string devices = "cpu";
  std::string run_dir;
  std::string bind;
  int64_t workers = 1;
  bool resume = false;
  bool run_dir_given = false;
};

Result<JobSpec> read_job(const CommandLine& line, const TrainOptions& options) {
  if (options.workers != 1) {
    return unsupported("--workers " + std::to_string(options.workers) +
                       ": this build runs one worker; expected 1");
  }
  if (options.resume && options.run_dir.empty())
    return invalid_argument("--resume: needs --run-dir DIR of the run to go on with");
  if (!options.job.empty()) return load_job(options.job, line.overrides);
  if (!options.resume)
    return invalid_argument("train: expected a job file; `sgactor init` prints one");
  SGA_ASSIGN(JobSpec job, load_job(RunDirectory{options.run_dir}.job(), line.overrides));
  job.name = std::filesystem::path(options.run_dir).filename().string();
  return job;
}

actors::TrainingSpec training_spec(const JobSpec& job, const RunDirectory& run,
                                   const TrainingSetup& setup, int64_t first_step,
                                   const kernels::Backend& backend) {
  actors::TrainingSpec spec;
  spec.first_step = first_step;
  spec.last_step = job.training.steps;
  spec.checkpoint_interval = job.checkpoint.interval;
  spec.keep_checkpoints = job.checkpoint.keep;
  spec.checkpoint_root = run.checkpoints();
  spec.journal_file = run.journal();
  transport::CheckpointInfo& info = spec.checkpoint_template;
  info.schema_hash = setup.training.compiled.plan.schema_hash;
  info.mesh = "pp=1 dp=1 tp=1";
  info.run_state = "RUNNING";
  info.data_seed = static_cast<uint64_t>(job.training.seed);
  info.model_config = graph::to_hf_config(setup.training.config);
  info.job = write_job(job, false);
  info.graph = setup.training.graph_bytes;
  spec.validation_interval = setup.validation ? job.training.validation_interval : 0;
  spec.validation_batches = job.training.validation_batches;
  if (job.log.trace_steps > 0) spec.trace_file = run.trace();
  spec.trace_steps = job.log.trace_steps;
  spec.scheduler_threads = std::max(2, std::min(backend.info().num_threads, 8));
  return spec;
}

/// Makes the directory ready for steps from `first_step` on. Writes for the first time.
Status open_run(const JobSpec& job, const RunDirectory& run, int64_t first_step) {
  SGA_TRY(create_run(run));
  SGA_TRY(truncate_steps(run.metrics(), first_step - 1).status());
  SGA_TRY(truncate_steps(run.validation(), first_step - 1).status());
  return transport::write_file_atomic(run.job(), write_job(job, false));
}

/// From here on a failure is the run's (exit code 1), not the command's.
Result<int> run_job(const JobSpec& job, const TrainingSetup& setup, const RunDirectory& run,
                    const Start& start, kernels::Backend& backend) {
  const graph::Plan& plan = setup.training.compiled.plan;
  RunRecorder recorder({run, start.first_step, job.training.steps, job.log.interval,
                        plan.flops_per_token, plan.memory.planned_bytes});
  SGA_TRY(recorder.open());
  recorder.audit("main", start.first_step == 1 ? "start" : "resume",
                 fmt::format("\"version\":\"{}\",\"first_step\":{},\"schema_hash\":\"{}\","
                             "\"job_hash\":\"{}\",\"device\":\"{}\",\"fingerprint_hash\":\"{}\"",
                             SGA_VERSION, start.first_step, hex64(plan.schema_hash),
                             hex64(hash64(write_job(job, false))), backend.info().device,
                             hex64(hash64(backend.info().fingerprint))));
  actors::TrainingInputs inputs;
  inputs.plan = &plan;
  inputs.validation_plan = setup.validation ? &setup.validation->plan : nullptr;
  inputs.backend = &backend;
  inputs.sampler = setup.sampler.get();
  inputs.validation_sampler = setup.validation_sampler.get();
  inputs.initial_state = start.state.get();
  inputs.observer = &recorder;
  inputs.stop = &install_stop_signals();
  auto summary =
      actors::run_training(training_spec(job, run, setup, start.first_step, backend), inputs);
  Status failure = summary.status();
  const std::string report =
      run_report(job, plan, recorder, summary.ok() ? *summary : actors::TrainingSummary{}, failure);
  if (Status s = transport::write_file_atomic(run.report(), report); failure.ok()) failure = s;
  recorder.audit("main", !failure.ok() ? "failed" : summary->interrupted ? "interrupted" : "done");
  if (failure.ok()) failure = recorder.status();
  if (failure.ok()) {
    print_end(run, recorder, *summary);
    if (!summary->interrupted)
      failure = export_and_sample(job, setup.training.config, run, backend);
  }
  if (!failure.ok()) {
    std::fprintf(stderr, "sgactor: the run failed: %s\n", failure.to_string().c_str());
    return kExitFailed;
  }
  return summary->interrupted ? kExitInterrupted : kExitDone;
}

/// A run that is gone on with is locked before its job and checkpoints are read.
Status lock_resumed_run(const TrainOptions& options, RunLock& lock) {
  std::error_code error;
  if (!options.resume || !std::filesystem::is_directory(options.run_dir, error)) return {};
  return lock.take({options.run_dir});
}

Status check_new(const RunDirectory& run) {
  SGA_TRY(check_not_in_use(run));
  return check_new_run(run.path);
}

Result<int> train(const CommandLine& line, TrainOptions options) {
  if (options.run_dir_given && options.run_dir.empty())
    return invalid_argument("--run-dir: expected a directory, got an empty name");
  while (options.run_dir.size() > 1 && options.run_dir.ends_with('/')) options.run_dir.pop_back();
  RunLock lock;
  SGA_TRY(lock_resumed_run(options, lock));
  SGA_ASSIGN(const JobSpec job, read_job(line, options));
  log::init({.level = log_level(job.log.level)});
  SGA_TRY(check_supported(job));
  if (!options.bind.empty())
    log::info("--bind {}: not used, this build runs on one host", options.bind);
  SGA_ASSIGN(const DeviceSpec device, parse_devices(options.devices));
  SGA_ASSIGN(auto backend, create_device(*line.backends, device));
  const RunDirectory run{options.run_dir.empty() ? default_run_path(job.name, std::time(nullptr))
                                                 : options.run_dir};
  if (!options.resume) SGA_TRY(check_new(run));
  SGA_ASSIGN(const TrainingSetup setup, set_up_training(job, storage_model(*backend)));
  SGA_TRY(check_memory(setup.training.compiled.plan, *backend));
  SGA_ASSIGN(const Start start, options.resume ? resumed_start(job, run, setup.training)
                                               : fresh_start(job, setup.training.config));
  if (!options.resume) SGA_TRY(claim_new_run(run, lock));
  print_head(job, setup.training.compiled.plan, backend->info(), run);
  if (start.first_step > job.training.steps) {
    std::printf("nothing to do: the checkpoint is at step %lld of training.steps %lld\n",
                static_cast<long long>(start.first_step - 1),
                static_cast<long long>(job.training.steps));
    return kExitDone;
  }
  SGA_TRY(open_run(job, run, start.first_step));
  return run_job(job, setup, run, start, *backend);
}

}  // namespace

void add_train(CLI::App& app, CommandLine& line) {
  CLI::App* sub = app.add_subcommand("train", "train the model of a job file");
  auto options = std::make_shared<TrainOptions>();
  sub->add_option("job", options->job, "job file; with --resume the run's own by default");
  sub->add_option("--workers", options->workers, "worker processes")->capture_default_str();
  sub->add_option("--devices", options->devices,
                  "cpu, cpu:THREADS, reference, symbolic or cuda:all")
      ->capture_default_str();
  sub->add_option("--run-dir", options->run_dir, "default: runs/<job name>-<time>");
  sub->add_option("--bind", options->bind, "address that other hosts reach this one by");
  sub->add_flag("--resume", options->resume, "go on from the newest whole checkpoint");
  sub->callback([&line, sub, options] {
    options->run_dir_given = sub->count("--run-dir") > 0;
    line.action = [&line, options] { return train(line, *options); };
  });
}

}  // namespace sgactor::apps
