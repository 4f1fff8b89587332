#!/usr/bin/env python3
"""Trains llama-15m or llama-125m with stock PyTorch on a CPU and prints one JSON line with tokens/s: the other
side of `make bench`. Eager and torch.compile, with the same shapes, threads and work a step as
sgactor's bench: forward, backward, gradient accumulation, clipping by global norm, AdamW, float32.

needs: pip install torch      (torch.compile also needs a C++ compiler)

usage: torch_llama_cpu.py [--model llama-15m|llama-125m] [--mode eager|compile|both] [--batch N] [--seq N] [--accumulate N]
                          [--threads N] [--steps N] [--warmup N] [--each]
"""
import argparse
import json
import os
import statistics
import sys
import time

try:
    import torch
    import torch.nn.functional as F
    from torch import nn
except ImportError as error:
    sys.exit(f"torch_llama_cpu.py: {error}; pip install torch")

VOCAB, EPS, THETA = 32000, 1e-5, 10000.0


class Preset:
    """Embeddings tied, as many key/value heads as heads."""

    def __init__(self, hidden, layers, heads, ffn):
        self.hidden, self.layers, self.heads, self.ffn = hidden, layers, heads, ffn
        self.head_dim = hidden // heads


PRESETS = {"llama-15m": Preset(288, 6, 6, 768), "llama-125m": Preset(768, 12, 12, 2048)}


def linear(inputs, outputs):
    return nn.Linear(inputs, outputs, bias=False)


def rotate(x, cos, sin):
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class Layer(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.p = p
        self.attention_norm = nn.RMSNorm(p.hidden, eps=EPS)
        self.mlp_norm = nn.RMSNorm(p.hidden, eps=EPS)
        self.qkv = linear(p.hidden, 3 * p.hidden)
        self.out = linear(p.hidden, p.hidden)
        self.gate_up = linear(p.hidden, 2 * p.ffn)
        self.down = linear(p.ffn, p.hidden)

    def forward(self, h, cos, sin):
        b, t, _ = h.shape
        qkv = self.qkv(self.attention_norm(h)).view(b, t, 3, self.p.heads, self.p.head_dim)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        o = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v,
                                           is_causal=True)
        h = h + self.out(o.transpose(1, 2).reshape(b, t, self.p.hidden))
        gate, up = self.gate_up(self.mlp_norm(h)).chunk(2, dim=-1)
        return h + self.down(F.silu(gate) * up)


class Llama(nn.Module):
    def __init__(self, p, seq_len):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, p.hidden)
        self.layers = nn.ModuleList(Layer(p) for _ in range(p.layers))
        self.norm = nn.RMSNorm(p.hidden, eps=EPS)
        inverse = 1.0 / THETA ** (torch.arange(0, p.head_dim, 2).float() / p.head_dim)
        angles = torch.outer(torch.arange(seq_len).float(), inverse)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens, targets):
        h = self.embedding(tokens)
        for layer in self.layers:
            h = layer(h, self.cos, self.sin)
        logits = F.linear(self.norm(h), self.embedding.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def measure(args, compiled):
    torch.manual_seed(0)
    model = Llama(PRESETS[args.model], args.seq)
    decayed = [p for p in model.parameters() if p.dim() > 1]
    kept = [p for p in model.parameters() if p.dim() == 1]
    adamw = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1},
                               {"params": kept, "weight_decay": 0.0}],
                              lr=3e-4, betas=(0.9, 0.95), fused=True)
    run = torch.compile(model) if compiled else model
    seconds = []
    loss = None
    for _ in range(args.warmup + args.steps):
        ids = torch.randint(0, VOCAB, (args.accumulate, args.batch, args.seq + 1))
        start = time.perf_counter()
        for micro_batch in ids:
            loss = run(micro_batch[:, :-1], micro_batch[:, 1:]) / args.accumulate
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adamw.step()
        adamw.zero_grad(set_to_none=True)
        seconds.append(time.perf_counter() - start)
        if args.each:
            print(json.dumps({"step_ms": seconds[-1] * 1e3}), flush=True)
    median = statistics.median(seconds[args.warmup:])
    tokens = args.accumulate * args.batch * args.seq
    return {"tok_s": round(tokens / median, 1), "step_ms": round(median * 1e3, 2),
            "loss": round(loss.item() * args.accumulate, 4)}


def positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value}: expected at least 1")
    return value


def main():
    parser = argparse.ArgumentParser(
        description="Tokens/s of a small Llama with stock PyTorch on a CPU, as one JSON line.")
    parser.add_argument("--model", choices=tuple(PRESETS), default="llama-15m")
    parser.add_argument("--mode", choices=("eager", "compile", "both"), default="both")
    parser.add_argument("--batch", type=positive, default=4, help="sequences a micro-batch")
    parser.add_argument("--seq", type=positive, default=256, help="tokens a sequence")
    parser.add_argument("--accumulate", type=positive, default=1, help="micro-batches a step")
    parser.add_argument("--threads", type=positive, default=len(os.sched_getaffinity(0)),
                        help="threads of PyTorch (default: all cores this process may use)")
    parser.add_argument("--steps", type=positive, default=10, help="timed steps; the median counts")
    parser.add_argument("--warmup", type=positive, default=3, help="steps before, not timed")
    parser.add_argument("--each", action="store_true", help="also a JSON line a step, at once")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    result = {
        "model": args.model,
        "params": sum(p.numel() for p in Llama(PRESETS[args.model], args.seq).parameters()),
        "batch": args.batch,
        "seq": args.seq,
        "accumulate": args.accumulate,
        "threads": args.threads,
        "torch": torch.__version__,
    }
    if args.mode != "compile":
        result["eager"] = measure(args, compiled=False)
    if args.mode != "eager":
        try:
            result["compile"] = measure(args, compiled=True)
        except Exception as error:  # no compiler, or a build of PyTorch without inductor
            if args.mode == "compile":
                sys.exit(f"torch_llama_cpu.py: torch.compile failed: {error}")
            result["compile_error"] = str(error).splitlines()[0]
    result["best_tok_s"] = max(result[m]["tok_s"] for m in ("eager", "compile") if m in result)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
