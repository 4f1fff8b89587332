// The optimizer. Letters as in kernel_table.h.
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

}  // namespace

void add_optimizer_kernels(KernelTable& t) { t.adamw = adamw; }

}  // namespace sgactor::kernels::cpu::SGA_CPU_FAMILY
