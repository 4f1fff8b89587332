// Softmax, masks, norms and rotation: kernels over rows, cut into blocks of whole rows.
#include "kernels/cpu/lowering.h"

#include <cstring>

namespace sgactor::kernels::cpu {
namespace {

using graph::Op;
using graph::OpKind;
using graph::ValueId;

struct Rows {
  int64_t count = 0;
  int64_t width = 0;
};

Rows rows_of(const TensorType& type) {
  const int64_t width = type.shape.dim(-1);
  return {.count = width == 0 ? 0 : type.num_elements() / width, .width = width};
}

/// Rows of one partial sum of dw: fixed, so that the sum's order depends on the shape alone.
constexpr int64_t kNormGradRows = 64;

/// dw = partial sums of row blocks, added in order of the blocks.
void add_partials(const KernelTable& k, float* dw, const float* partial, int64_t blocks,
                  int64_t width) {
  if (blocks == 0) {
    std::memset(dw, 0, static_cast<size_t>(width) * sizeof(float));
    return;
  }
  std::memcpy(dw, partial, static_cast<size_t>(width) * sizeof(float));
  for (int64_t b = 1; b < blocks; ++b) k.binary[kAdd](dw, dw, partial + b * width, width);
}

}  // namespace

Status lower_softmax(Lowering& low, const Op& op) {
  if (!all_of_type(low, op, DType::kF32)) return low.no_kernel(op);
  const ValueId y = op.results[0];
  const ValueId a = op.operands[0];
  const Rows rows = rows_of(low.type(a));
  if (op.kind == OpKind::kSoftmax) {
    low.add([=, fn = low.kernels().softmax](const Frame& f) -> Status {
      for_blocks(f, rows.count, rows_per_block(rows.width), [&](int64_t begin, int64_t end) {
        fn(f.ptr<float>(y) + begin * rows.width, f.ptr<float>(a) + begin * rows.width, end - begin,
           rows.width);
      });
      return {};
    });
    return {};
  }
  const ValueId dy = op.operands[1];
  low.add([=, fn = low.kernels().softmax_grad](const Frame& f) -> Status {
    for_blocks(f, rows.count, rows_per_block(rows.width), [&](int64_t begin, int64_t end) {
      const int64_t at = begin * rows.width;
      fn(f.ptr<float>(y) + at, f.ptr<float>(a) + at, f.ptr<float>(dy) + at, end - begin,
         rows.width);
    });
    return {};
  });
  return {};
}

namespace {

template <class T>
Step causal_mask_step(ValueId y_id, ValueId x_id, const Shape& shape, T fill) {
  const int64_t T_rows = shape.dim(-2);
  const int64_t S = shape.dim(-1);
  const int64_t count = S == 0 ? 0 : shape.num_elements() / S;
  return [=](const Frame& f) -> Status {
    T* y = f.ptr<T>(y_id);
    const T* x = f.ptr<T>(x_id);
    for_blocks(f, count, rows_per_block(S), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const int64_t kept = std::clamp<int64_t>(r % T_rows + (S - T_rows) + 1, 0, S);
        T* row = y + r * S;
        if (y != x) std::memcpy(row, x + r * S, static_cast<size_t>(kept) * sizeof(T));
        std::fill(row + kept, row + S, fill);
      }
    });
    return {};
  };
}

}  // namespace

Status lower_causal_mask(Lowering& low, const Op& op) {
  const ValueId y = op.results[0];
  const ValueId x = op.operands[0];
  const Shape& shape = low.type(x).shape;
  const double fill = op.attrs.f64("fill");
  if (all_of_type(low, op, DType::kF32)) {
    low.add(causal_mask_step<float>(y, x, shape, static_cast<float>(fill)));
  } else if (all_of_type(low, op, DType::kF64)) {
    low.add(causal_mask_step<double>(y, x, shape, fill));
  } else {
    return low.no_kernel(op);
  }
  return {};
}

