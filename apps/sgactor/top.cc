// sgactor top: a run that goes on, seen in the terminal.
#include "apps/sgactor/command_line.h"
#include "apps/sgactor/stop_signal.h"
#include "apps/sgactor/top_view.h"

#include <CLI/CLI.hpp>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>

namespace sgactor::apps {
namespace {

constexpr int64_t kFrameMs = 1000;
constexpr const char* kClear = "\x1b[H\x1b[2J";  // cursor to the first line, then an empty screen

struct TopOptions {
  std::string run;
  bool once = false;
};

/// A name that is no directory but may be a coordinator's address.
bool is_address(const std::string& name) {
  std::error_code error;
  const size_t colon = name.rfind(':');
  return !std::filesystem::exists(name, error) && colon != std::string::npos &&
         colon + 1 < name.size() &&
         name.find_first_not_of("0123456789", colon + 1) == std::string::npos;
}

/// Until the next frame is due, or a signal comes.
void wait_for_frame(const std::atomic<bool>& stop) {
  constexpr int kLookMs = 50;
  const auto due = std::chrono::steady_clock::now() + std::chrono::milliseconds(kFrameMs);
  while (!stop.load() && std::chrono::steady_clock::now() < due) ::poll(nullptr, 0, kLookMs);
}

Result<int> top(const TopOptions& options) {
  if (is_address(options.run)) {
    return unsupported("top " + options.run +
                       ": coordinators answer no questions over the network in this build; give "
                       "the run directory, on a host that sees it");
  }
  const RunDirectory run{options.run};
  const bool redraws = !options.once && ::isatty(STDOUT_FILENO) == 1;
  const std::atomic<bool>& stop = install_stop_signals();
  while (true) {
    SGA_ASSIGN(const RunView view, read_view(run));
    std::printf("%s%s", redraws ? kClear : "", view_text(view).c_str());
    if (!redraws && !options.once) std::printf("\n");
    // Whoever read it has gone.
    if (std::fflush(stdout) != 0) return kExitDone;
    if (options.once || !view.running) return kExitDone;
    wait_for_frame(stop);
    if (stop.load()) return kExitDone;
  }
}

}  // namespace

void add_top(CLI::App& app, CommandLine& line) {
  CLI::App* sub = app.add_subcommand("top", "watch a run that goes on");
  auto options = std::make_shared<TopOptions>();
  sub->add_option("run", options->run,
                  "its run directory; a coordinator's HOST:PORT is not taken in this build")
      ->required();
  sub->add_flag("--once", options->once, "print one frame and end");
  sub->footer(
      "A frame a second until the run ends or Ctrl-C; drawn over the last one where standard "
      "output is a terminal.");
  sub->callback([&line, options] { line.action = [options] { return top(*options); }; });
}

}  // namespace sgactor::apps
