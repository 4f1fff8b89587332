#!/usr/bin/env python3
"""The demo: two workers and a spare train llama-tiny; half way one worker is killed.

The run goes on and says so in one line. A short run beside it, to which nothing happens, then
proves that the loss of every step has the same bits.

usage: demo.py PROGRAM RUN_DIR [--job FILE] [--steps N] [--quiet-steps N] [KEY=VALUE overrides]
Exit code 1 if the run fails or a bit differs.
"""

import argparse
import json
import os
import pathlib
import select
import shutil
import signal
import subprocess
import sys


def metrics(run_dir):
    try:
        text = (run_dir / "metrics.jsonl").read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.split("\n")[:-1]]


def num_steps(run_dir):
    try:
        return (run_dir / "metrics.jsonl").read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def hosts(run_dir):
    """Processes that host ranks now, as the run itself says."""
    state = json.loads((run_dir / "control" / "state.json").read_text(encoding="utf-8"))
    return [worker["pid"] for worker in state["workers"] if worker["ranks"]]


def kill_one(process, run_dir, at_step):
    """Waits for a step, then kills a worker. False if the run ends before."""
    while num_steps(run_dir) < at_step:
        if process.poll() is not None:
            return False
        select.select([], [], [], 0.01)
    pid = hosts(run_dir)[-1]
    print(f"demo      kill -9 {pid}, which hosts a worker", flush=True)
    os.kill(pid, signal.SIGKILL)
    return True


def compare(run_dir, quiet_dir):
    struck = {line["step"]: line["loss_bits"] for line in metrics(run_dir)}
    quiet = {line["step"]: line["loss_bits"] for line in metrics(quiet_dir)}
    different = [step for step, bits in quiet.items() if struck.get(step) != bits]
    recoveries = (run_dir / "recoveries.jsonl").read_text(encoding="utf-8").splitlines()
    if different or not quiet or not recoveries:
        print(f"demo      {len(recoveries)} recoveries; loss bits differ at steps {different}")
        return False
    at = json.loads(recoveries[0])["step"]
    print(f"demo      worker lost after step {at}; loss bits of steps 1 to {max(quiet)} equal those "
          f"of the undisturbed run: {len(quiet)} of {len(quiet)}")
    return True


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("run_dir", type=pathlib.Path)
    parser.add_argument("--job", default="apps/examples/llama-tiny.toml")
    parser.add_argument("--steps", type=int, default=320)
    parser.add_argument("--quiet-steps", type=int, default=0)
    args, more = parser.parse_known_args()
    quiet_dir = args.run_dir.with_name(args.run_dir.name + "-undisturbed")
    for folder in (args.run_dir, quiet_dir):
        shutil.rmtree(folder, ignore_errors=True)
    half = args.steps // 2
    words = [args.program, "train", args.job, "--devices=cpu:1", "--workers=2",
             "--parallelism.data_parallel_degree=2", "--training.micro_batch_size=4", *more]
    process = subprocess.Popen([*words, "--spares=1", f"--run-dir={args.run_dir}",
                                f"--training.steps={args.steps}"])
    struck = kill_one(process, args.run_dir, half)
    if process.wait() != 0 or not struck:
        print("demo      the run has failed")
        return 1
    steps = args.quiet_steps or half + 8
    print(f"demo      now {steps} steps to which nothing happens", flush=True)
    quiet = [*words, f"--run-dir={quiet_dir}", f"--training.steps={steps}",
             "--training.validation_interval=0", "--log.interval=40", "--log.sample_tokens=0",
             "--checkpoint.interval=0"]
    if subprocess.run(quiet, check=False).returncode != 0:
        return 1
    return 0 if compare(args.run_dir, quiet_dir) else 1


if __name__ == "__main__":
    sys.exit(main())
