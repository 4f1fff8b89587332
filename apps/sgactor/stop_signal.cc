#include "apps/sgactor/stop_signal.h"

#include <csignal>

namespace sgactor::apps {
namespace {

// A signal handler reaches nothing but objects of static storage.
std::atomic<bool> stop_requested{false};
static_assert(std::atomic<bool>::is_always_lock_free);

extern "C" void on_stop_signal(int) { stop_requested.store(true, std::memory_order_relaxed); }

}  // namespace

void request_stop() { stop_requested.store(true, std::memory_order_relaxed); }

const std::atomic<bool>& install_stop_signals() {
  struct sigaction action = {};
  action.sa_handler = on_stop_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = static_cast<int>(SA_RESETHAND) | SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGHUP, &action, nullptr);
  // A reader of the progress lines that goes away must not end the run.
  action.sa_handler = SIG_IGN;
  action.sa_flags = 0;
  sigaction(SIGPIPE, &action, nullptr);
  return stop_requested;
}

}  // namespace sgactor::apps
