#pragma once
#include <atomic>

namespace sgactor::apps {

/// Makes SIGINT and SIGTERM set a flag instead of ending the process; a second one ends it at once.
/// Returns the flag, which lives as long as the process. Called by the main thread.
const std::atomic<bool>& install_stop_signals();

}  // namespace sgactor::apps
