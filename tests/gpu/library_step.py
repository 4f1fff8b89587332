#!/usr/bin/env python3
"""The best library kernels of a Llama's training step, one after the other as a step has them: the bound of a runtime that adds nothing, on a card as warm as a training step makes it.

usage: library_step.py [--model 1b] [--batch 8] [--seq 4096] [--steps 20] [--dtype bf16|fp8] [--apart]

A sum of kernels that were timed one at a time is lower than any step of them can be: alone each finds a cool card, and a card that is limited by its power runs slower when it never rests. This
prints both: `sum_ms`, each kernel timed alone, and `step_ms`, the median of whole steps in a row. Products are torch.mm (cuBLASLt, its default choice) with q, k, v and gate, up joined (--apart: a product each), attention is
cuDNN's by PyTorch, and memory-bound work is one copy of as many bytes as a fused runtime must move. A line of JSON on standard output. Needs PyTorch with CUDA.
"""
import argparse
import json
import statistics
import subprocess
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

# model dim, layers, heads, key/value heads, feed-forward dim, vocabulary, parameters
MODELS = {"1b": (2048, 16, 32, 8, 8192, 128256, 1.2358e9)}
HEAD_BLOCKS = 4  # of rows, so that a block of logits fits


def timed_ms(work, repeats):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    for _ in range(repeats):
        begin.record()
        work()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


class Product:
    """y = x w^T and its two gradients, for one linear map: three launches that do not depend on one another's numbers."""

    def __init__(self, rows, inner, outer, eight_bits):
        def normal(*shape):
            return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

        if eight_bits:
            e4, e5 = torch.float8_e4m3fn, torch.float8_e5m2
            self.one = torch.ones((), device="cuda")
            self.x, self.xt = normal(rows, inner).to(e4), normal(inner, rows).to(e4)
            self.w, self.wt = normal(outer, inner).to(e4), normal(inner, outer).to(e4)
            self.g, self.gt = normal(rows, outer).to(e5), normal(outer, rows).to(e5)
        else:
            self.x, self.w, self.g = normal(rows, inner), normal(outer, inner) * 0.02, normal(rows, outer)
        self.y = None if eight_bits else torch.empty(rows, outer, device="cuda", dtype=torch.bfloat16)
        self.dx = None if eight_bits else torch.empty(rows, inner, device="cuda", dtype=torch.bfloat16)
        self.dw = None if eight_bits else torch.empty(outer, inner, device="cuda", dtype=torch.bfloat16)
        self.eight_bits = eight_bits

    def scaled(self, a, b, quick):
        torch._scaled_mm(a, b.t(), self.one, self.one, out_dtype=torch.bfloat16, use_fast_accum=quick)

    def forward(self):
        if self.eight_bits:
            self.scaled(self.x, self.w, True)
        else:
            torch.mm(self.x, self.w.t(), out=self.y)

    def gradients(self):
        if self.eight_bits:
            self.scaled(self.g, self.wt, False)
            self.scaled(self.gt, self.xt, False)
        else:
            torch.mm(self.g, self.w, out=self.dx)
            torch.mm(self.g.t(), self.x, out=self.dw)


