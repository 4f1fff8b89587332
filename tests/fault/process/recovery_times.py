#!/usr/bin/env python3
"""Kills workers of runs at random moments; prints how long recovery takes, and compares every bit.

A run of llama-tiny with a spare loses workers one after the other (SIGKILL; every third time
SIGSTOP with --hangs). Printed a phase, median and worst: detection (from the signal), fence and
restore (all ranks hold the copy of the state and are ready), and the first step that had never
been done; the time from the restored state to that step's end stands beside it as a multiple of
the median undisturbed step, since what was lost is at most one step of the ranks that moved.
Loss bits must equal those of a run that nothing happens to.

usage: recovery_times.py PROGRAM [--kills 20] [--job FILE] [--hangs] [--all-meshes] [--seed 1]
                         [--spares 1] [--interval 10] [--more "--key=value ..."]
Exit code 1 if a bit differs, a run fails, or anything is left behind.
"""

import argparse
import glob
import json
import os
import pathlib
import random
import select
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

MESHES = {
    "dp2": ["--parallelism.data_parallel_degree=2"],
    "dp2 zero3": ["--parallelism.data_parallel_degree=2", "--parallelism.zero_stage=3"],
    "pp2": ["--parallelism.pipeline_parallel_degree=2"],
}
COMMON = [
    "--training.global_batch_size=8",
    "--training.micro_batch_size=2",
    "--training.validation_interval=0",
    "--checkpoint.interval=0",
    "--log.sample_tokens=0",
    "--log.interval=1000000",
    "--resilience.max_faults=1000000",
]


def lines(path):
    try:
        text = pathlib.Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.split("\n")[:-1] if line]


