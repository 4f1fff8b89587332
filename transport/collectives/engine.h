#pragma once
#include "transport/collectives/collectives.h"
#include "transport/collectives/schedule.h"

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

namespace sgactor::transport {

/// Runs schedules over a fabric. Everything but num_pending and added() on the progress thread.
class Collectives::Engine final : public TransferSink,
                                  public PayloadSink,
                                  public std::enable_shared_from_this<Collectives::Engine> {
 public:
  Engine(Fabric& fabric, const CollectivesOptions& options) : fabric_(fabric), options_(options) {}
  /// Any thread; before the task that calls start.
  void added() { num_pending_.fetch_add(1, std::memory_order_relaxed); }
  [[nodiscard]] int64_t num_pending() const { return num_pending_.load(); }
  [[nodiscard]] Fabric& fabric() { return fabric_; }

  void start(CollectiveRequest request, uint64_t token, kernels::CompletionSink& sink);
  void set_routes(RouteTable routes);
  void abort(Generation up_to, const Status& why);
  void peer_lost(PeerId peer, const Status& why);
  void on_transfer(uint64_t token, const Status& status) noexcept override;
  void on_payload(uint64_t token, size_t offset,
                  std::span<const std::byte> bytes) noexcept override;

 private:
  using ScheduleKey = decltype(ScheduleShape().key());
  struct Active {
    CollectiveRequest request;
    std::shared_ptr<const Schedule> schedule;
    std::vector<int32_t> waits;         // of each step
    std::vector<TransferId> transfers;  // of each step: under way; 0 if not
    std::deque<int32_t> ready;
    std::byte* scratch = nullptr;
    size_t scratch_block = 0;
    size_t steps_left = 0;
    size_t under_way = 0;
    uint64_t token = 0;
    kernels::CompletionSink* sink = nullptr;
    int64_t start_ns = 0;
    Status failure;
    bool advancing = false;
    std::shared_ptr<Engine> keep_alive;  // the fabric holds a pointer to us until it is done
  };
  struct ScratchBlock {
    std::unique_ptr<std::byte[]> memory;
    size_t bytes = 0;
    bool used = false;
  };

  Status check(const CollectiveRequest& request) const;
  Result<std::shared_ptr<const Schedule>> schedule_for(const CollectiveRequest& request);
  void take_scratch(Active& active, size_t bytes);
  void advance(size_t slot);
  void run_step(size_t slot, int32_t step);
  void post(size_t slot, int32_t step);
  void step_done(Active& active, int32_t step);
  void fail(size_t slot, const Status& why);
  void finish_if_done(size_t slot);
  [[nodiscard]] std::byte* address(const Active& active, Ref ref) const;
  [[nodiscard]] PeerId peer_of(const Active& active, int32_t member) const;

  Fabric& fabric_;
  const CollectivesOptions options_;
  RouteTable routes_;
  bool has_routes_ = false;
  Generation first_open_ = 0;  // generations below are aborted
  std::vector<std::unique_ptr<Active>> active_;
  std::vector<size_t> free_slots_;
  std::map<ScheduleKey, std::shared_ptr<const Schedule>> schedules_;
  std::vector<ScratchBlock> scratch_;
  std::atomic<int64_t> num_pending_{0};
};

}  // namespace sgactor::transport
