#include "apps/sgactor/status_page.h"

#include "apps/sgactor/clock.h"
#include "apps/sgactor/cluster_ranks.h"
#include "apps/sgactor/json_lines.h"
#include "apps/sgactor/status_view.h"
#include "graph/base/log.h"
#include "transport/storage/run_files.h"

#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <numeric>

namespace sgactor::apps {
namespace {

constexpr const char* kPlain = "text/plain; charset=utf-8";

RunFacts facts_of(const JobSpec& job, const RunDirectory& run, int64_t first_step) {
  std::error_code error;
  RunFacts facts;
  facts.job = job.name;
  facts.run =
      std::filesystem::weakly_canonical(std::filesystem::absolute(run.path), error).string();
  facts.version = SGA_VERSION;
  facts.host = host_name();
  facts.pid = ::getpid();
  facts.num_steps = job.training.steps;
  facts.first_step = first_step;
  facts.pipeline_parallel = job.parallelism.pipeline_parallel_degree;
  facts.data_parallel = job.parallelism.data_parallel_degree;
  facts.tensor_parallel = job.parallelism.tensor_parallel_degree;
  facts.logical_data_parallel = job.logical_ranks();
  facts.zero_stage = job.parallelism.zero_stage;
  return facts;
}

}  // namespace

HttpReply answer_status(const StatusSnapshot& status, const std::string& path, int64_t now_ms) {
  if (path == "/") return {200, "text/html; charset=utf-8", status_html(status, now_ms)};
  if (path == "/status") return {200, "application/json", status_json(status, now_ms)};
  if (path == "/metrics") {
    return {200, "text/plain; version=0.0.4; charset=utf-8", status_metrics(status, now_ms)};
  }
  if (path != "/healthz") return {404, kPlain, "there are /, /status, /metrics and /healthz\n"};
  const std::string trouble = status_trouble(status);
  return trouble.empty() ? HttpReply{200, kPlain, "ok\n"} : HttpReply{503, kPlain, trouble + "\n"};
}

void show_lone_process(StatusBoard& board, const std::string& device, int64_t num_ranks) {
  WorkerFacts worker;
  worker.host = host_name();
  worker.pid = ::getpid();
  worker.device = device;
  worker.ranks.resize(static_cast<size_t>(num_ranks));
  std::iota(worker.ranks.begin(), worker.ranks.end(), 0);
  worker.state = "running";
  MemberFacts members;
  members.state = RunState::kRunning;
  members.workers.push_back(std::move(worker));
  board.set_members(std::move(members));
}

Result<std::unique_ptr<StatusPage>> StatusPage::create(const JobSpec& job, const RunDirectory& run,
                                                       int64_t first_step,
                                                       const std::atomic<bool>* stopping) {
  if (job.log.status_page.empty()) return std::unique_ptr<StatusPage>();
  const auto address = parse_net_address(job.log.status_page);
  if (!address.ok()) return address.status().with_context(job.at("log.status_page"));
  std::unique_ptr<StatusPage> page(new StatusPage(facts_of(job, run, first_step), run, stopping));
  auto server = HttpServer::listen(*address, [&board = page->board_](const std::string& path) {
    return answer_status(board.read(), path, now_ms());
  });
  if (!server.ok()) return server.status().with_context(job.at("log.status_page"));
  page->server_ = std::move(*server);
  return page;
}

StatusPage::~StatusPage() {
  if (!announced_.empty()) ::unlink(announced_.c_str());
  server_.reset();
}

Status StatusPage::announce() {
  NetAddress address = server_->address();
  // Others reach the host by its name, not by "any address".
  if (address.host == "0.0.0.0" || address.host == "::") {
    log::warn("the status page is open to all who reach this host: it asks for no password");
    address.host = host_name();
  }
  for (const auto& line : read_json_lines(run_.recoveries())) board_.add_recovery(line.dump());
  SGA_TRY(transport::write_file_atomic(run_.status_page(), to_string(address) + "\n"));
  announced_ = run_.status_page();
  std::printf("page      http://%s/\n", to_string(address).c_str());
  std::fflush(stdout);
  return {};
}

}  // namespace sgactor::apps