def power_and_clock(steps):
    """Runs `steps()` and returns the card's mean power in W and clock in MHz meanwhile; None where nvidia-smi does not tell."""
    sampler = subprocess.Popen(["nvidia-smi", "--query-gpu=power.draw,clocks.sm", "--format=csv,noheader,nounits", "-lms", "50"],
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        result = steps()
    finally:
        sampler.terminate()
    rows = [line.split(",") for line in sampler.communicate()[0].splitlines()]
    try:
        numbers = [(float(power), float(clock)) for power, clock in rows if float(power) > 500]
    except ValueError:
        numbers = []
    means = [round(statistics.fmean(column)) for column in zip(*numbers)] if numbers else [None, None]
    return result, means


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=MODELS, default="1b")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seq", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--dtype", choices=("bf16", "fp8"), default="bf16")
    parser.add_argument("--apart", action="store_true", help="a product each for q, k, v, gate and up")
    args = parser.parse_args()
    torch.manual_seed(0)
    dim, layers, heads, kv_heads, ff, vocabulary, parameters = MODELS[args.model]
    head_dim, rows = dim // heads, args.batch * args.seq
    eight_bits = args.dtype == "fp8"

    def joined(*widths):  # products of one input
        return [Product(rows, dim, width, eight_bits) for width in (widths if args.apart else [sum(widths)])]

    qkv = joined(heads * head_dim, kv_heads * head_dim, kv_heads * head_dim)
    o = [Product(rows, heads * head_dim, dim, eight_bits)]
    gate_up = joined(ff, ff)
    down = [Product(rows, ff, dim, eight_bits)]
    head = Product(rows // HEAD_BLOCKS, dim, vocabulary, False)  # in bf16 in both
    q = torch.randn(args.batch, heads, args.seq, head_dim, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    k = torch.randn(args.batch, kv_heads, args.seq, head_dim, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    v = torch.randn_like(k, requires_grad=True)
    dout = torch.randn_like(q)
    scratch = torch.empty(2**31, device="cuda", dtype=torch.uint8)
    other = torch.empty_like(scratch)

    def move(number_of_bytes):  # read and written
        left = int(number_of_bytes) // 2
        while left > 0:
            part = min(left, scratch.numel())
            other[:part].copy_(scratch[:part])
            left -= part

    # Bytes a fused runtime must move: a layer's norms, residuals, rotations and SwiGLU in both directions; the logits three times; AdamW's f32 state, gradient and 16-bit copy.
    layer_bytes = rows * 2 * (14 * dim + 4 * (heads + kv_heads) * head_dim + 8 * ff)
    head_bytes = rows * vocabulary * 2 * 3
    update_bytes = parameters * 30

    backend = SDPBackend.CUDNN_ATTENTION

    def attention():
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    with sdpa_kernel(backend):
        out = attention()

        def attention_gradient():
            torch.autograd.grad(out, (q, k, v), dout, retain_graph=True)

        def step():
            for _ in range(layers):
                for product in qkv:
                    product.forward()
                with torch.no_grad():
                    attention()
                for product in o + gate_up + down:
                    product.forward()
                move(layer_bytes / 3)
            for _ in range(HEAD_BLOCKS):
                head.forward()
                move(head_bytes / HEAD_BLOCKS)
                head.gradients()
            for _ in range(layers):
                for product in down + gate_up + o:
                    product.gradients()
                attention_gradient()
                for product in qkv:
                    product.gradients()
                move(layer_bytes * 2 / 3)
            move(update_bytes)

        alone = {}
        for name, works, times in [("qkv", qkv, layers), ("o", o, layers), ("gate_up", gate_up, layers), ("down", down, layers), ("head", [head], HEAD_BLOCKS)]:
            for direction in [f for work in works for f in (work.forward, work.gradients)]:
                direction()
                alone[name] = alone.get(name, 0) + times * timed_ms(direction, 8)
                time.sleep(0.5)  # cool, as a kernel that is timed alone is
        with torch.no_grad():
            alone["attention"] = layers * timed_ms(attention, 8)
        alone["attention_gradient"] = layers * timed_ms(attention_gradient, 8)
        alone["moved"] = timed_ms(lambda: move(layers * layer_bytes + head_bytes + update_bytes), 8)
        for _ in range(5):
            step()

        def steps():
            return timed_ms(step, args.steps)

        step_ms, (watts, clock) = power_and_clock(steps)
    sum_ms = sum(alone.values())
    print(json.dumps({"model": args.model, "dtype": args.dtype, "apart": args.apart, "sum_ms": round(sum_ms, 1), "step_ms": round(step_ms, 1), "step_over_sum": round(step_ms / sum_ms, 3), "watts": watts, "mhz": clock,
                      **{name: round(ms, 1) for name, ms in alone.items()}}))


if __name__ == "__main__":
    main()
