// sgactor train: reads a job, compiles it, runs it through the actors, records it.
#include "actors/runtime/training.h"
#include "apps/sgactor/cluster.h"
#include "apps/sgactor/cluster_left.h"
#include "apps/sgactor/cluster_options.h"
#include "apps/sgactor/cluster_ranks.h"
#include "apps/sgactor/command_line.h"
#include "apps/sgactor/device.h"
#include "apps/sgactor/expected_step.h"
#include "apps/sgactor/local_plane.h"
#include "apps/sgactor/micro_batch_run.h"
#include "apps/sgactor/node.h"
#include "apps/sgactor/plan_cache.h"
#include "apps/sgactor/profile_file.h"
#include "apps/sgactor/recovery_log.h"
#include "apps/sgactor/resume.h"
#include "apps/sgactor/run_directory.h"
#include "apps/sgactor/run_recorder.h"
#include "apps/sgactor/run_report.h"
#include "apps/sgactor/run_summary.h"
#include "apps/sgactor/solo_watch.h"
#include "apps/sgactor/start.h"
#include "apps/sgactor/status_page.h"
#include "apps/sgactor/stop_signal.h"
#include "apps/sgactor/strategy_choice.h"
#include "apps/sgactor/training_setup.h"
#include "apps/sgactor/training_spec.h"
#include "graph/base/hash.h"
#include "graph/base/log.h"
#include "supervision/recovery/replicas.h"
#include "transport/storage/checkpoint.h"
#include "transport/storage/run_files.h"

#include <CLI/CLI.hpp>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <memory>

