#include "graph/base/log.h"
#include "kernels/cuda/attention.h"

namespace sgactor::kernels::cuda {

Result<std::shared_ptr<const FusedAttention>> AttentionPlans::get(const AttentionShape& shape,
                                                                  bool gradient) {
  const std::lock_guard lock(mutex_);
  const std::pair key(shape, gradient);
  if (const auto known = made_.find(key); known != made_.end()) return known->second;
  SGA_ASSIGN(std::shared_ptr<const FusedAttention> made, create_fused_attention(shape, gradient));
  made_.emplace(key, made);
  return made;
}

void AttentionPlans::warn_plain(const AttentionShape& shape, bool gradient, const Status& why) {
  {
    const std::lock_guard lock(mutex_);
    if (!warned_.emplace(shape.K, shape.causal, gradient).second) return;
  }
  log::warn("attention{} with a head dim of {} takes plain kernels, which are slow: {}",
            gradient ? "'s gradient" : "", shape.K, why.message());
}

}  // namespace sgactor::kernels::cuda
