#pragma once
#include <atomic>

namespace sgactor::apps {

/// Makes SIGINT, SIGTERM and SIGHUP set a flag instead of ending the process; a second one ends it
/// at once. SIGPIPE is ignored: a closed pipe shows as a failed write.
/// Returns the flag, which lives as long as the process. Called by the main thread.
const std::atomic<bool>& install_stop_signals();

/// As if a signal had come: another host's, which the control plane brought.
void request_stop();

}  // namespace sgactor::apps
