#pragma once
#include "actors/strategy/strategy.h"
#include "apps/sgactor/job_spec.h"
#include "graph/base/log.h"
#include "graph/base/status.h"
#include "kernels/backend/backend.h"

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
}

namespace sgactor::apps {

/// Exit codes of the program; the same for every subcommand.
inline constexpr int kExitDone = 0;
inline constexpr int kExitFailed = 1;         ///< the run failed
inline constexpr int kExitUsage = 2;          ///< the command, job file or input is wrong
inline constexpr int kExitNoDevice = 3;       ///< no device or transport as asked
inline constexpr int kExitInterrupted = 130;  ///< interrupted, after a checkpoint

/// Exit code for a failure before a run began: bad input is 2, a missing device (scope kDevice) 3,
/// anything else 1.
int exit_code(const Status& status);

/// Of log.level, which the parser has checked.
log::Level log_level(std::string_view name);

/// What every subcommand sees: tables that main() built, and the overrides of the command line.
struct CommandLine {
  const kernels::BackendTable* backends = nullptr;
  const actors::StrategyTable* strategies = nullptr;
  std::vector<JobOverride> overrides;  ///< "--section.key=value", taken out before CLI11 parses
  /// Set by the subcommand that was named; runs it and returns the exit code.
  std::function<Result<int>()> action;
};

// One file a subcommand: each adds itself to `app` and sets line.action when it is the one named.
void add_init(CLI::App& app, CommandLine& line);
void add_train(CLI::App& app, CommandLine& line);
void add_generate(CLI::App& app, CommandLine& line);
void add_plan(CLI::App& app, CommandLine& line);
void add_ckpt(CLI::App& app, CommandLine& line);
void add_bench(CLI::App& app, CommandLine& line);
void add_chaos(CLI::App& app, CommandLine& line);
void add_ctl(CLI::App& app, CommandLine& line);
void add_audit(CLI::App& app, CommandLine& line);
void add_top(CLI::App& app, CommandLine& line);
void add_topo(CLI::App& app, CommandLine& line);
void add_simulate(CLI::App& app, CommandLine& line);
void add_node(CLI::App& app, CommandLine& line);
void add_worker(CLI::App& app, CommandLine& line);

/// What `sgactor --version` prints: version, and each backend with its device or why it is missing.
std::string version_text(const kernels::BackendTable& backends);

/// Takes "--section.key=value" and "--section.key value" out of `args`. Errors: kInvalidArgument if
/// the value is missing.
Result<std::vector<JobOverride>> split_overrides(std::vector<std::string>& args);

/// The whole program behind main(): parses, runs the named subcommand, prints a failure as one line
/// on standard error and returns the exit code. `args` without the program's name.
int run_program(const kernels::BackendTable& backends, const actors::StrategyTable& strategies,
                std::vector<std::string> args);

}  // namespace sgactor::apps
