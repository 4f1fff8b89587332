// AdamW and the inner steps of attention. Letters as in kernel_table.h.
#include "kernels/cpu/family_kernels.h"
#include "kernels/cpu/family_math.h"

namespace sgactor::kernels::cpu::SGA_CPU_FAMILY {
namespace {

struct AdamwVectors {
  Vec p, m, v;
};

SGA_INLINE AdamwVectors adamw_one(Vec p, Vec m, Vec v, Vec g, const AdamwScalars& s) {
  const Vec gc = g * s.clip;
  AdamwVectors out;
  out.m = m * s.beta1 + gc * s.one_minus_beta1;
  out.v = v * s.beta2 + gc * gc * s.one_minus_beta2;
  const Vec denominator = sqrt(out.v) * s.inv_sqrt_bias2 + s.eps;
  out.p = p * s.decay - s.step_size * out.m / denominator;
  return out;
}

void adamw(float* p_out, float* m_out, float* v_out, const float* p, const float* m, const float* v,
           const float* g, int64_t n, const AdamwScalars& s) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const AdamwVectors out = adamw_one(load(p + i), load(m + i), load(v + i), load(g + i), s);
    store(p_out + i, out.p);
    store(m_out + i, out.m);
    store(v_out + i, out.v);
  }
  if (i < n) {
    const int64_t rest = n - i;
    const AdamwVectors out = adamw_one(load_part(p + i, rest), load_part(m + i, rest),
                                       load_part(v + i, rest), load_part(g + i, rest), s);
    store_part(p_out + i, out.p, rest);
    store_part(m_out + i, out.m, rest);
    store_part(v_out + i, out.v, rest);
  }
}

SGA_INLINE float exp_of(float x) { return exp(splat(x))[0]; }

SGA_INLINE void zero_rest(float* x, int64_t from, int64_t to) {
  if (from < to) std::memset(x + from, 0, static_cast<size_t>(to - from) * sizeof(float));
}

void attention_softmax(float* x, int64_t ld, int64_t R, int64_t n, const int32_t* visible,
                       float scale, float* max_R, float* sum_R, float* correction_R) {
  const Vec factor = splat(scale);
  for (int64_t r = 0; r < R; ++r, x += ld) {
    const int64_t seen = visible[r];
    if (seen <= 0) {
      correction_R[r] = 1.0F;
      zero_rest(x, 0, n);
      continue;
    }
    // scale > 0 is not required: the product is formed first.
    map(
        seen, x, [factor](Vec v) { return v * factor; }, static_cast<const float*>(x));
    const float top = row_max(x, seen);
    const float new_max = top > max_R[r] ? top : max_R[r];
    const Vec shift = splat(new_max);
    Vec acc = {};
    int64_t i = 0;
    for (; i + kLanes <= seen; i += kLanes) {
      const Vec e = exp(load(x + i) - shift);
      store(x + i, e);
      acc += e;
    }
    if (i < seen) {
      const Vec e = exp(load_part(x + i, seen - i, -__builtin_inff()) - shift);
      store_part(x + i, e, seen - i);
      acc += e;
    }
    zero_rest(x, seen, n);
    const float correction = exp_of(max_R[r] - new_max);
    max_R[r] = new_max;
    sum_R[r] = sum_R[r] * correction + horizontal_sum(acc);
    correction_R[r] = correction;
  }
}

SGA_INLINE void attention_grad_one(Vec s, Vec dp, Vec scale, Vec lse, Vec delta, Vec& p, Vec& ds) {
  p = exp(s * scale - lse);
  ds = p * (dp - delta) * scale;
}

void attention_grad(float* s, float* dp, int64_t ld, int64_t R, int64_t n, const int32_t* visible,
                    float scale, const float* lse_R, const float* delta_R) {
  const Vec factor = splat(scale);
  Vec p;
  Vec ds;
  for (int64_t r = 0; r < R; ++r, s += ld, dp += ld) {
    const int64_t seen = visible[r] > 0 ? visible[r] : 0;
    const Vec lse = splat(lse_R[r]);
    const Vec delta = splat(delta_R[r]);
    int64_t i = 0;
    for (; i + kLanes <= seen; i += kLanes) {
      attention_grad_one(load(s + i), load(dp + i), factor, lse, delta, p, ds);
      store(s + i, p);
      store(dp + i, ds);
    }
    if (i < seen) {
      const int64_t rest = seen - i;
      attention_grad_one(load_part(s + i, rest), load_part(dp + i, rest), factor, lse, delta, p,
                         ds);
      store_part(s + i, p, rest);
      store_part(dp + i, ds, rest);
    }
    zero_rest(s, seen, n);
    zero_rest(dp, seen, n);
  }
}

}  // namespace

void add_training_kernels(KernelTable& t) {
  t.adamw = adamw;
  t.attention_softmax = attention_softmax;
  t.attention_grad = attention_grad;
}

}  // namespace sgactor::kernels::cpu::SGA_CPU_FAMILY
