#!/usr/bin/env python3
"""Makes the fixtures of the PyTorch parity test: tests/data/torch_parity/<model>/.

A tiny Llama in plain PyTorch (float32, one thread, Hugging Face's conventions), trained for a few
steps with torch.optim.AdamW, warm-up and cosine, clipping by global norm and two micro-batches a
step. Each directory gets

  config.json          Hugging Face config
  model.safetensors    weights before the first step
  final.safetensors    weights after the last step
  batches.safetensors  tokens, targets: i32 [steps, micro_batches, B, T]; targets < 0 do not count
  expected.json        optimizer options; loss, gradient norm and learning rate a step; norms

needs: pip install torch numpy safetensors

usage: make_fixtures.py [--out DIR] [--model NAME ...] [--check-float64]
"""
import argparse
import json
import math
import pathlib
import sys

try:
    import numpy as np
    import torch
    import torch.nn.functional as F
    from safetensors.torch import save_file
except ImportError as error:
    sys.exit(f"make_fixtures.py: {error}; pip install torch numpy safetensors")

STEPS, MICRO_BATCHES, BATCH, SEQ_LEN = 20, 2, 2, 16

BASE = {
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 8,
    "hidden_act": "silu",
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "initializer_range": 0.02,
    "torch_dtype": "float32",
}

MODELS = {
    "tied_gqa": {"num_key_value_heads": 2, "tie_word_embeddings": True},
    # Extents of the scaling small enough for all three of its ranges to occur.
    "untied_mha": {
        "max_position_embeddings": 256,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 128,
        },
    },
    "qwen2_bias": {"model_type": "qwen2", "num_key_value_heads": 2, "rms_norm_eps": 1e-6},
}

# Between the norms that occur, so that some steps are clipped and some are not.
MAX_GRAD_NORM = {"qwen2_bias": 2.5}

OPTIMIZER = {
    "lr": 3e-3,
    "min_lr": 3e-4,
    "warmup_steps": 4,
    "decay_steps": 16,
    "beta1": 0.9,
    "beta2": 0.95,
    "eps": 1e-8,
    "weight_decay": 0.1,
}


def inverse_frequencies(config):
    """As transformers' modeling_rope_utils computes them, in float32."""
    dim = config["head_dim"]
    inv = 1.0 / (config["rope_theta"] ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim))
    scaling = config["rope_scaling"]
    if scaling is None:
        return inv
    assert scaling["rope_type"] == "llama3"
    old = scaling["original_max_position_embeddings"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    wavelen = 2 * math.pi / inv
    scaled = torch.where(wavelen > old / low, inv / scaling["factor"], inv)
    smooth = (old / wavelen - low) / (high - low)
    smoothed = (1 - smooth) * scaled / scaling["factor"] + smooth * scaled
    medium = ~(wavelen < old / high) & ~(wavelen > old / low)
    return torch.where(medium, smoothed, scaled)


def rope_table(config, dtype):
    angles = torch.outer(torch.arange(SEQ_LEN, dtype=torch.float32), inverse_frequencies(config))
    both = torch.cat((angles, angles), dim=-1)
    return both.cos().to(dtype), both.sin().to(dtype)


def rotate_half(x):
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


def rms_norm(x, weight, eps):
    return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps))


