// Constants, random numbers, accumulation and the optimizer.
#include "graph/base/philox.h"
#include "kernels/cpu/lowering.h"

#include <cmath>
#include <cstring>
#include <numbers>
#include <vector>

namespace sgactor::kernels::cpu {
namespace {

using graph::Op;
using graph::ValueId;

/// Writes `value` as element i of `data`. False for a dtype without a conversion here.
bool put(std::byte* data, DType dtype, int64_t i, double value) {
  const auto store = [&](auto v) {
    std::memcpy(data + i * static_cast<int64_t>(sizeof(v)), &v, sizeof(v));
    return true;
  };
  switch (dtype) {
    case DType::kF64:
      return store(value);
    case DType::kF32:
      return store(static_cast<float>(value));
    case DType::kBF16:
      return store(float_to_bf16(static_cast<float>(value)));
    case DType::kF16:
      return store(float_to_f16(static_cast<float>(value)));
    case DType::kI64:
      return store(static_cast<int64_t>(value));
    case DType::kI32:
      return store(static_cast<int32_t>(value));
    case DType::kU8:
      return store(static_cast<uint8_t>(value));
    default:
      return false;
  }
}

/// Inverse frequencies of the rotary embedding, scaled as transformers' modeling_rope_utils does
/// for "linear" and "llama3".
std::vector<double> rope_frequencies(const graph::Attrs& attrs) {
  const int64_t head_dim = attrs.i64("head_dim");
  const double theta = attrs.f64("theta");
  const std::string& scaling = attrs.text("scaling");
  const double factor = attrs.f64("factor");
  std::vector<double> freq(static_cast<size_t>(head_dim / 2));
  for (size_t i = 0; i < freq.size(); ++i) {
    freq[i] = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
  }
  if (scaling == "linear") {
    for (double& f : freq) f /= factor;
  }
  if (scaling != "llama3") return freq;
  const double low = attrs.f64("low_freq_factor");
  const double high = attrs.f64("high_freq_factor");
  const auto original = static_cast<double>(attrs.i64("original_max_position"));
  for (double& f : freq) {
    const double wavelength = 2.0 * std::numbers::pi / f;
    if (wavelength > original / low) {
      f /= factor;
    } else if (wavelength >= original / high) {
      const double smooth = (original / wavelength - low) / (high - low);
      f = (1.0 - smooth) * f / factor + smooth * f;
    }
  }
  return freq;
}

}  // namespace

Status lower_constant(Lowering& low, const Op& op) {
  const ValueId y = op.results[0];
  const TensorType& type = low.type(y);
  const double value = op.attrs.f64("value");
  if (low.starts_sum(y)) return {};
  SGA_ASSIGN(std::byte * data, low.make_constant(y));
  for (int64_t i = 0; i < type.num_elements(); ++i) {
    if (!put(data, type.dtype, i, value)) return low.no_kernel(op);
  }
  return {};
}

Status lower_rope_table(Lowering& low, const Op& op) {
  const std::vector<double> freq = rope_frequencies(op.attrs);
  const auto half = static_cast<int64_t>(freq.size());
  const int64_t seq_len = op.attrs.i64("seq_len");
  const DType dtype = low.type(op.results[0]).dtype;
  SGA_ASSIGN(std::byte * cos, low.make_constant(op.results[0]));
  SGA_ASSIGN(std::byte * sin, low.make_constant(op.results[1]));
  for (int64_t t = 0; t < seq_len; ++t) {
    for (int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(t) * freq[static_cast<size_t>(i)];
      if (!put(cos, dtype, t * half + i, std::cos(angle))) return low.no_kernel(op);
      put(sin, dtype, t * half + i, std::sin(angle));
    }
  }
  return {};
}

Status lower_philox_uniform(Lowering& low, const Op& op) {
  const ValueId y = op.results[0];
  const ValueId key = op.operands[0];
  const DType dtype = low.type(y).dtype;
  const int64_t n = low.type(y).num_elements();
  if (std::byte probe[8]; !put(probe, dtype, 0, 0)) return low.no_kernel(op);
  low.add([=](const Frame& f) -> Status {
    const auto* words = f.ptr<int64_t>(key);
    const PhiloxStream stream{.seed = static_cast<uint64_t>(words[0]),
                              .stream = static_cast<uint64_t>(words[1])};
    for_blocks(f, n, kPointwiseBlock, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        put(f.ptr<std::byte>(y), dtype, i, stream.uniform(static_cast<uint64_t>(i)));
      }
    });
    return {};
  });
  return {};
}

namespace {

/// y = acc + x in f32, or 0 + x; x of any count.
struct Accumulation {
  ValueId y = 0, acc = 0, x = 0;
  bool from_zero = false;

  void add(const KernelTable& k, const Frame& f, const float* x_wide, int64_t begin,
           int64_t count) const {
    float* to = f.ptr<float>(y) + begin;
    if (from_zero) {
      k.binary_scalar[kAdd](to, x_wide, 0, count);
    } else {
      k.binary[kAdd](to, f.ptr<float>(acc) + begin, x_wide, count);
    }
  }
};

Step accumulate_f32(const Accumulation& a, const KernelTable* k, int64_t n) {
  return [=](const Frame& f) -> Status {
    for_blocks(f, n, kPointwiseBlock, [&](int64_t begin, int64_t end) {
      a.add(*k, f, f.ptr<float>(a.x) + begin, begin, end - begin);
    });
    return {};
  };
}

Step accumulate_f64(const Accumulation& a, int64_t n) {
  return [=](const Frame& f) -> Status {
    for_blocks(f, n, kPointwiseBlock, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const double start = a.from_zero ? 0.0 : f.ptr<double>(a.acc)[i];
        f.ptr<double>(a.y)[i] = start + f.ptr<double>(a.x)[i];
      }
    });
    return {};
  };
}