def state(run_dir):
    try:
        return json.loads((run_dir / "control/state.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return None


def wait_for(process, condition, seconds=60):
    """Polls a condition until it holds; None if the process ends or the time is over."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        if process.poll() is not None:
            return None
        select.select([], [], [], 0.004)
    return None


class Run:
    """One run that is struck until it ends."""

    def __init__(self, words, run_dir, rng):
        self.run_dir = run_dir
        self.rng = rng
        self.strikes = []
        self.process = subprocess.Popen(
            words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )

    def num_steps(self):
        try:
            return (self.run_dir / "metrics.jsonl").read_bytes().count(b"\n")
        except FileNotFoundError:
            return 0

    def settled(self, recoveries):
        """All strikes are answered and the run has its workers again, a spare among them."""
        there = state(self.run_dir)
        if there is None or len(lines(self.run_dir / "recoveries.jsonl")) < recoveries:
            return None
        return [w["pid"] for w in there["workers"] if w["ranks"]]

    def strike(self, number):
        """Returns False if the run ended before."""
        pids = wait_for(self.process, lambda: self.settled(len(self.strikes)))
        if not pids:
            return False
        target = self.num_steps() + self.rng.randint(2, 24)
        if not wait_for(self.process, lambda: self.num_steps() >= target):
            return False
        pid = self.rng.choice(self.settled(0) or pids)
        kind = signal.SIGSTOP if number else signal.SIGKILL
        now = time.time()
        try:
            os.kill(pid, kind)
        except ProcessLookupError:
            return True
        self.strikes.append((pid, now, kind))
        return True


def measure(run, table, step_ms):
    for recovery in lines(run.run_dir / "recoveries.jsonl"):
        for pid, when, kind in run.strikes:
            if f"(pid {pid}" not in recovery["culprit"] or recovery["restored_ms"] is None:
                continue
            found = (recovery["detected_unix"] - when) * 1e3
            table.append(
                {
                    "hang": kind == signal.SIGSTOP,
                    "detection": found,
                    "fence": recovery["fenced_ms"],
                    "restore": recovery["restored_ms"] - recovery["fenced_ms"],
                    "sum": found + recovery["restored_ms"],
                    "first new step": found + recovery["first_new_step_ms"]
                    if recovery["first_new_step_ms"] is not None
                    else float("nan"),
                    "replay": (recovery["first_new_step_ms"] - recovery["restored_ms"]) / step_ms
                    if recovery["first_new_step_ms"] is not None
                    else float("nan"),
                    "again": recovery["steps_again"],
                }
            )


def left_behind(run_dir, pid):
    out = glob.glob(f"/dev/shm/sgactor-{pid}-*")
    for cmdline in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            if str(run_dir).encode() in pathlib.Path(cmdline).read_bytes():
                out.append(cmdline)
        except OSError:
            continue
    return out


def bits(run_dir):
    return [line["loss_bits"] for line in lines(run_dir / "metrics.jsonl")]


def show(title, rows):
    if not rows:
        return
    print(f"{title}: {len(rows)} faults; milliseconds, median / worst")
    for key in ("detection", "fence", "restore", "sum", "first new step"):
        values = [row[key] for row in rows]
        print(f"  {key:<15} {statistics.median(values):8.1f} {max(values):8.1f}")
    replay = [row["replay"] for row in rows if row["replay"] == row["replay"]]
    if replay:
        print(f"  replay / step   {statistics.median(replay):8.2f} {max(replay):8.2f}")
    print(f"  steps again     {statistics.median([r['again'] for r in rows]):8.1f} "
          f"{max(r['again'] for r in rows):8.1f}")


def run_mesh(args, name, mesh, folder, rng):
    """Returns (table, failures)."""
    steps = args.steps or 30 * args.kills + 20
    words = [args.program, "train", args.job, *mesh, *COMMON, *args.more.split(),
             f"--training.steps={steps}", f"--resilience.mirror_interval={args.interval}",
             "--workers=2"]
    key = name.replace(" ", "_")
    quiet = folder / f"{key}-quiet"
    done = subprocess.run([*words, f"--run-dir={quiet}"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return [], [f"{name}: undisturbed: {done.stderr.strip()}"]
    run = Run([*words, f"--spares={args.spares}", f"--run-dir={folder / key}"], folder / key, rng)
    for number in range(args.kills):
        if not run.strike(number % 3 == 2 if args.hangs else 0):
            break
    _, err = run.process.communicate()
    failures = []
    if run.process.returncode != 0:
        failures.append(f"{name}: exit code {run.process.returncode}: {err.strip()[-400:]}")
    if bits(run.run_dir) != bits(quiet):
        failures.append(f"{name}: loss bits differ")
    failures += [f"{name}: left behind: {what}" for what in left_behind(run.run_dir, run.process.pid)]
    table = []
    step_ms = statistics.median(line["step_ms"] for line in lines(quiet / "metrics.jsonl"))
    measure(run, table, step_ms)
    print(f"{name}: {len(run.strikes)} struck, {len(lines(run.run_dir / 'recoveries.jsonl'))} "
          f"recoveries, {steps} steps of {step_ms:.0f} ms: {'equal bits' if not failures else failures}", flush=True)
    return table, failures


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--job", default="apps/examples/llama-tiny.toml")
    parser.add_argument("--hangs", action="store_true")
    parser.add_argument("--all-meshes", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--spares", type=int, default=1)
    parser.add_argument("--interval", type=int, default=10)
    parser.add_argument("--more", default="")
    args = parser.parse_args()
    rng = random.Random(args.seed)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="sgactor-recovery-"))
    table, failures = [], []
    names = list(MESHES) if args.all_meshes else ["dp2"]
    args.kills = -(-args.kills // len(names))
    for name in names:
        rows, wrong = run_mesh(args, name, MESHES[name], folder, rng)
        table += rows
        failures += wrong
    show("SIGKILL", [row for row in table if not row["hang"]])
    show("SIGSTOP", [row for row in table if row["hang"]])
    for failure in failures:
        print(failure)
    if failures:
        print(f"kept: {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
