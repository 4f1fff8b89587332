#pragma once
#include "graph/base/status.h"
#include "transport/collectives/collectives.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace sgactor::actors {

/// Takes what a rank has heard in a step to the rank that executes its work again. Both name step
/// and generation; a fence ends what is under way, and both begin again in the next generation.
/// Borrows `collectives`.
class RecordExchange {
 public:
  RecordExchange(transport::Collectives& collectives, int32_t rank)
      : collectives_(collectives), rank_(rank) {}

  /// Returns at once. Nobody hears whether it arrives: whoever lacks it says so.
  void send(int32_t to, int64_t step, int64_t generation, std::vector<std::byte> record);
  /// Blocks until it is there. Errors: kDisconnected, kCancelled, as the collectives have them.
  Result<std::vector<std::byte>> receive(int32_t from, int64_t step, int64_t generation,
                                         size_t bytes);

 private:
  [[nodiscard]] transport::CollectiveRequest request(int32_t from, int32_t to, int64_t step,
                                                     int64_t generation) const;

  transport::Collectives& collectives_;
  int32_t rank_;
};

}  // namespace sgactor::actors
