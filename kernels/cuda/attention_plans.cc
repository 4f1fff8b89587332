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

}  // namespace sgactor::kernels::cuda
