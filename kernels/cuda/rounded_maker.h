#pragma once
#include "kernels/cuda/lowering.h"

namespace sgactor::kernels::cuda {

// An op that makes an operand of 8-bit products, and the quantize_f8_both ops that alone read it,
// as one kernel: the 16-bit value is never written. The kernel runs in place of the last of the
// quantize ops, when what the maker read is still there; where it is not, or a shape does not
// fit, the ops run one by one. Same bits either way. Makers: swiglu, swiglu_grad (both results),
// rotate, rms_norm and add_rms_norm (whose sums and statistics are written by a kernel of their
// own).

/// Does the kernel that rounds make what `op`, such a maker, would write to be rounded?
bool is_rounded_when_made(const Lowering& low, const graph::Op& op);
/// Is `op`, a quantize op, part of such a kernel?
bool rounds_with_maker(const Lowering& low, const graph::Op& op);
/// Appends the kernel, if `op` is the last of its quantize ops. Pre: rounds_with_maker(low, op).
Status lower_rounded_maker(Lowering& low, const graph::Op& op);

/// Brings the largest magnitude seen to where the op updates it in place.
Status bring_seen(const Frame& f, graph::ValueId seen, graph::ValueId new_seen);

}  // namespace sgactor::kernels::cuda
