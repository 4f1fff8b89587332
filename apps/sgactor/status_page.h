#pragma once
#include "apps/sgactor/job_spec.h"
#include "apps/sgactor/run_directory.h"
#include "apps/sgactor/status_board.h"
#include "apps/sgactor/status_http.h"
#include "graph/base/status.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

namespace sgactor::apps {

/// The HTTP page of a run: `/` for people, `/status` (JSON), `/metrics` (Prometheus), `/healthz`.
/// Its threads read the board and nothing else of the run.
class StatusPage {
 public:
  /// Listens where log.status_page says, and answers from then on; null if that is "". `stopping`
  /// outlives the page. Errors: kUnsupported, scope kDevice, naming the key.
  static Result<std::unique_ptr<StatusPage>> create(const JobSpec& job, const RunDirectory& run,
                                                    int64_t first_step,
                                                    const std::atomic<bool>* stopping);
  /// Closes it and removes RUN/status_page.
  ~StatusPage();
  StatusPage(const StatusPage&) = delete;
  StatusPage& operator=(const StatusPage&) = delete;

  /// Writes RUN/status_page ("HOST:PORT") and prints a line. Recoveries that the directory has
  /// already count. Errors: those of the file.
  Status announce();
  [[nodiscard]] StatusBoard& board() { return board_; }

 private:
  StatusPage(RunFacts facts, RunDirectory run, const std::atomic<bool>* stopping)
      : run_(std::move(run)), board_(std::move(facts), stopping) {}

  RunDirectory run_;
  StatusBoard board_;
  std::string announced_;               // file; empty: none
  std::unique_ptr<HttpServer> server_;  // last: its threads read the board
};

/// What a page answers for a path.
HttpReply answer_status(const StatusSnapshot& status, const std::string& path, int64_t now_ms);
/// For a run in one process, which no coordinator tells of: all ranks in this one.
void show_lone_process(StatusBoard& board, const std::string& device, int64_t num_ranks);

}  // namespace sgactor::apps
