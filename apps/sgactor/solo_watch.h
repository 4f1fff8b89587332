#pragma once
#include "actors/runtime/training.h"
#include "actors/runtime/worker_assembly.h"
#include "apps/sgactor/run_directory.h"
#include "supervision/monitor/progress_watch.h"

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>

namespace sgactor::apps {

/// Looks after a run in one process, as a coordinator looks after its workers: a thread of its own
/// sees whether its actors handle messages. Where they do not, though ranks are to compute, it
/// writes hang_report.json and a warning (which actor, its last message, what ranks wait in) and
/// says so, once. Stands in for the run's observer, from which it learns how long steps take.
class SoloWatch final : public actors::TrainingObserver {
 public:
  struct Options {
    double progress_factor = 10;  ///< as supervision::ProgressWatch has them; 0: never
    double progress_floor_s = 10;
    double expected_step_ms = 0;
    RunDirectory run;
    int64_t last_step = 0;  ///< done before the run
  };
  /// `on_hang` is called on the watch's thread, with kTimeout, naming the rank if one is at fault;
  /// it need not return. `next` is told what this is told.
  SoloWatch(const Options& options, actors::TrainingObserver& next,
            std::function<void(const Status&)> on_hang);
  ~SoloWatch() override;
  SoloWatch(const SoloWatch&) = delete;
  SoloWatch& operator=(const SoloWatch&) = delete;

  /// Whom to look after from now on; null: nobody. Whoever was followed before may go then.
  void follow(actors::WorkerAssembly* assembly);

  void on_step(const actors::StepReport& report) override;
  void on_validation(int64_t step, double loss) override { next_.on_validation(step, loss); }
  void on_checkpoint(int64_t step, const std::string& path,
                     const transport::WriteStats& stats) override {
    next_.on_checkpoint(step, path, stats);
  }
  void on_verified(const actors::VerifiedStep& verified) override { next_.on_verified(verified); }

 private:
  void look();
  void take_request();
  Status report(int64_t now_ms);

  const Options options_;
  actors::TrainingObserver& next_;
  const std::function<void(const Status&)> on_hang_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  bool reported_ = false;
  int64_t looked_ms_ = 0;  // the last time
  int64_t last_step_;
  supervision::ProgressWatch progress_;
  actors::WorkerAssembly* assembly_ = nullptr;
  std::thread thread_;
};

}  // namespace sgactor::apps
