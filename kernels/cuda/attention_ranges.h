#pragma once
#include "graph/base/units.h"

#include <cstdint>

namespace sgactor::kernels::cuda {

/// What cuDNN's gradient of attention may work in: about what the head's block of logits takes, and
/// more only where one group of heads needs it.
inline constexpr int64_t kUsualGradientWorkspace = 2 * kGiB;
inline constexpr int64_t kMostGradientWorkspace = 8 * kGiB;

/// Sequences, and groups of heads that share a key-value head, at a time; none: not even one group
/// fits.
struct GradientRange {
  int64_t batch = 0;
  int64_t groups = 0;
  friend bool operator==(const GradientRange&, const GradientRange&) = default;
};

/// What cuDNN's deterministic gradient takes for a query head of a sequence, from above: all of dP,
/// T x T in bf16 in whole tiles, and a few rows of K numbers a time.
inline int64_t gradient_head_bytes(int64_t T, int64_t K) {
  return 2 * round_up(T, 64) * round_up(T, 128) + T * (8 * K + 8);
}

/// The largest equal ranges of B sequences of G groups of H / G heads that keep to the usual
/// workspace: whole sequences, else groups of one sequence. A group is not cut: the sums of its
/// keys run over all of its heads.
inline GradientRange gradient_range(int64_t B, int64_t H, int64_t G, int64_t T, int64_t K) {
  constexpr int64_t kLongest = int64_t{1} << 24;  // so that bytes stay far from the end of int64
  if (B < 1 || G < 1 || T > kLongest || H / G > kLongest / 1024) return {};
  const int64_t group_bytes = gradient_head_bytes(T, K) * (H / G);
  if (group_bytes > kMostGradientWorkspace) return {};
  for (int64_t batch = B; batch >= 1; --batch) {
    if (B % batch == 0 && batch * G <= kUsualGradientWorkspace / group_bytes) return {batch, G};
  }
  for (int64_t groups = G; groups > 1; --groups) {
    if (G % groups == 0 && groups <= kUsualGradientWorkspace / group_bytes) return {1, groups};
  }
  return {1, 1};
}

}  // namespace sgactor::kernels::cuda
