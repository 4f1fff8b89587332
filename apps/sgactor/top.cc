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
#include <optional>
#include <string_view>

namespace sgactor::apps {
namespace {

constexpr int64_t kFrameMs = 1000;
constexpr const char* kClear = "\x1b[H\x1b[2J";  // cursor to the first line, then an empty screen

struct TopOptions {
  std::string run;
  bool once = false;
};

/// The address of a page, if `name` is one: what is there as a file or directory is none. It may be
/// given as `train` prints it, "http://HOST:PORT/".
std::optional<NetAddress> page_named(const std::string& name) {
  std::error_code error;
  if (std::filesystem::exists(name, error)) return std::nullopt;
  constexpr std::string_view kScheme = "http://";
  std::string_view text = name;
  if (text.starts_with(kScheme)) {
    text.remove_prefix(kScheme.size());
    if (text.ends_with('/')) text.remove_suffix(1);
  }
  auto address = parse_net_address(text);
  if (!address.ok() || address->port == 0) return std::nullopt;
  return std::move(*address);
}

/// Until the next frame is due, or a signal comes.
void wait_for_frame(const std::atomic<bool>& stop) {
  constexpr int kLookMs = 50;
  const auto due = std::chrono::steady_clock::now() + std::chrono::milliseconds(kFrameMs);
  while (!stop.load() && std::chrono::steady_clock::now() < due) ::poll(nullptr, 0, kLookMs);
}

Result<int> top(const TopOptions& options) {
  const auto page = page_named(options.run);
  const RunDirectory run{options.run};
  const bool redraws = !options.once && ::isatty(STDOUT_FILENO) == 1;
  const std::atomic<bool>& stop = install_stop_signals();
  for (bool first = true;; first = false) {
    const auto read = page ? read_page(*page) : read_page_or_view(run);
    if (page && !first && !read.ok()) {
      // A page goes with its run, and may have said "running" a moment before.
      std::printf("%s: the run has ended, or its host cannot be reached\n",
                  read.status().message().c_str());
      return kExitDone;
    }
    if (!read.ok()) return read.status();
    const RunView& view = *read;
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
                  "its run directory, or the HOST:PORT of its page (log.status_page)")
      ->required();
  sub->add_flag("--once", options->once, "print one frame and end");
  sub->footer(
      "A frame a second until the run ends or Ctrl-C; drawn over the last one where standard "
      "output is a terminal. A page tells what a directory cannot: when each worker was heard. Of "
      "a directory it is asked too, where it answers.");
  sub->callback([&line, options] { line.action = [options] { return top(*options); }; });
}

}  // namespace sgactor::apps
