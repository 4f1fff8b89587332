#!/usr/bin/env python3
"""One replica of llama-tiny under torchft (torchft.Manager, gloo): the other side of side_by_side.py.

Every replica computes the samples of its place in the step: rows of a global batch drawn by (seed,
step), so that a run that nothing happens to is a pure function of the seed. A line of JSON a
committed step goes to --log: step, mean loss of the rows that this replica computed, how many replicas took part,
the rows, and the time.
"""
import argparse
import datetime
import json
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torchft import Manager, Optimizer, ProcessGroupGloo
from torchft.manager import WorldSizeMode

# Preset llama-tiny: embeddings tied, as many key/value heads as heads.
VOCAB, HIDDEN, LAYERS, HEADS, FFN, EPS, THETA = 256, 256, 4, 4, 704, 1e-5, 10000.0
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


def rows_of(text, step, batch, seq):
    """Where the samples of a step begin in the text."""
    generator = torch.Generator().manual_seed(step)
    return torch.randint(0, len(text) - seq - 1, (batch,), generator=generator)


def average(manager, model):
    """Means the gradients of all replicas, in one bucket. torchft.DistributedDataParallel would do the same
    beside the backward pass, but its hook fails an assertion of its own when a gloo peer is gone
    (0.2.0), which ends the survivor."""
    parameters = list(model.parameters())
    bucket = torch.cat([p.grad.flatten() for p in parameters])
    manager.allreduce(bucket).wait()
    for p, part in zip(parameters, bucket.split([p.numel() for p in parameters])):
        p.grad.copy_(part.view_as(p))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replica", type=int, required=True)
    parser.add_argument("--active", type=int, default=2, help="replicas that compute")
    parser.add_argument("--spares", action="store_true", help="others wait (FIXED_WITH_SPARES)")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--batch", type=int, default=8, help="sequences a step, of all replicas")
    parser.add_argument("--seq", type=int, default=128)
    parser.add_argument("--text", required=True)
    parser.add_argument("--log", required=True)
    parser.add_argument("--timeout", type=float, default=10, help="seconds, of each operation")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with open(args.text, "rb") as file:
        text = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8).long()
    model = Llama(args.seq)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    timeout = datetime.timedelta(seconds=args.timeout)

    def load(state):
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timeout), load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
        min_replica_size=args.active if args.spares else 1, timeout=timeout,
        world_size_mode=WorldSizeMode.FIXED_WITH_SPARES if args.spares else WorldSizeMode.DYNAMIC,
        use_async_quorum=not args.spares, rank=0, world_size=1, store_addr="127.0.0.1",
        store_port=store.port, replica_id=f"replica{args.replica}_", hostname="127.0.0.1",
        lighthouse_addr=os.environ["TORCHFT_LIGHTHOUSE"])
    optimizer = Optimizer(manager, torch.optim.AdamW(model.parameters(), lr=1e-3,
                                                     betas=(0.9, 0.95), weight_decay=0.1))
    share = args.batch // args.active
    with open(args.log, "a", encoding="utf-8") as log:
        while manager.current_step() < args.steps:
            optimizer.zero_grad()
            step = manager.current_step()
            # A replica keeps its part of the data, as torchft's sampler has it; a spare takes over
            # the part of whoever is gone.
            place = manager.participating_rank() if args.spares else args.replica
            mine = range(share * (place or 0), share * ((place or 0) + 1))
            starts = rows_of(text, step, args.batch, args.seq)[list(mine)]
            rows = torch.stack([text[s:s + args.seq + 1] for s in starts])
            loss = model(rows[:, :-1], rows[:, 1:])
            loss.backward()
            average(manager, model)
            taking_part = place is not None and manager.is_participating()
            count = manager.num_participants()
            optimizer.step()
            if manager.current_step() == step:
                continue  # not committed: done again
            line = {"step": step, "loss": loss.item(), "participants": count,
                    "rows": list(mine) if taking_part else [], "time": time.time()}
            log.write(json.dumps(line) + "\n")
            log.flush()
    manager.shutdown(wait=False)


if __name__ == "__main__":
    main()
