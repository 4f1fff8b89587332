// The last matmul and the loss in one. 8-bit operands are widened to f32. Letters: N rows, D model
// dim, V vocabulary, C rows of a block.
#include "kernels/cpu/f8.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/lowering.h"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <vector>

namespace sgactor::kernels::cpu {
namespace {

using graph::Op;
using graph::OpKind;
using graph::ValueId;

/// Products of a block of rows; dw is added to what earlier blocks left, if `adds`.
struct HeadProducts {
  ParallelGemm logits, dx, dw;

  HeadProducts(const KernelTable& k, int64_t C, int64_t V, int64_t D, bool adds)
      : logits(k, {.trans_b = true, .m = C, .n = V, .k = D, .lda = D, .ldb = D, .ldc = V}),
        dx(k, {.m = C, .n = D, .k = V, .lda = V, .ldb = D, .ldc = D}),
        dw(k, {.trans_a = true,
               .m = V,
               .n = D,
               .k = C,
               .lda = V,
               .ldb = D,
               .ldc = D,
               .accumulate = adds}) {}

  [[nodiscard]] int64_t scratch_bytes(int32_t num_threads) const {
    return std::max({logits.scratch_bytes(num_threads), dx.scratch_bytes(num_threads),
                     dw.scratch_bytes(num_threads)});
  }
};

/// Which values are what, and how the rows are cut. A block has as many rows as the matmul sums at
/// once: the gradient of the weight then adds up in the order of one product over all rows, so that
/// the fused op keeps the bits of the ops it stands for.
class Head {
 public:
  Head(Lowering& low, const Op& op)
      : kernels_(&low.kernels()), gradients_(op.kind == OpKind::kLinearCrossEntropyGrad) {
    const size_t x = gradients_ ? 1 : 0;
    x_ = op.operands[x];
    w_ = op.operands[x + 1];
    targets_ = op.operands[x + 2];
    loss_ = gradients_ ? op.results[2] : op.results[0];
    if (gradients_) {
      acc_in_ = op.operands[0];
      dloss_ = op.operands[4];
      from_zero_ = low.starts_sum(acc_in_);
      acc_ = op.results[0];
      dx_ = op.results[1];
      in_f8_ = low.type(x_).dtype == DType::kF8E4M3;
      if (in_f8_) {
        scale_x_ = op.operands[5];
        scale_w_ = op.operands[6];
        gradients_of_ = f8_values(DType::kF8E5M2);
        for (float& value : gradients_of_) value *= kLogitGradScale;
      }
    } else {
      lse_ = op.results[1];
    }
    N_ = low.type(x_).shape.dim(0);
    D_ = low.type(x_).shape.dim(1);
    V_ = low.type(w_).shape.dim(0);
    C_ = std::max<int64_t>(1, std::min(N_, gemm_block_depth(N_)));
    const int64_t tail = N_ % C_ == 0 ? C_ : N_ % C_;
    // The first block, the others, the last.
    products_ = {HeadProducts(*kernels_, C_, V_, D_, !from_zero_),
                 HeadProducts(*kernels_, C_, V_, D_, true),
                 HeadProducts(*kernels_, tail, V_, D_, true)};
    place_scratch(low);
  }

  Status run(const Frame& f) const {
    SGA_TRY(check_targets(f));
    const bool copies = gradients_ && !from_zero_ && f.ptr<float>(acc_) != f.ptr<float>(acc_in_);
    if (copies) {
      std::memcpy(f.ptr<float>(acc_), f.ptr<float>(acc_in_),
                  static_cast<size_t>(V_ * D_) * sizeof(float));
    }
    if (in_f8_) {
      widen_f8(f, DType::kF8E4M3, f.ptr<uint8_t>(w_), V_ * D_, *f.ptr<float>(scale_w_),
               scratch<float>(f, w_at_));
    }
    double total = 0;
    for (int64_t begin = 0; begin < N_; begin += C_) {
      run_block(f, begin, std::min(N_, begin + C_));
      const auto* losses = scratch<double>(f, losses_at_);
      for (int64_t r = 0; r < std::min(C_, N_ - begin); ++r) total += losses[r];
    }
    *f.ptr<float>(loss_) = static_cast<float>(total);
    return {};
  }

 private:
  template <class T>
  static T* scratch(const Frame& f, int64_t at) {
    return reinterpret_cast<T*>(f.scratch + at);
  }

  void place_scratch(Lowering& low) {
    int64_t at = 0;
    const auto place = [&](int64_t bytes) {
      const int64_t begin = at;
      at += round_up(bytes, 64);
      return begin;
    };
    constexpr int64_t kFloat = sizeof(float);
    logits_at_ = place(C_ * V_ * kFloat);
    losses_at_ = place(C_ * static_cast<int64_t>(sizeof(double)));
    if (in_f8_) {
      w_at_ = place(V_ * D_ * kFloat);
      x_at_ = place(C_ * D_ * kFloat);
      dx_at_ = place(C_ * D_ * kFloat);
    }
    products_at_ = place(std::max(products_[0].scratch_bytes(low.num_threads()),
                                  products_[2].scratch_bytes(low.num_threads())));
    low.need_scratch(at);
  }

