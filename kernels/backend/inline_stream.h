#pragma once
#include "kernels/backend/backend.h"

#include <cstring>
#include <memory>

namespace sgactor::kernels {

/// An event of a stream whose work is finished when it is queued.
class InlineEvent final : public Event {
 public:
  [[nodiscard]] bool done() const override { return true; }
};

/// Stream of a backend without threads and with host-visible memory: work and completions run
/// inside the call. `E` is the backend's executable, with `Status run(const LaunchArgs&) const`;
/// one of another backend is refused with kInvalidArgument. The first failure is sticky. `clock`
/// gives nanoseconds for the timing; null: none is kept, so that records depend on no clock.
template <class E>
class InlineStream final : public Stream {
 public:
  explicit InlineStream(int64_t (*clock)()) : clock_(clock) {}

  void launch(const Executable& executable, const LaunchArgs& args, uint64_t token,
              CompletionSink& sink) override {
    finish(token, sink, [&]() -> Status {
      const auto* ours = dynamic_cast<const E*>(&executable);
      if (ours == nullptr) return invalid_argument("executable of another backend");
      return ours->run(args);
    });
  }
  void copy(std::byte* to, const std::byte* from, int64_t bytes, uint64_t token,
            CompletionSink& sink) override {
    finish(token, sink, [&]() -> Status {
      if (bytes < 0) return invalid_argument("copy of a negative number of bytes");
      if (bytes > 0) std::memmove(to, from, static_cast<size_t>(bytes));
      return {};
    });
  }
  void fill_zero(std::byte* to, int64_t bytes, uint64_t token, CompletionSink& sink) override {
    finish(token, sink, [&]() -> Status {
      if (bytes < 0) return invalid_argument("fill of a negative number of bytes");
      if (bytes > 0) std::memset(to, 0, static_cast<size_t>(bytes));
      return {};
    });
  }
  std::unique_ptr<Event> record() override { return std::make_unique<InlineEvent>(); }
  void wait(const Event& /*event*/) override {}
  void synchronize() override {}

 private:
  template <class Work>
  void finish(uint64_t token, CompletionSink& sink, Work work) {
    LaunchTiming timing;
    if (clock_ != nullptr) timing.start_ns = clock_();
    if (failure_.ok()) failure_ = work();
    if (clock_ != nullptr) timing.end_ns = clock_();
    sink.on_complete(token, failure_, timing);
  }

  int64_t (*clock_)();
  Status failure_;
};

}  // namespace sgactor::kernels
