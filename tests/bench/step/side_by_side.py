#!/usr/bin/env python3
"""One training step of llama-15m or llama-125m on this CPU: sgactor beside PyTorch eager and torch.compile, the same shapes and threads, in turns
within one run. Prints a table and, last, one JSON line.

usage: side_by_side.py [--model llama-125m] --sgactor build/release/bin/sgactor [--python PYTHON_WITH_TORCH] [--rounds N] [--steps N]

Each round runs every side once, in an order that rotates, so that a slow minute of the machine falls on all of them; the
median over rounds counts. Without --python a virtual environment with torch is made below the build directory.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import venv

ROOT = pathlib.Path(__file__).resolve().parents[3]
JOBS = ROOT / "apps/examples"
PEER = ROOT / "apps/tools/torch_llama_cpu.py"


def make_python(build):
    """Interpreter of a virtual environment that has torch."""
    folder = build / "torch-venv"
    python = folder / "bin/python"
    if not python.exists():
        print(f"bench: making {folder} with torch (once)", flush=True)
        venv.create(folder, with_pip=True)
    if subprocess.run([python, "-c", "import torch"], capture_output=True).returncode != 0:
        subprocess.run([python, "-m", "pip", "install", "-q", "torch", "numpy"], check=True)
    return str(python)


def last_json(text):
    lines = [line for line in text.splitlines() if line.startswith("{")]
    return [json.loads(line) for line in lines]


def run_sgactor(args):
    out = subprocess.run([args.sgactor, "bench", "step", str(JOBS / f"{args.model}.toml"), "--json", f"--steps={args.steps}", f"--devices=cpu:{args.threads}",
                          f"--training.micro_batch_size={args.batch}", f"--training.global_batch_size={args.batch}",
                          f"--training.seq_len={args.seq}"], check=True, capture_output=True, text=True).stdout
    return last_json(out)[-1]["tok_s"]


def run_torch(args, mode):
    out = subprocess.run([args.python, str(PEER), "--model", args.model, "--mode", mode, f"--steps={args.steps}", f"--threads={args.threads}", f"--batch={args.batch}",
                          f"--seq={args.seq}"], check=True, capture_output=True, text=True).stdout
    return last_json(out)[-1][mode]["tok_s"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=("llama-15m", "llama-125m"), default="llama-15m")
    parser.add_argument("--sgactor", default=str(ROOT / "build/release/bin/sgactor"))
    parser.add_argument("--python")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seq", type=int, default=256)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args()
    if args.rounds < 1 or args.steps < 1:
        parser.error("--rounds and --steps are at least 1")
    args.python = args.python or make_python(pathlib.Path(args.sgactor).resolve().parents[1])
    sides = {"sgactor": lambda: run_sgactor(args), "torch eager": lambda: run_torch(args, "eager"),
             "torch.compile": lambda: run_torch(args, "compile")}
    results = {name: [] for name in sides}
    names = list(sides)
    pairs = []
    for round_number in range(args.rounds):
        for name in names[round_number % 3:] + names[:round_number % 3]:
            results[name].append(sides[name]())
            print(f"round {round_number + 1}/{args.rounds}  {name:<14} {results[name][-1]:9.1f} tokens/s", flush=True)
        pairs.append(results["sgactor"][-1] / max(results["torch eager"][-1], results["torch.compile"][-1]))
    medians = {name: statistics.median(values) for name, values in results.items()}
    best = max(medians["torch eager"], medians["torch.compile"])
    print(f"\n{'side':<14} {'median tok/s':>13} {'sgactor / side':>15}")
    for name in names:
        print(f"{name:<14} {medians[name]:13.1f} {medians['sgactor'] / medians[name]:15.2f}")
    print(json.dumps({"model": args.model, "batch": args.batch, "seq": args.seq, "threads": args.threads, "rounds": args.rounds,
                      "tok_s": medians, "ratio_to_best": medians["sgactor"] / best,
                      "ratio_by_round": pairs}))


if __name__ == "__main__":
    sys.exit(main())
