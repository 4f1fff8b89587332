#include "tests/actor/faulty_backend.h"

namespace sgactor::testing_support {
namespace {

class FaultyStream final : public kernels::Stream {
 public:
  FaultyStream(std::unique_ptr<kernels::Stream> inner, int64_t fail_at)
      : inner_(std::move(inner)), left_(fail_at) {}

  void launch(const kernels::Executable& executable, const kernels::LaunchArgs& args,
              uint64_t token, kernels::CompletionSink& sink) override {
    if (left_ > 0) --left_;
    if (left_ == 0) return fail(token, sink);
    inner_->launch(executable, args, token, sink);
  }
  void copy(std::byte* to, const std::byte* from, int64_t bytes, uint64_t token,
            kernels::CompletionSink& sink) override {
    if (left_ == 0) return fail(token, sink);
    inner_->copy(to, from, bytes, token, sink);
  }
  void fill_zero(std::byte* to, int64_t bytes, uint64_t token,
                 kernels::CompletionSink& sink) override {
    if (left_ == 0) return fail(token, sink);
    inner_->fill_zero(to, bytes, token, sink);
  }
  std::unique_ptr<kernels::Event> record() override { return inner_->record(); }
  void wait(const kernels::Event& event) override { inner_->wait(event); }
  void synchronize() override { inner_->synchronize(); }

 private:
  void fail(uint64_t token, kernels::CompletionSink& sink) {
    inner_->synchronize();  // completions come in stream order
    sink.on_complete(token, make_status(Code::kDeviceFault, "the device broke", Scope::kDevice),
                     {});
  }
  std::unique_ptr<kernels::Stream> inner_;
  int64_t left_;
};

}  // namespace

Result<std::unique_ptr<kernels::Stream>> FaultyBackend::create_stream() {
  SGA_ASSIGN(std::unique_ptr<kernels::Stream> inner, inner_.create_stream());
  return std::unique_ptr<kernels::Stream>(
      std::make_unique<FaultyStream>(std::move(inner), fail_at_));
}

}  // namespace sgactor::testing_support
