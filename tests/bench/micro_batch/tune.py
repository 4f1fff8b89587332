#!/usr/bin/env python3
"""Shows what training.micro_batch_size = "auto" finds, beside every fixed size.

Runs each fixed size for some steps, then "auto" from a quarter and from four times the best one,
and prints tokens/s: medians of the last steps of 30. Where other work disturbs the machine, its
speed drifts; so each "auto" runs between the size that it begins with and the best one, --rounds
times, and the medians of the rounds' ratios count. Figures of one call belong together; those of
two calls do not.

usage: tune.py PROGRAM JOB [--batch N] [--sizes 1,2,4] [--steps 30] [--rounds 3] [--devices cpu:2] [KEY=VALUE ...]
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile


def train(args, size, start, root, name):
    run_dir = root / name
    command = [args.program, "train", args.job, "--run-dir", str(run_dir), "--devices", args.devices,
               f"--training.steps={args.steps}", f"--training.global_batch_size={args.batch}",
               f"--training.micro_batch_size={size}",
               *([f"--training.micro_batch_start={start}"] if start else []),
               "--training.validation_interval=0", "--checkpoint.interval=0",
               "--log.sample_tokens=0", *[f"--{o}" for o in args.overrides]]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        return None, done.stderr.strip()
    rates = [json.loads(line)["tok_s"] for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    decisions = [json.loads(line) for line in (run_dir / "audit.jsonl").read_text().splitlines()]
    decisions = [d for d in decisions if d["who"] == "micro_batch_tuner"]
    return statistics.median(rates[-args.last:]), decisions


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("job")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--sizes", default="")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--last", type=int, default=5, help="steps at the end whose median counts")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--devices", default="cpu")
    parser.add_argument("overrides", nargs="*", help="training.seq_len=64 ...")
    args = parser.parse_intermixed_args()
    sizes = [int(s) for s in args.sizes.split(",") if s] or [
        s for s in range(1, args.batch + 1) if args.batch % s == 0]
    with tempfile.TemporaryDirectory() as directory:
        root = pathlib.Path(directory)
        fixed = {}
        for size in sizes:
            rate, why = train(args, size, 0, root, f"fixed{size}")
            if rate is None:
                print(f"fixed {size:>5}: {why}")
                continue
            fixed[size] = rate
            print(f"fixed {size:>5}: {rate:>12.0f} tokens/s")
        best = max(fixed, key=fixed.get)
        for start in (best // 4, best * 4):
            if start < 1 or args.batch % start != 0:
                print(f"auto from {start}: no size of this batch")
                continue
            gains, losses = [], []
            for turn in range(args.rounds):
                name = f"{start}.{turn}"
                wrong, why = train(args, start, 0, root, f"wrong{name}")
                rate, decisions = train(args, "auto", start, root, f"auto{name}")
                right, _ = train(args, best, 0, root, f"best{name}")
                if rate is None:
                    sys.exit(decisions)
                losses.append(100 * (1 - rate / right))
                line = f"auto from {start}: {rate:.0f} tokens/s"
                if wrong is None:
                    line += f", fixed {start}: {why}"
                else:
                    gains.append(rate / wrong)
                    line += f", {gains[-1]:.2f} x fixed {start} ({wrong:.0f})"
                print(f"{line}, {losses[-1]:+.1f} % below fixed {best} ({right:.0f})", flush=True)
                for d in decisions:
                    print(f"  step {d['step']:>3}: {d['from']} -> {d['to']}: {d['reason']}")
            gain = f"{statistics.median(gains):.2f} x the wrong size, " if gains else ""
            print(f"auto from {start}, median of {args.rounds}: {gain}"
                  f"{statistics.median(losses):+.1f} % below the best, {best}", flush=True)


if __name__ == "__main__":
    main()