Step accumulate_bf16(const Accumulation& a, const KernelTable* k, int64_t n) {
  return [=](const Frame& f) -> Status {
    for_blocks(f, n, kPointwiseBlock, [&](int64_t begin, int64_t end) {
      constexpr int64_t kChunk = 1024;
      alignas(64) float wide[kChunk];
      for (int64_t i = begin; i < end; i += kChunk) {
        const int64_t count = std::min(kChunk, end - i);
        k->bf16_to_f32(wide, f.ptr<uint16_t>(a.x) + i, count);
        a.add(*k, f, wide, i, count);
      }
    });
    return {};
  };
}

}  // namespace

Status lower_accumulate(Lowering& low, const Op& op) {
  const Accumulation a{op.results[0], op.operands[0], op.operands[1],
                       low.starts_sum(op.operands[0])};
  const int64_t n = low.type(a.acc).num_elements();
  const DType sum = low.type(a.acc).dtype;
  const DType added = low.type(a.x).dtype;
  if (sum == DType::kF32 && added == DType::kF32) {
    low.add(accumulate_f32(a, &low.kernels(), n));
  } else if (sum == DType::kF64 && added == DType::kF64) {
    low.add(accumulate_f64(a, n));
  } else if (sum == DType::kF32 && added == DType::kBF16) {
    low.add(accumulate_bf16(a, &low.kernels(), n));
  } else {
    return low.no_kernel(op);
  }
  return {};
}

namespace {

struct AdamwPlan {
  ValueId out[3];
  ValueId in[8];
  int64_t n = 0;
  double beta1 = 0, beta2 = 0, eps = 0, weight_decay = 0;
  bool f64_scalars[4] = {};
};

double scalar_of(const Frame& f, const AdamwPlan& p, int which) {
  const ValueId v = p.in[4 + which];
  return p.f64_scalars[which] ? *f.ptr<double>(v) : static_cast<double>(*f.ptr<float>(v));
}

Step adamw_f32(const KernelTable& k, const AdamwPlan& p) {
  return [p, fn = k.adamw](const Frame& f) -> Status {
    const double lr = scalar_of(f, p, 0);
    const AdamwScalars s{
        .clip = static_cast<float>(scalar_of(f, p, 1)),
        .beta1 = static_cast<float>(p.beta1),
        .beta2 = static_cast<float>(p.beta2),
        .one_minus_beta1 = static_cast<float>(1.0 - p.beta1),
        .one_minus_beta2 = static_cast<float>(1.0 - p.beta2),
        .decay = static_cast<float>(1.0 - lr * p.weight_decay),
        .step_size = static_cast<float>(lr / scalar_of(f, p, 2)),
        .inv_sqrt_bias2 = static_cast<float>(1.0 / std::sqrt(scalar_of(f, p, 3))),
        .eps = static_cast<float>(p.eps),
    };
    for_blocks(f, p.n, kPointwiseBlock, [&](int64_t i, int64_t end) {
      fn(f.ptr<float>(p.out[0]) + i, f.ptr<float>(p.out[1]) + i, f.ptr<float>(p.out[2]) + i,
         f.ptr<float>(p.in[0]) + i, f.ptr<float>(p.in[1]) + i, f.ptr<float>(p.in[2]) + i,
         f.ptr<float>(p.in[3]) + i, end - i, s);
    });
    return {};
  };
}

Step adamw_f64(const AdamwPlan& p) {
  return [p](const Frame& f) -> Status {
    const double lr = scalar_of(f, p, 0);
    const double clip = scalar_of(f, p, 1);
    const double bias1 = scalar_of(f, p, 2);
    const double root2 = std::sqrt(scalar_of(f, p, 3));
    for_blocks(f, p.n, kPointwiseBlock, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const double g = f.ptr<double>(p.in[3])[i] * clip;
        const double m = p.beta1 * f.ptr<double>(p.in[1])[i] + (1.0 - p.beta1) * g;
        const double v = p.beta2 * f.ptr<double>(p.in[2])[i] + (1.0 - p.beta2) * g * g;
        const double decayed = f.ptr<double>(p.in[0])[i] * (1.0 - lr * p.weight_decay);
        f.ptr<double>(p.out[0])[i] = decayed - lr / bias1 * m / (std::sqrt(v) / root2 + p.eps);
        f.ptr<double>(p.out[1])[i] = m;
        f.ptr<double>(p.out[2])[i] = v;
      }
    });
    return {};
  };
}

}  // namespace

Status lower_adamw(Lowering& low, const Op& op) {
  AdamwPlan p;
  std::copy_n(op.results.begin(), 3, p.out);
  std::copy_n(op.operands.begin(), 8, p.in);
  p.n = low.type(p.in[0]).num_elements();
  p.beta1 = op.attrs.f64("beta1");
  p.beta2 = op.attrs.f64("beta2");
  p.eps = op.attrs.f64("eps");
  p.weight_decay = op.attrs.f64("weight_decay");
  const DType dtype = low.type(p.in[0]).dtype;
  for (int i = 1; i < 4; ++i) {
    if (low.type(p.in[i]).dtype != dtype) return low.no_kernel(op);
  }
  for (int i = 0; i < 4; ++i) p.f64_scalars[i] = low.type(p.in[4 + i]).dtype == DType::kF64;
  if (dtype == DType::kF32) {
    low.add(adamw_f32(low.kernels(), p));
  } else if (dtype == DType::kF64) {
    low.add(adamw_f64(p));
  } else {
    return low.no_kernel(op);
  }
  return {};
}

}  // namespace sgactor::kernels::cpu
