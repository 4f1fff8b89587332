// In place of attention_cudnn.cc in a build without cuDNN's front end.
#include "kernels/cuda/attention.h"

namespace sgactor::kernels::cuda {

Result<std::shared_ptr<const FusedAttention>> create_fused_attention(
    const AttentionShape& /*shape*/, bool /*gradient*/) {
  return unsupported("cuda: built without cuDNN's front end");
}

void load_attention_libraries() {}

std::string attention_fingerprint() { return "no-cudnn"; }

void load_fused_attention(int32_t /*index*/) {}

}  // namespace sgactor::kernels::cuda
