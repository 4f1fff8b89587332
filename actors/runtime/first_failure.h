#pragma once
#include "graph/base/status.h"
#include "kernels/backend/backend.h"

#include <cstdint>

namespace sgactor::actors {

/// Keeps the first failure of what a stream completes. All on the stream's one thread of
/// completions; read after synchronize().
class FirstFailure final : public kernels::CompletionSink {
 public:
  void on_complete(uint64_t /*token*/, const Status& status,
                   kernels::LaunchTiming /*timing*/) noexcept override {
    if (status_.ok()) status_ = status;
  }
  [[nodiscard]] const Status& status() const { return status_; }

 private:
  Status status_;
};

}  // namespace sgactor::actors
