#!/usr/bin/env python3
"""Trains llama-15m with stock PyTorch on a CPU and prints one JSON line with tokens/s: the other
side of `make bench`. Eager and torch.compile, with the same shapes, threads and work a step as
sgactor's bench: forward, backward, gradient accumulation, clipping by global norm, AdamW, float32.

needs: pip install torch      (torch.compile also needs a C++ compiler)

usage: torch_llama_cpu.py [--mode eager|compile|both] [--batch N] [--seq N] [--accumulate N]
                          [--threads N] [--steps N] [--warmup N]
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

# Preset llama-15m: embeddings tied, as many key/value heads as heads.
VOCAB, HIDDEN, LAYERS, HEADS, FFN, EPS, THETA = 32000, 288, 6, 6, 768, 1e-5, 10000.0
HEAD_DIM = HIDDEN // HEADS


def linear(inputs, outputs):
    return nn.Linear(inputs, outputs, bias=False)


def rotate(x, cos, sin):
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm = nn.RMSNorm(HIDDEN, eps=EPS)
        self.mlp_norm = nn.RMSNorm(HIDDEN, eps=EPS)
        self.qkv = linear(HIDDEN, 3 * HIDDEN)
        self.out = linear(HIDDEN, HIDDEN)
        self.gate_up = linear(HIDDEN, 2 * FFN)
        self.down = linear(FFN, HIDDEN)

    def forward(self, h, cos, sin):
        b, t, _ = h.shape
        qkv = self.qkv(self.attention_norm(h)).view(b, t, 3, HEADS, HEAD_DIM)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        o = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v,
                                           is_causal=True)
        h = h + self.out(o.transpose(1, 2).reshape(b, t, HIDDEN))
        gate, up = self.gate_up(self.mlp_norm(h)).chunk(2, dim=-1)
        return h + self.down(F.silu(gate) * up)


class Llama(nn.Module):
    def __init__(self, seq_len):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, HIDDEN)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(HIDDEN, eps=EPS)
        inverse = 1.0 / THETA ** (torch.arange(0, HEAD_DIM, 2).float() / HEAD_DIM)
        angles = torch.outer(torch.arange(seq_len).float(), inverse)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens, targets):
        h = self.embedding(tokens)
        for layer in self.layers:
            h = layer(h, self.cos, self.sin)
        logits = F.linear(self.norm(h), self.embedding.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def measure(args, compiled):
    torch.manual_seed(0)
    model = Llama(args.seq)
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
        description="Tokens/s of llama-15m with stock PyTorch on a CPU, as one JSON line.")
    parser.add_argument("--mode", choices=("eager", "compile", "both"), default="both")
    parser.add_argument("--batch", type=positive, default=4, help="sequences a micro-batch")
    parser.add_argument("--seq", type=positive, default=256, help="tokens a sequence")
    parser.add_argument("--accumulate", type=positive, default=1, help="micro-batches a step")
    parser.add_argument("--threads", type=positive, default=len(os.sched_getaffinity(0)),
                        help="threads of PyTorch (default: all cores this process may use)")
    parser.add_argument("--steps", type=positive, default=10, help="timed steps; the median counts")
    parser.add_argument("--warmup", type=positive, default=3, help="steps before, not timed")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    result = {
        "model": "llama-15m",
        "params": sum(p.numel() for p in Llama(args.seq).parameters()),
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