  [[nodiscard]] Status check_targets(const Frame& f) const {
    const auto* target = f.ptr<int32_t>(targets_);
    for (int64_t i = 0; i < N_; ++i) {
      if (target[i] < V_) continue;
      return invalid_argument(fmt::format(
          "target {} at position {} is outside the vocabulary of {}", target[i], i, V_));
    }
    return {};
  }

  void run_block(const Frame& f, int64_t begin, int64_t end) const {
    auto* logits = scratch<float>(f, logits_at_);
    auto* losses = scratch<double>(f, losses_at_);
    auto* work = scratch<std::byte>(f, products_at_);
    const HeadProducts& products = products_[begin == 0 ? 0 : end - begin == C_ ? 1 : 2];
    const int64_t rows = end - begin;
    const float* w = in_f8_ ? scratch<float>(f, w_at_) : f.ptr<float>(w_);
    const float* x = in_f8_ ? widen_rows(f, begin, rows) : f.ptr<float>(x_) + begin * D_;
    products.logits.run(*f.pool, x, w, logits, work);
    for_blocks(f, rows, rows_per_block(V_), [&](int64_t first, int64_t last) {
      for (int64_t r = first; r < last; ++r) losses[r] = finish_row(f, begin + r, logits + r * V_);
    });
    if (!gradients_) return;
    float* dx = in_f8_ ? scratch<float>(f, dx_at_) : f.ptr<float>(dx_) + begin * D_;
    products.dx.run(*f.pool, logits, w, dx, work);
    if (in_f8_) round_bf16(f, *kernels_, rows * D_, dx, f.ptr<uint16_t>(dx_) + begin * D_);
    products.dw.run(*f.pool, logits, x, f.ptr<float>(acc_), work);
  }

  /// The row's loss; turns its logits into their gradient.
  double finish_row(const Frame& f, int64_t row, float* logits) const {
    const int32_t target = f.ptr<int32_t>(targets_)[row];
    const float lse = kernels_->log_sum_exp(logits, V_);
    const double loss = target < 0 ? 0.0 : static_cast<double>(lse) - logits[target];
    if (!gradients_) {
      f.ptr<float>(lse_)[row] = lse;
    } else if (target < 0) {
      std::memset(logits, 0, static_cast<size_t>(V_) * sizeof(float));
    } else {
      const float scale = *f.ptr<float>(dloss_);
      kernels_->exp_shifted(logits, logits, V_, lse, in_f8_ ? 1 : scale);
      logits[target] -= in_f8_ ? 1 : scale;
      if (in_f8_) round_gradients(logits, scale);
    }
    return loss;
  }

  [[nodiscard]] const float* widen_rows(const Frame& f, int64_t begin, int64_t rows) const {
    auto* x = scratch<float>(f, x_at_);
    widen_f8(f, DType::kF8E4M3, f.ptr<uint8_t>(x_) + begin * D_, rows * D_, *f.ptr<float>(scale_x_),
             x);
    return x;
  }

  void round_gradients(float* dlogits, float dloss) const {
    for (int64_t v = 0; v < V_; ++v) {
      const uint8_t bits = float_to_f8(DType::kF8E5M2, dlogits[v] * (1 / kLogitGradScale));
      dlogits[v] = gradients_of_[bits] * dloss;
    }
  }

  const KernelTable* kernels_;
  bool gradients_;
  ValueId x_ = 0, w_ = 0, targets_ = 0, loss_ = 0;
  ValueId acc_in_ = 0, dloss_ = 0, acc_ = 0, dx_ = 0;  // with gradients
  ValueId lse_ = 0;                                    // without
  bool from_zero_ = false;                             // there is no accumulator yet
  bool in_f8_ = false;
  ValueId scale_x_ = 0, scale_w_ = 0;      // in 8 bits
  std::array<float, 256> gradients_of_{};  // by bits of a gradient of a logit
  int64_t N_ = 0, D_ = 0, V_ = 0, C_ = 1;
  std::vector<HeadProducts> products_;
  // In scratch, in bytes: of a block of rows, but for w.
  int64_t logits_at_ = 0, losses_at_ = 0, w_at_ = 0, x_at_ = 0, dx_at_ = 0, products_at_ = 0;
};

}  // namespace

Status lower_linear_cross_entropy(Lowering& low, const Op& op) {
  for (ValueId v : op.operands) {
    const DType dtype = low.type(v).dtype;
    if (dtype != DType::kI32 && dtype != DType::kF32 && dtype != DType::kF8E4M3) {
      return low.no_kernel(op);
    }
  }
  low.add([head = Head(low, op)](const Frame& f) -> Status { return head.run(f); });
  return {};
}

}  // namespace sgactor::kernels::cpu
