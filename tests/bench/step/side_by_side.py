#!/usr/bin/env python3
"""One training step of llama-15m or llama-125m on this CPU: sgactor beside PyTorch eager and torch.compile, the same
shapes and threads. Prints a table and, last, one JSON line.

usage: side_by_side.py [--model llama-125m] --sgactor build/release/bin/sgactor [--python PYTHON_WITH_TORCH] [--rounds N] [--steps N]

All three train all the time, but only one runs: the others are stopped (SIGSTOP). In each round every side does --steps
steps that count, behind one that does not, in an order that rotates; so a machine whose speed drifts from minute to
minute, as those with neighbours do, drifts for all. The median over all steps counts, and the ratio of each round is
printed, since its spread tells what the medians are worth. Without --python a virtual environment with torch is made
below the build directory.
"""
import argparse
import ctypes
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import venv

ROOT = pathlib.Path(__file__).resolve().parents[3]
JOBS = ROOT / "apps/examples"
PEER = ROOT / "apps/tools/torch_llama_cpu.py"
MANY = 1000000
LONGEST_STEP_S = 300
PR_SET_PDEATHSIG = 1  # prctl(2)


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


def dies_with_parent():
    """In a child: whoever kills this script leaves nothing that computes (or is stopped) behind."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Side:
    """A process that trains, and a file to which it adds a JSON line with step_ms a step."""

    def __init__(self, name, command, lines, log):
        self.name = name
        self.lines = lines
        self.read = 0
        self.times = []
        self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
                                        preexec_fn=dies_with_parent)

    def signal(self, number):
        os.killpg(self.process.pid, number)

    def next_step(self):
        """Milliseconds of the next step that ends; -1 at once if none has."""
        if not self.lines.exists():
            return -1
        with open(self.lines, encoding="utf-8") as file:
            file.seek(self.read)
            line = file.readline()
            while line.endswith("\n"):
                self.read = file.tell()
                if line.startswith("{") and "step_ms" in line:
                    return json.loads(line)["step_ms"]
                line = file.readline()
        return -1

    def wait_step(self):
        end = time.monotonic() + LONGEST_STEP_S
        while time.monotonic() < end:
            took = self.next_step()
            if took >= 0:
                return took
            if self.process.poll() is not None:
                raise SystemExit(f"{self.name} ended with {self.process.returncode}; see {self.lines.parent}")
            time.sleep(0.01)
        raise SystemExit(f"{self.name}: no step within {LONGEST_STEP_S} s")

    def run(self, steps):
        """Milliseconds of `steps` steps; the one that was interrupted is left out."""
        self.signal(signal.SIGCONT)
        self.wait_step()
        times = [self.wait_step() for _ in range(steps)]
        self.signal(signal.SIGSTOP)
        while self.next_step() >= 0:
            pass
        return times


def start_sgactor(args, folder):
    run_dir = folder / "run"
    command = [args.sgactor, "train", str(JOBS / f"{args.model}.toml"), f"--run-dir={run_dir}", f"--devices=cpu:{args.threads}",
               f"--training.micro_batch_size={args.batch}", f"--training.global_batch_size={args.batch}", f"--training.seq_len={args.seq}",
               f"--training.steps={MANY}", "--training.validation_interval=0", "--checkpoint.interval=0", "--log.sample_tokens=0",
               "--data.kind=mock", "--resilience.mode=off"]
    with open(folder / "sgactor.log", "w", encoding="utf-8") as log:
        return Side("sgactor", command, run_dir / "metrics.jsonl", log)


def start_torch(args, folder, mode):
    command = [args.python, str(PEER), "--model", args.model, "--mode", mode, f"--steps={MANY}", f"--threads={args.threads}", f"--batch={args.batch}",
               f"--seq={args.seq}", "--each"]
    lines = folder / f"{mode}.jsonl"
    with open(lines, "w", encoding="utf-8") as log:
        return Side({"eager": "torch eager", "compile": "torch.compile"}[mode], command, lines, log)


def measure(args, folder):
    """The sides, with their times a round."""
    sides = []
    try:
        for start in (lambda: start_sgactor(args, folder), lambda: start_torch(args, folder, "eager"), lambda: start_torch(args, folder, "compile")):
            sides.append(start())
            for _ in range(3):  # warm: memory touched, torch.compile done
                sides[-1].wait_step()
            sides[-1].signal(signal.SIGSTOP)
        for number in range(args.rounds):
            for side in sides[number % 3:] + sides[:number % 3]:
                side.times.append(side.run(args.steps))
            print(f"round {number + 1:2}/{args.rounds}  " + "  ".join(f"{s.name} {statistics.median(s.times[-1]):.0f} ms" for s in sides), flush=True)
    finally:
        for side in sides:
            side.signal(signal.SIGKILL)
            side.process.wait()
    return sides


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=("llama-15m", "llama-125m"), default="llama-15m")
    parser.add_argument("--sgactor", default=str(ROOT / "build/release/bin/sgactor"))
    parser.add_argument("--python")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seq", type=int, default=256)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args()
    if args.rounds < 1 or args.steps < 1:
        parser.error("--rounds and --steps are at least 1")
    args.python = args.python or make_python(pathlib.Path(args.sgactor).resolve().parents[1])
    with tempfile.TemporaryDirectory() as folder:
        sides = measure(args, pathlib.Path(folder))
    tokens = args.batch * args.seq
    rates = {s.name: tokens * 1e3 / statistics.median([t for times in s.times for t in times]) for s in sides}
    best = max(rates["torch eager"], rates["torch.compile"])
    by_round = [min(statistics.median(s.times[r]) for s in sides[1:]) / statistics.median(sides[0].times[r]) for r in range(args.rounds)]
    print(f"\n{'side':<14} {'median tok/s':>13} {'sgactor / side':>15}")
    for name, rate in rates.items():
        print(f"{name:<14} {rate:13.1f} {rates['sgactor'] / rate:15.2f}")
    print(json.dumps({"model": args.model, "batch": args.batch, "seq": args.seq, "threads": args.threads, "rounds": args.rounds,
                      "tok_s": {name: round(rate, 1) for name, rate in rates.items()}, "ratio_to_best": round(rates["sgactor"] / best, 3),
                      "ratio_by_round": [round(r, 2) for r in by_round]}))


if __name__ == "__main__":
    sys.exit(main())