namespace sgactor::apps {
namespace {

struct TrainOptions {
  std::string job;
  std::string devices = "cpu";
  std::string run_dir;
  bool resume = false;
  bool run_dir_given = false;
  CacheOptions cache;
  ClusterOptions cluster;
  Launcher launcher;
};

Result<JobSpec> read_job(const CommandLine& line, const TrainOptions& options) {
  if (options.resume && options.run_dir.empty())
    return invalid_argument("--resume: needs --run-dir DIR of the run to go on with");
  if (!options.job.empty()) return load_job(options.job, line.overrides);
  if (!options.resume)
    return invalid_argument("train: expected a job file; `sgactor init` prints one");
  SGA_ASSIGN(JobSpec job, load_job(RunDirectory{options.run_dir}.job(), line.overrides));
  job.name = std::filesystem::path(options.run_dir).filename().string();
  return job;
}

/// Makes the directory ready for steps after `last_step`. Writes for the first time.
Status open_run(const JobSpec& job, const RunDirectory& run, int64_t last_step) {
  SGA_TRY(create_run(run));
  SGA_TRY(truncate_steps(run.metrics(), last_step).status());
  SGA_TRY(truncate_steps(run.validation(), last_step).status());
  RecoveryLog log;  // there from the start, so that who reads it need not ask
  SGA_TRY(log.open(run.recoveries()));
  std::error_code ignored;  // of a process that was killed, whose page is gone
  std::filesystem::remove(run.status_page(), ignored);
  return transport::write_file_atomic(run.job(), write_job(job, false));
}

/// A run whose actors stand still does not end by itself: it is recorded as any that fails, and the
/// process ends with all that waits.
[[noreturn]] void end_standing(const JobSpec& job, const graph::Plan& plan, RunRecorder& recorder,
                               const RunDirectory& run, const Status& why) {
  const std::string report = run_report(job, plan, recorder, actors::TrainingSummary{}, why);
  (void)transport::write_file_atomic(run.report(), report);
  recorder.audit("main", "failed");
  std::error_code ignored;  // nothing is destroyed
  std::filesystem::remove(run.status_page(), ignored);
  std::fprintf(stderr, "sgactor: the run failed: %s\n", why.to_string().c_str());
  std::fflush(nullptr);
  std::_Exit(kExitFailed);
}

Result<actors::TrainingSummary> run_here(const TunedRun& tuned, const RunDirectory& run,
                                         const TrainOptions& options,
                                         const actors::TrainingSpec& spec,
                                         actors::TrainingInputs inputs) {
  SGA_ASSIGN(const auto plane, create_local_plane(*inputs.plan));
  inputs.collectives = &plane->collectives();
  SoloWatch::Options watched;
  watched.progress_factor = tuned.job.resilience.progress_factor;
  watched.progress_floor_s = tuned.job.resilience.progress_floor;
  watched.expected_step_ms = expected_step_ms(tuned.job, *inputs.plan, options.devices, 1);
  watched.run = run;
  watched.last_step = spec.first_step - 1;
  SoloWatch watch(watched, *inputs.observer, [&](const Status& why) {
    end_standing(tuned.job, *inputs.plan, tuned.recorder, run, why);
  });
  inputs.observer = &watch;
  inputs.on_running = [&watch](actors::WorkerAssembly* assembly) { watch.follow(assembly); };
  return tuned.job.training.auto_micro_batch ? run_tuned(tuned, spec, inputs)
                                             : actors::run_training(spec, inputs);
}

/// Records by what ranks compute, and what of it is not as it was before.
void note_arithmetic(const RunDirectory& run, int64_t first_step, const RankArithmetic& is,
                     const RankArithmetic& was) {
  const Status written = record_arithmetic(run, first_step, is, arithmetic_difference(is, was));
  if (!written.ok()) log::warn("{}", written.message());
}

Result<actors::TrainingSummary> run_cluster(Cluster& cluster, const RunDirectory& run,
                                            const Start& start, const RecordedSteps& recorded,
                                            const actors::TrainingSpec& spec,
                                            const actors::TrainingInputs& inputs) {
  Cluster::Work work;
  work.recorded = recorded;
  work.plan = inputs.plan;
  work.validation_plan = inputs.validation_plan;
  work.run_directory = std::filesystem::absolute(run.path).string();
  work.first_step = start.first_step;
  if (!start.checkpoint.empty()) {
    work.checkpoint = std::filesystem::absolute(start.checkpoint).string();
  }
  work.spec = spec;
  work.observer = inputs.observer;
  work.on_arithmetic = [run, was = start.arithmetic](int64_t first_step,
                                                     const RankArithmetic& is) mutable {
    note_arithmetic(run, first_step, is, was);
    was = is;
  };
  auto summary = cluster.run(work, *inputs.stop);
  cluster.end(summary.status());
  return summary;
}

/// From here on a failure is the run's (exit code 1), not the command's.
Result<int> run_job(const JobSpec& job, TrainingSetup& setup, const RunDirectory& run,
                    const Start& start, const RecordedSteps& recorded, kernels::Backend& backend,
                    const PlanCache& cache, const TrainOptions& options, Cluster* cluster,
                    StatusBoard* status) {
  const graph::Plan& plan = setup.training.compiled.plan;  // the tuner may replace it in place
  const int64_t workers = cluster != nullptr ? options.cluster.workers : 1;
  RunRecorder recorder({run, start.first_step, job.training.steps, job.log.interval,
                        plan.flops_per_token, plan.memory.planned_bytes,
                        known_peak_flops(job, options.devices, workers),
                        job.log.tensorboard ? run.tensorboard() : std::string(), status});
  SGA_TRY(recorder.open());
  recorder.audit("main", start.first_step == 1 ? "start" : "resume",
                 fmt::format("\"version\":\"{}\",\"first_step\":{},\"schema_hash\":\"{}\","
                             "\"job_hash\":\"{}\",\"device\":\"{}\",\"fingerprint_hash\":\"{}\"",
                             SGA_VERSION, start.first_step, hex64(plan.schema_hash),
                             hex64(hash64(write_job(job, false))), backend.info().device,
                             hex64(hash64(backend.info().fingerprint))));
  if (cluster == nullptr) {
    const auto num_ranks = static_cast<int64_t>(plan.ranks.size());
    note_arithmetic(run, start.first_step, same_arithmetic(num_ranks, backend.info().fingerprint),
                    start.arithmetic);
  }
  actors::TrainingInputs inputs;
  inputs.plan = &plan;
  inputs.validation_plan = setup.validation ? &setup.validation->plan : nullptr;
  inputs.backend = &backend;
  inputs.sampler = setup.data.sampler.get();
  inputs.validation_sampler = setup.data.validation_sampler.get();
  inputs.initial_state = start.state.get();
  inputs.observer = &recorder;
  inputs.stop = &install_stop_signals();
  actors::TrainingSpec spec =
      training_spec(job, run, start.first_step, setup.validation.has_value(),
                    std::max(2, std::min(backend.info().num_threads, 8)));
  describe_job(job, setup.training, spec);
  if (status != nullptr && cluster == nullptr) {
    show_lone_process(*status, backend.info().device, static_cast<int64_t>(plan.ranks.size()));
  }
  auto summary =
      cluster != nullptr
          ? run_cluster(*cluster, run, start, recorded, spec, inputs)
          : run_here({job, setup.training, backend, cache, recorder, inputs.validation_plan}, run,
                     options, spec, inputs);
  Status failure = summary.status();
  if (status != nullptr) status->end(failure.ok() ? RunState::kDone : RunState::kFailed);
  if (failure.ok()) failure = record_profile(job, plan, run, backend.info());
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
  if (exit_code(failure) == kExitNoDevice) return failure;  // a worker's device, or its memory
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

/// A resumed run goes on with the size that its checkpoint was made with. The job's own start
/// stays: validation has its size in every part of the run.
Status take_micro_batch_size(const RunDirectory& run, JobSpec& job) {
  SGA_ASSIGN(const ResumePoint point, find_resume_point(run));
  const transport::CheckpointInfo& info = point.checkpoint->info();
  const auto then = parse_job(info.job, info.path, {});
  if (!then.ok() || job.rank_batch_size() % then->training.micro_batch_size != 0) return {};
  job.training.micro_batch_size = then->training.micro_batch_size;
  return {};
}

Status check_new(const RunDirectory& run) {
  SGA_TRY(check_not_in_use(run));
  return check_new_run(run.path);
}

Status check_replicas(const JobSpec& job, const graph::Plan& plan) {
  if (job.resilience.mode != "replicas") return {};
  const std::string why = supervision::no_replicas(plan);
  if (why.empty()) return {};
  return unsupported(job.at("resilience.mode") + ": no replicas: " + why);
}

bool has_processes(const TrainOptions& options) {
  const ClusterOptions& o = options.cluster;
  return o.workers > 0 || o.spares > 0 || !o.nodes.empty() || !o.hosts.empty() ||
         options.launcher.size > 1;
}

/// Processes that the logical ranks are dealt over.
int64_t count_workers(const JobSpec& job, const TrainOptions& options) {
  if (!has_processes(options)) return 1;
  if (options.cluster.workers > 0) return options.cluster.workers;
  const JobSpec::Parallelism& p = job.parallelism;
  return p.data_parallel_degree * p.tensor_parallel_degree * p.pipeline_parallel_degree;
}

/// What each device will hold, as far as is known here: workers on other hosts have theirs there.
/// `left`: workers wait for this coordinator, which hold what they will use.
DeviceShare device_share(const JobSpec& job, const TrainOptions& options,
                         const TrainingSetup& setup, bool left) {
  const ClusterOptions& o = options.cluster;
  DeviceShare share;
  share.beside.validation = setup.validation ? &setup.validation->plan : nullptr;
  share.beside.snapshots = true;
  share.beside.verifies = job.resilience.verify_interval > 0;
  share.workers = count_workers(job, options);
  const bool elsewhere = !o.nodes.empty() || !o.hosts.empty() || options.launcher.size > 1;
  if (elsewhere) {
    share.devices = 0;
  } else if (share.workers > 1) {
    const auto here = devices_here(options.devices);
    share.devices = here.ok() ? static_cast<int64_t>(here->size()) : 1;
  }
  share.whole = left;
  return share;
}

/// What a coordinator of this run has left that has died, `left`, if this one can go on with it:
/// nothing may differ but what it is told of processes. Otherwise those that wait are sent away.
std::optional<LeftRun> use_left(const JobSpec& job, const TrainOptions& options,
                                const RunDirectory& run, uint64_t schema_hash,
                                std::optional<LeftRun> left) {
  if (!left) return left;
  const LeftFacts& facts = left->facts;
  const bool same = facts.build == build_id(program_file()) && facts.schema_hash == schema_hash &&
                    facts.job_hash == hash64(write_job(job, false));
  if (same && has_processes(options) && job.resilience.mode != "off") return left;
  dismiss_left(run, *left);
  remove_left(run);
  return std::nullopt;
}

/// Before the first checkpoint there is nothing on disk to resume from.
Result<Start> find_start(const JobSpec& job, const TrainOptions& options, const RunDirectory& run,
                         const TrainingSetup& setup, const std::string& fingerprint, bool left) {
  if (!options.resume) return fresh_start(job, setup.training.config);
  if (left) {
    const auto copies = transport::list_checkpoints(run.checkpoints());
    if (!copies.ok() || copies->empty()) return fresh_start(job, setup.training.config);
  }
  return resumed_start(job, run, setup.training, has_processes(options) ? "" : fingerprint);
}

/// Listens for the run's other processes; null if the run has but this one.
Result<std::unique_ptr<Cluster>> create_cluster(const JobSpec& job, const graph::Plan& plan,
                                                const TrainOptions& options, const Start& start,
                                                std::optional<LeftRun> left, StatusBoard* status) {
  const ClusterOptions& o = options.cluster;
  if (!has_processes(options)) {
    if (!o.bind.empty() || o.port != 0) {
      return invalid_argument("--bind, --port: need --workers N, --nodes or --hosts");
    }
    if (job.resilience.mode == "mirror" || job.resilience.mode == "replicas") {
      return unsupported(job.at("resilience.mode") +
                         ": one process has no mirror and no replica; give --workers N, or "
                         "\"off\"");
    }
    return std::unique_ptr<Cluster>();
  }
  if (job.training.auto_micro_batch) {
    return unsupported(job.at("training.micro_batch_size") +
                       ": \"auto\" is for runs in one process; give a number");
  }
  Cluster::Setup setup;
  setup.options = o;
  setup.launcher = options.launcher;
  setup.devices = options.devices;
  setup.job = write_job(job, false);
  setup.job_name = job.name;
  setup.log_level = job.log.level;
  setup.num_workers = count_workers(job, options);
  setup.recovers = job.resilience.mode != "off";
  setup.mirror_interval = job.resilience.mirror_interval;
  setup.replicas = job.resilience.mode == "replicas";
  setup.max_faults = job.resilience.max_faults;
  setup.allow_inexact = job.resilience.allow_inexact;
  setup.orphan_ms = std::llround(job.resilience.orphan_timeout * 1000);
  setup.left = std::move(left);
  setup.arithmetic = start.arithmetic;
  setup.status = status;
  setup.progress_factor = job.resilience.progress_factor;
  setup.progress_floor_s = job.resilience.progress_floor;
  SGA_TRY(check_mesh_fits(job, setup.num_workers));
  setup.expected_step_ms = expected_step_ms(job, plan, options.devices, setup.num_workers);
  return Cluster::create(std::move(setup));
}

/// A process that a launcher has started beside the first one lends it its devices.
Result<int> train_as_node(const JobSpec& job, const TrainOptions& options) {
  if (!options.run_dir_given) {
    return invalid_argument(
        "--run-dir: needed where a launcher starts several processes: the "
        "others find the first one by it");
  }
  const ClusterOptions& o = options.cluster;
  const int64_t workers = count_workers(job, options);
  NodeOptions node;
  node.token = options.run_dir + "/control/token";
  node.devices = options.devices;
  node.log_level = job.log.level;
  node.workers = (workers + o.spares + options.launcher.size - 1) / options.launcher.size;
  node.first_device = node.workers * options.launcher.local_rank;
  node.job_hash = hash64(write_job(job, false));
  node.wait_ms = o.join_timeout_s * 1000;
  return run_node(node);
}

Result<int> train(const CommandLine& line, TrainOptions options) {
  if (options.run_dir_given && options.run_dir.empty())
    return invalid_argument("--run-dir: expected a directory, got an empty name");
  while (options.run_dir.size() > 1 && options.run_dir.ends_with('/')) options.run_dir.pop_back();
  SGA_ASSIGN(options.launcher, read_launcher());
  RunLock lock;
  if (options.launcher.rank == 0) SGA_TRY(lock_resumed_run(options, lock));
  SGA_ASSIGN(JobSpec job, read_job(line, options));
  log::init({.level = log_level(job.log.level)});
  SGA_TRY(check_supported(job));
  SGA_TRY(choose_strategy(*line.strategies, job));
  if (options.resume) SGA_TRY(check_strategy_resumes(job));
  choose_f8_layout(job, options.devices);
  if (options.launcher.rank > 0) return train_as_node(job, options);
  SGA_ASSIGN(const DeviceSpec device, parse_devices(options.devices));
  SGA_ASSIGN(auto backend, create_device(*line.backends, device));
  const RunDirectory run{options.run_dir.empty() ? default_run_path(job.name, std::time(nullptr))
                                                 : options.run_dir};
  if (!options.resume) SGA_TRY(check_new(run));
  const int64_t validation_batch = job.training.micro_batch_size;
  if (options.resume && job.training.auto_micro_batch) SGA_TRY(take_micro_batch_size(run, job));
  const PlanCache cache =
      open_plan_cache(options.cache, backend->info().device, backend->info().fingerprint);
  leave_out_foreign_profile(job, backend->info());
  SGA_ASSIGN(TrainingSetup setup,
             set_up_training(job, storage_model(*backend), &cache, validation_batch));
  auto found = options.resume ? read_left(run) : Result<std::optional<LeftRun>>(std::nullopt);
  const bool waits = found.ok() && found->has_value();
  SGA_TRY(check_memory(setup.training.compiled.plan, *backend,
                       device_share(job, options, setup, waits)));
  SGA_TRY(check_replicas(job, setup.training.compiled.plan));
  SGA_ASSIGN(std::optional<LeftRun> left, std::move(found));
  left = use_left(job, options, run, setup.training.compiled.plan.schema_hash, std::move(left));
  SGA_ASSIGN(const Start start,
             find_start(job, options, run, setup, backend->info().fingerprint, left.has_value()));
  RecordedSteps recorded;
  if (left) recorded = read_recorded(run, start.first_step);
  if (left && start.first_step > job.training.steps) {
    dismiss_left(run, *left);
    remove_left(run);
  }
  SGA_ASSIGN(const std::unique_ptr<StatusPage> page,
             StatusPage::create(job, run, start.first_step, &install_stop_signals()));
  StatusBoard* const status = page == nullptr ? nullptr : &page->board();
  SGA_ASSIGN(
      const std::unique_ptr<Cluster> cluster,
      create_cluster(job, setup.training.compiled.plan, options, start, std::move(left), status));
  if (!options.resume) SGA_TRY(claim_new_run(run, lock));
  print_head(job, setup.training.compiled.plan, backend->info(), run);
  if (start.first_step > job.training.steps) {
    std::printf("nothing to do: the checkpoint is at step %lld of training.steps %lld\n",
                static_cast<long long>(start.first_step - 1),
                static_cast<long long>(job.training.steps));
    return kExitDone;
  }
  const auto last_recorded = start.first_step - 1 + static_cast<int64_t>(recorded.steps.size());
  const auto open = [&]() -> Status {
    SGA_TRY(open_run(job, run, last_recorded));
    return page != nullptr ? page->announce() : Status();
  };
  if (!options.resume) SGA_TRY(open());
  if (cluster != nullptr) {
    const Status there = cluster->gather(run, install_stop_signals());
    if (there.code() == Code::kCancelled) return kExitInterrupted;
    SGA_TRY(there);
  }
  // What a run has left stays as it is until it is known that its workers can go on with it.
  if (options.resume) SGA_TRY(open());
  return run_job(job, setup, run, start, recorded, *backend, cache, options, cluster.get(), status);
}

}  // namespace

void add_train(CLI::App& app, CommandLine& line) {
  CLI::App* sub = app.add_subcommand("train", "train the model of a job file");
  auto options = std::make_shared<TrainOptions>();
  sub->add_option("job", options->job, "job file; with --resume the run's own by default");
  sub->add_option("--devices", options->devices,
                  "cpu, cpu:THREADS, reference, symbolic or cuda:all")
      ->capture_default_str();
  sub->add_option("--run-dir", options->run_dir, "default: runs/<job name>-<time>");
  add_cluster_options(*sub, options->cluster);
  add_cache_options(*sub, options->cache);
  sub->add_flag("--resume", options->resume, "go on from the newest whole checkpoint");
  sub->callback([&line, sub, options] {
    options->run_dir_given = sub->count("--run-dir") > 0;
    line.action = [&line, options] { return train(line, *options); };
  });
}

}  // namespace sgactor::apps
