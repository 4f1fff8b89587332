// Streams whose runtime refuses an event: what would have come behind it must not run.
#include "kernels/cuda/stream.h"

#include "tests/unit/kernels/cuda/fake_runtime.h"

#include <gtest/gtest.h>

#include <mutex>
#include <vector>

namespace sgactor::kernels::cuda {
namespace {

using sgactor::testing::fake_runtime;

class Sink final : public CompletionSink {
 public:
  void on_complete(uint64_t /*token*/, const Status& status,
                   LaunchTiming /*timing*/) noexcept override {
    const std::lock_guard lock(mutex_);
    said_.push_back(status);
  }
  std::vector<Status> said() {
    const std::lock_guard lock(mutex_);
    return said_;
  }

 private:
  std::mutex mutex_;
  std::vector<Status> said_;
};

class CudaStreams : public ::testing::Test {
 protected:
  void TearDown() override {
    fake_runtime().refuses_events = false;
    fake_runtime().refuses_records = false;
    fake_runtime().refuses_waits = false;
  }
  std::unique_ptr<Stream> stream() {
    auto made = create_cuda_stream(device_);
    EXPECT_TRUE(made.ok());
    return std::move(made).value();
  }
  /// The outcome of a copy on the stream, and whether it was made.
  std::pair<Status, bool> copy(Stream& on) {
    std::byte from{7};
    std::byte to{0};
    Sink sink;
    on.copy(&to, &from, 1, 1, sink);
    on.synchronize();
    const std::vector<Status> said = sink.said();
    EXPECT_EQ(said.size(), 1U);
    return {said.empty() ? Status() : said[0], to == from};
  }
  void expect_refused(Stream& on) {
    const auto [status, copied] = copy(on);
    EXPECT_EQ(status.code(), Code::kOutOfMemory) << status.to_string();
    EXPECT_NE(status.message().find("event"), std::string::npos) << status.message();
    EXPECT_FALSE(copied);
  }
  void expect_fine(Stream& on) {
    const auto [status, copied] = copy(on);
    EXPECT_TRUE(status.ok()) << status.to_string();
    EXPECT_TRUE(copied);
  }

  std::shared_ptr<CudaDevice> device_ = CudaDevice::create(0).value();
};

TEST_F(CudaStreams, AnEventIsReachedAndWaitedFor) {
  const auto first = stream();
  const auto second = stream();
  const auto event = first->record();
  second->wait(*event);
  expect_fine(*second);
  expect_fine(*first);
  EXPECT_TRUE(event->done());
}

TEST_F(CudaStreams, AnEventThatCannotBeMadeFailsItsStreamAndThoseThatWait) {
  for (std::atomic<bool>* refuses :
       {&fake_runtime().refuses_events, &fake_runtime().refuses_records}) {
    const auto first = stream();
    const auto second = stream();
    const auto third = stream();
    *refuses = true;
    const auto event = first->record();
    first->synchronize();
    *refuses = false;
    EXPECT_FALSE(event->done());
    second->wait(*event);
    expect_refused(*second);
    expect_refused(*first);
    expect_fine(*third);
    // Later events of the failed stream hang nobody.
    third->wait(*first->record());
    expect_fine(*third);
  }
}

TEST_F(CudaStreams, AWaitThatCannotBeMadeFailsTheStream) {
  const auto first = stream();
  const auto second = stream();
  const auto event = first->record();
  fake_runtime().refuses_waits = true;
  second->wait(*event);
  second->synchronize();
  fake_runtime().refuses_waits = false;
  expect_refused(*second);
  expect_fine(*first);
}

}  // namespace
}  // namespace sgactor::kernels::cuda