def make_weights(config, seed):
    """Hugging Face names; larger than a usual start, so that no gradient is near zero."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape, std):
        return torch.randn(*shape, generator=generator) * std

    d, f, v = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    q = config["num_attention_heads"] * config["head_dim"]
    kv = config["num_key_value_heads"] * config["head_dim"]
    bias = config["model_type"] == "qwen2"
    weights = {"model.embed_tokens.weight": normal(v, d, std=0.3)}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        for name, out in (("q", q), ("k", kv), ("v", kv)):
            weights[f"{prefix}self_attn.{name}_proj.weight"] = normal(out, d, std=0.15)
            if bias:
                weights[f"{prefix}self_attn.{name}_proj.bias"] = normal(out, std=0.1)
        weights[f"{prefix}self_attn.o_proj.weight"] = normal(d, q, std=0.1)
        weights[f"{prefix}mlp.gate_proj.weight"] = normal(f, d, std=0.15)
        weights[f"{prefix}mlp.up_proj.weight"] = normal(f, d, std=0.15)
        weights[f"{prefix}mlp.down_proj.weight"] = normal(d, f, std=0.1)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{prefix}{norm}.weight"] = 1 + normal(d, std=0.1)
    weights["model.norm.weight"] = 1 + normal(d, std=0.1)
    if not config["tie_word_embeddings"]:
        weights["lm_head.weight"] = normal(v, d, std=0.15)
    return weights


def forward(w, config, tokens, table):
    """Logits of tokens [B, T]."""
    b, t = tokens.shape
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    k_dim, eps = config["head_dim"], config["rms_norm_eps"]
    cos, sin = table
    mask = torch.ones(t, t, dtype=torch.bool).tril()

    def project(x, name):
        return F.linear(x, w[name + ".weight"], w.get(name + ".bias"))

    h = F.embedding(tokens, w["model.embed_tokens.weight"])
    for layer in range(config["num_hidden_layers"]):
        p = f"model.layers.{layer}."
        x = rms_norm(h, w[p + "input_layernorm.weight"], eps)
        q = project(x, p + "self_attn.q_proj").view(b, t, heads, k_dim).transpose(1, 2)
        k = project(x, p + "self_attn.k_proj").view(b, t, groups, k_dim).transpose(1, 2)
        v = project(x, p + "self_attn.v_proj").view(b, t, groups, k_dim).transpose(1, 2)
        q = q * cos + rotate_half(q) * sin
        k = k * cos + rotate_half(k) * sin
        k = k.repeat_interleave(heads // groups, dim=1)
        v = v.repeat_interleave(heads // groups, dim=1)
        scores = (q @ k.transpose(2, 3)) / math.sqrt(k_dim)
        scores = scores.masked_fill(~mask, float("-inf"))
        o = (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, heads * k_dim)
        h = h + project(o, p + "self_attn.o_proj")
        x = rms_norm(h, w[p + "post_attention_layernorm.weight"], eps)
        x = F.silu(project(x, p + "mlp.gate_proj")) * project(x, p + "mlp.up_proj")
        h = h + project(x, p + "mlp.down_proj")
    h = rms_norm(h, w["model.norm.weight"], eps)
    head = "model.embed_tokens" if config["tie_word_embeddings"] else "lm_head"
    return F.linear(h, w[head + ".weight"])


def make_batches(config, seed):
    """Sequences that mostly follow a rule, so that the loss falls; one target in eight is left out,
    so that micro-batches count different numbers of tokens."""
    rng = np.random.default_rng(seed)
    v = config["vocab_size"]
    shape = (STEPS, MICRO_BATCHES, BATCH)
    ids = np.empty(shape + (SEQ_LEN + 1,), dtype=np.int32)
    ids[..., 0] = rng.integers(0, v, shape)
    for t in range(SEQ_LEN):
        follows = (ids[..., t] * 5 + 3) % v
        ids[..., t + 1] = np.where(rng.random(shape) < 0.2, rng.integers(0, v, shape), follows)
    targets = ids[..., 1:].copy()
    targets[rng.random(targets.shape) < 0.125] = -1
    return ids[..., :-1].copy(), targets


def learning_rate(step):
    """Step counts from 1."""
    o = OPTIMIZER
    t = (step - o["warmup_steps"]) / (o["decay_steps"] - o["warmup_steps"])
    t = min(max(t, 0.0), 1.0)
    cosine = o["min_lr"] + (o["lr"] - o["min_lr"]) * (1 + math.cos(math.pi * t)) / 2
    return min(1.0, step / o["warmup_steps"]) * cosine


def train(config, start, tokens, targets, dtype, max_grad_norm):
    w = {n: p.to(dtype).clone().requires_grad_() for n, p in start.items()}
    groups = [
        {"params": [p for p in w.values() if p.dim() > 1],
         "weight_decay": OPTIMIZER["weight_decay"]},
        {"params": [p for p in w.values() if p.dim() == 1], "weight_decay": 0.0},
    ]
    adamw = torch.optim.AdamW(groups, betas=(OPTIMIZER["beta1"], OPTIMIZER["beta2"]),
                              eps=OPTIMIZER["eps"], foreach=False)
    table = rope_table(config, dtype)
    history = {"loss": [], "grad_norm": [], "lr": []}
    for step in range(1, STEPS + 1):
        valid = int((targets[step - 1] >= 0).sum())
        total = 0.0
        for m in range(MICRO_BATCHES):
            logits = forward(w, config, torch.from_numpy(tokens[step - 1, m]).long(), table)
            loss = F.cross_entropy(logits.flatten(0, 1),
                                   torch.from_numpy(targets[step - 1, m]).long().flatten(),
                                   ignore_index=-1, reduction="sum") / valid
            loss.backward()
            total += loss.item()
        norm = torch.nn.utils.clip_grad_norm_(w.values(), max_grad_norm)
        for group in adamw.param_groups:
            group["lr"] = learning_rate(step)
        adamw.step()
        adamw.zero_grad()
        history["loss"].append(total)
        history["grad_norm"].append(norm.item())
        history["lr"].append(learning_rate(step))
    return {n: p.detach() for n, p in w.items()}, history


def relative(a, b):
    return abs(a - b) / abs(b)


def compare_float64(name, setup, final, history):
    """How far float32 is from float64: what any float32 implementation may be off."""
    exact, truth = train(*setup, torch.float64, MAX_GRAD_NORM.get(name, 1.0))
    for key in ("loss", "grad_norm"):
        worst = max(relative(a, b) for a, b in zip(history[key], truth[key]))
        print(f"{name}: float32 against float64: {key} {worst:.1e}")
    worst = max(relative(final[n].double().norm().item(), exact[n].norm().item()) for n in final)
    apart = max(((final[n].double() - exact[n]).norm() / exact[n].norm()).item() for n in final)
    print(f"{name}: float32 against float64: weight norms {worst:.1e}, distance {apart:.1e}")


def main():
    here = pathlib.Path(__file__).resolve()
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=pathlib.Path,
                        default=here.parents[2] / "data" / "torch_parity")
    parser.add_argument("--model", action="append", choices=sorted(MODELS), help="default: all")
    parser.add_argument("--check-float64", action="store_true",
                        help="also train in float64 and print how far float32 is from it")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for index, (name, changes) in enumerate(MODELS.items()):
        if args.model and name not in args.model:
            continue
        config = {**BASE, **changes}
        start = make_weights(config, seed=1234 + index)
        tokens, targets = make_batches(config, seed=99 + index)
        max_grad_norm = MAX_GRAD_NORM.get(name, 1.0)
        setup = (config, start, tokens, targets)
        final, history = train(*setup, torch.float32, max_grad_norm)
        directory = args.out / name
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        save_file(start, directory / "model.safetensors", {"format": "pt"})
        save_file(final, directory / "final.safetensors", {"format": "pt"})
        save_file({"tokens": torch.from_numpy(tokens), "targets": torch.from_numpy(targets)},
                  directory / "batches.safetensors")
        expected = {
            "torch": torch.__version__,
            "optimizer": {**OPTIMIZER, "max_grad_norm": max_grad_norm},
            **history,
            "final_norm": {n: p.double().norm().item() for n, p in final.items()},
        }
        (directory / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
        print(f"{name}: loss {history['loss'][0]:.4f} to {history['loss'][-1]:.4f}, gradient norm "
              f"{min(history['grad_norm']):.3f} to {max(history['grad_norm']):.3f}")
        if args.check_float64:
            compare_float64(name, setup, final, history)


if __name__ == "__main__":
    main()