Status lower_rms_norm(Lowering& low, const Op& op) {
  if (!all_of_type(low, op, DType::kF32)) return low.no_kernel(op);
  const Rows rows = rows_of(low.type(op.operands[0]));
  const auto eps = static_cast<float>(op.attrs.f64("eps"));
  const ValueId x = op.operands[0];
  if (op.kind == OpKind::kRmsNorm) {
    const ValueId w = op.operands[1];
    const ValueId y = op.results[0];
    const ValueId rstd = op.results[1];
    low.add([=, fn = low.kernels().rms_norm](const Frame& f) -> Status {
      for_blocks(f, rows.count, rows_per_block(rows.width), [&](int64_t begin, int64_t end) {
        const int64_t at = begin * rows.width;
        fn(f.ptr<float>(y) + at, f.ptr<float>(rstd) + begin, f.ptr<float>(x) + at, f.ptr<float>(w),
           end - begin, rows.width, eps);
      });
      return {};
    });
    return {};
  }
  const ValueId r = op.operands[1];
  const ValueId w = op.operands[2];
  const ValueId s = op.results[0];
  const ValueId y = op.results[1];
  const ValueId rstd = op.results[2];
  low.add([=, fn = low.kernels().add_rms_norm](const Frame& f) -> Status {
    for_blocks(f, rows.count, rows_per_block(rows.width), [&](int64_t begin, int64_t end) {
      const int64_t at = begin * rows.width;
      fn(f.ptr<float>(s) + at, f.ptr<float>(y) + at, f.ptr<float>(rstd) + begin,
         f.ptr<float>(x) + at, f.ptr<float>(r) + at, f.ptr<float>(w), end - begin, rows.width, eps);
    });
    return {};
  });
  return {};
}

Status lower_rms_norm_grad(Lowering& low, const Op& op) {
  if (!all_of_type(low, op, DType::kF32)) return low.no_kernel(op);
  const bool with_sum = op.kind == OpKind::kAddRmsNormGrad;
  const size_t shift = with_sum ? 1 : 0;
  const ValueId dy = op.operands[0];
  const ValueId ds = op.operands[1];  // read only with_sum
  const ValueId x = op.operands[1 + shift];
  const ValueId w = op.operands[2 + shift];
  const ValueId rstd = op.operands[3 + shift];
  const ValueId dx = op.results[0];
  const ValueId dw = op.results[1];
  const Rows rows = rows_of(low.type(x));
  const int64_t blocks = ceil_div(rows.count, kNormGradRows);
  low.need_scratch(blocks * rows.width * static_cast<int64_t>(sizeof(float)));
  low.add([=, k = &low.kernels()](const Frame& f) -> Status {
    auto* partial = reinterpret_cast<float*>(f.scratch);
    for_blocks(f, rows.count, kNormGradRows, [&](int64_t begin, int64_t end) {
      const int64_t at = begin * rows.width;
      k->rms_norm_grad(f.ptr<float>(dx) + at, partial + begin / kNormGradRows * rows.width,
                       f.ptr<float>(dy) + at, with_sum ? f.ptr<float>(ds) + at : nullptr,
                       f.ptr<float>(x) + at, f.ptr<float>(w), f.ptr<float>(rstd) + begin,
                       end - begin, rows.width);
    });
    add_partials(*k, f.ptr<float>(dw), partial, blocks, rows.width);
    return {};
  });
  return {};
}

Status lower_rotate(Lowering& low, const Op& op) {
  if (!all_of_type(low, op, DType::kF32)) return low.no_kernel(op);
  const ValueId y = op.results[0];
  const ValueId x = op.operands[0];
  const ValueId cos = op.operands[1];
  const ValueId sin = op.operands[2];
  const Shape& shape = low.type(x).shape;  // B, T, H, K
  const int64_t T = shape.dim(1);
  const int64_t H = shape.dim(2);
  const int64_t K = shape.dim(3);
  const int64_t tokens = shape.dim(0) * T;
  const float sign = op.attrs.flag("inverse") ? -1.0F : 1.0F;
  low.add([=, fn = low.kernels().rotate](const Frame& f) -> Status {
    for_blocks(f, tokens, rows_per_block(H * K), [&](int64_t begin, int64_t end) {
      for (int64_t token = begin; token < end; ++token) {
        const int64_t at = token % T * (K / 2);
        fn(f.ptr<float>(y) + token * H * K, f.ptr<float>(x) + token * H * K, f.ptr<float>(cos) + at,
           f.ptr<float>(sin) + at, H, K, sign);
      }
    });
    return {};
  });
  return {};
}

}  // namespace sgactor::kernels::cpu
