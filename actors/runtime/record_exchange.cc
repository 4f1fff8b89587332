#include "actors/runtime/record_exchange.h"

#include "graph/base/hash.h"

#include <algorithm>
#include <future>
#include <memory>
#include <utility>

namespace sgactor::actors {
namespace {

// Apart from the keys of launches, which are small numbers mixed with a step.
constexpr uint64_t kRecordKey = 0x7265636F7264ULL;

/// Keeps what is sent until the transport is done with it.
class Sending final : public kernels::CompletionSink {
 public:
  explicit Sending(std::vector<std::byte> record) : record_(std::move(record)) {}
  [[nodiscard]] const std::vector<std::byte>& record() const { return record_; }
  void on_complete(uint64_t /*token*/, const Status& /*status*/,
                   kernels::LaunchTiming /*timing*/) noexcept override {
    delete this;
  }

 private:
  std::vector<std::byte> record_;
};

class Waiting final : public kernels::CompletionSink {
 public:
  void on_complete(uint64_t /*token*/, const Status& status,
                   kernels::LaunchTiming /*timing*/) noexcept override {
    done_.set_value(status);
  }
  Status wait() { return done_.get_future().get(); }

 private:
  std::promise<Status> done_;
};

}  // namespace

transport::CollectiveRequest RecordExchange::request(int32_t from, int32_t to, int64_t step,
                                                     int64_t generation) const {
  transport::CollectiveRequest out;
  out.element = transport::Element::kU8;
  out.group = {std::min(from, to), std::max(from, to)};
  const int32_t other = rank_ == from ? to : from;
  out.index = rank_ < other ? 0 : 1;
  out.root = 1 - out.index;
  out.key = mix64(mix64(kRecordKey, static_cast<uint64_t>(step)),
                  mix64(static_cast<uint64_t>(from), static_cast<uint64_t>(to)));
  out.generation = static_cast<transport::Generation>(generation);
  return out;
}

void RecordExchange::send(int32_t to, int64_t step, int64_t generation,
                          std::vector<std::byte> record) {
  transport::CollectiveRequest r = request(rank_, to, step, generation);
  auto sending = std::make_unique<Sending>(std::move(record));
  r.kind = transport::CollectiveKind::kSend;
  r.input = sending->record().data();
  r.total = static_cast<int64_t>(sending->record().size());
  // Its completion comes in any case, and is its end.
  collectives_.start(std::move(r), 0, *sending.release());
}

Result<std::vector<std::byte>> RecordExchange::receive(int32_t from, int64_t step,
                                                       int64_t generation, size_t bytes) {
  std::vector<std::byte> record(bytes);
  transport::CollectiveRequest r = request(from, rank_, step, generation);
  r.kind = transport::CollectiveKind::kRecv;
  r.output = record.data();
  r.total = static_cast<int64_t>(bytes);
  Waiting waiting;
  collectives_.start(std::move(r), 0, waiting);
  if (const Status s = waiting.wait(); !s.ok()) {
    return s.with_context("what rank " + std::to_string(from) + " has heard");
  }
  return record;
}

}  // namespace sgactor::actors
