#!/usr/bin/env python3
"""Kills one of two replicas of llama-tiny: sgactor beside torchft, on this CPU. Prints a line a side.

Both train the same shapes (batch 8, 128 tokens, one thread a replica) and lose one of two processes to SIGKILL at the same
step. Printed: the time from the signal until the first step is committed at full width again, the steps in
between that were trained on half of their samples or on none anew, and the loss against an undisturbed run of the same side.

  torchft, restarted    the killed replica is started again at once, as its launcher would
  torchft, spare        a third replica stands by (FIXED_WITH_SPARES), which computes along
  sgactor, fresh        the node starts another worker process
  sgactor, spare        a spare worker stands by

usage: side_by_side.py --sgactor PROGRAM [--python PYTHON] [--rounds N] [--steps N] [--kill-at N] [--json FILE]

needs: an interpreter (--python) with torch >= 2.7 and torchft 0.2, `pip install torchft`. Without them it says so and exits with 77,
which ctest takes for a skip. torchft's lighthouse runs with its shortest sensible time-outs: a
dead replica is noticed by its connections, then by 1 s without heartbeats (default 5 s).
"""
import argparse
import json
import os
import pathlib
import select
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
REPLICA = pathlib.Path(__file__).with_name("torchft_replica.py")
TEXT = ROOT / "apps/examples/data/shakespeare.txt"
JOB = ROOT / "apps/examples/llama-tiny.toml"
SKIPPED = 77
LIMIT_S = 180
LIGHTHOUSE = """
import sys
from torchft.coordination import LighthouseServer
server = LighthouseServer(bind="127.0.0.1:0", min_replicas=int(sys.argv[1]), join_timeout_ms=1000,
                          quorum_tick_ms=50, heartbeat_timeout_ms=1000)
print(server.address(), flush=True)
sys.stdin.read()
server.shutdown()
"""


def lines(path):
    try:
        text = pathlib.Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.split("\n")[:-1] if line]


def wait_for(condition, processes, seconds=LIMIT_S):
    """Polls until the condition holds. Fails if a process ends or the time is over."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        if any(p.poll() not in (None, 0) for p in processes):
            raise RuntimeError("a process has ended early")
        select.select([], [], [], 0.005)
    raise RuntimeError(f"nothing for {seconds} s")


class TorchFt:
    """A run of `width` replicas, or of one more with a spare."""

    def __init__(self, args, folder, spare):
        self.args, self.folder, self.spare = args, folder, spare
        self.folder.mkdir(parents=True)
        self.errors = open(self.folder / "stderr", "wb")
        self.lighthouse = subprocess.Popen(
            [args.python, "-c", LIGHTHOUSE, "2" if spare else "1"], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=self.errors, text=True)
        self.address = self.lighthouse.stdout.readline().strip()
        self.replicas = [self.start(i) for i in range(3 if spare else 2)]

    def log(self, index):
        return self.folder / f"replica{index}.jsonl"

    def start(self, index):
        words = [self.args.python, str(REPLICA), f"--replica={index}", f"--steps={self.args.steps}",
                 f"--text={TEXT}", f"--log={self.log(index)}"]
        if self.spare:
            words.append("--spares")
        environment = dict(os.environ, TORCHFT_LIGHTHOUSE=self.address, OMP_NUM_THREADS="1")
        return subprocess.Popen(words, env=environment, stdout=self.errors, stderr=self.errors)

    def strike(self):
        """Kills replica 1; returns the instant."""
        wait_for(lambda: len(lines(self.log(0))) > self.args.kill_at, self.replicas)
        now = time.time()
        self.replicas[1].kill()
        self.replicas[1].wait()
        if not self.spare:
            self.replicas[1] = self.start(1)
        else:
            del self.replicas[1]
        return now

    def finish(self):
        for process in self.replicas:
            process.wait(LIMIT_S)
        return self.steps()

    def steps(self):
        """Step -> what its participants computed, of all replicas."""
        out = {}
        for path in sorted(self.folder.glob("replica*.jsonl")):
            for line in lines(path):
                step = out.setdefault(line["step"], {"parts": 2, "losses": [], "time": 0.0})
                if line["rows"]:
                    step["losses"].append(line["loss"])
                # What a committed step has of both replicas, its quorum says: the line of a replica that was killed
                # may be missing.
                step["parts"] = min(step["parts"], line["participants"])
                step["time"] = max(step["time"], line["time"])
        return out

    def close(self):
        for process in [*self.replicas, self.lighthouse]:
            if process.poll() is None:
                process.kill()
            process.wait()
        self.errors.close()


def torchft_run(args, folder, spare, struck):
    run = TorchFt(args, folder, spare)
    try:
        when = run.strike() if struck else None
        return run.finish(), when
    finally:
        run.close()


def torchft_side(args, folder, spare):
    quiet, _ = torchft_run(args, folder / "quiet", spare, False)
    struck, when = torchft_run(args, folder / "struck", spare, True)
    missing = [k for k, s in struck.items() if s["time"] > when and s["parts"] < 2]
    # The step under way at the signal may still be committed by both.
    first = max(missing) if missing else min(k for k, s in struck.items() if s["time"] > when)
    whole = [s["time"] for k, s in struck.items() if k > first and s["parts"] == 2]
    loss = {k: statistics.mean(s["losses"]) for k, s in struck.items() if len(s["losses"]) == 2}
    same = {k: statistics.mean(s["losses"]) for k, s in quiet.items() if len(s["losses"]) == 2}
    both = sorted(set(loss) & set(same))
    return {"full_width_ms": (min(whole) - when) * 1e3 if whole else None,
            "steps_with_samples_missing": len(missing),
            "samples_never_trained": 4 * len(missing),
            "steps_of_other_loss": sum(loss[k] != same[k] for k in both),
            "largest_difference": max(abs(loss[k] - same[k]) for k in both),
            "last_loss": [same[both[-1]], loss[both[-1]]], "last_step": both[-1]}


def sgactor_run(args, folder, spares, struck):
    words = [args.sgactor, "train", str(JOB), "--workers=2", f"--spares={spares}", "--devices=cpu:1",
             f"--run-dir={folder}", f"--training.steps={args.steps}",
             "--parallelism.data_parallel_degree=2", "--training.global_batch_size=8",
             "--training.micro_batch_size=4", "--training.validation_interval=0",
             "--checkpoint.interval=0", "--log.sample_tokens=0", "--log.interval=1000000"]
    when = None
    metrics = folder / "metrics.jsonl"
    run = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if struck:
        wait_for(lambda: len(lines(metrics)) > args.kill_at, [run])
        workers = json.loads((folder / "control/state.json").read_text(encoding="utf-8"))["workers"]
        victim = [w["pid"] for w in workers if w["ranks"]][1]
        when = time.time()
        os.kill(victim, signal.SIGKILL)
    _, err = run.communicate(timeout=LIMIT_S)
    if run.returncode != 0:
        raise RuntimeError(f"sgactor: exit code {run.returncode}: {err.strip()}")
    return {m["step"]: m for m in lines(metrics)}, when


def sgactor_side(args, folder, spares):
    folder.mkdir(parents=True)
    quiet, _ = sgactor_run(args, folder / "quiet", spares, False)
    struck, when = sgactor_run(args, folder / "struck", spares, True)
    # Without a spare the run first goes on over one worker, which computes both replicas' samples;
    # full width is when two workers compute again.
    whole = [r["detected_unix"] * 1e3 + r["first_new_step_ms"]
             for r in lines(folder / "struck/recoveries.jsonl")
             if r["workers"] == 2 and r["first_new_step_ms"] is not None]
    return {"full_width_ms": min(whole) - when * 1e3 if whole else None,
            "steps_with_samples_missing": 0 if sorted(struck) == sorted(quiet) else None,
            "samples_never_trained": sum(
                q["tokens"] - struck[k]["tokens"] for k, q in quiet.items()) // 128,
            "steps_of_other_loss": sum(struck[k]["loss_bits"] != q["loss_bits"]
                                       for k, q in quiet.items()),
            "largest_difference": max(abs(struck[k]["loss"] - q["loss"]) for k, q in quiet.items()),
            "last_loss": [quiet[args.steps]["loss"], struck[args.steps]["loss"]],
            "last_step": args.steps}


def show(name, rows):
    times = [r["full_width_ms"] for r in rows if r["full_width_ms"] is not None]
    worst = max(rows, key=lambda r: r["largest_difference"])
    took = f"{statistics.median(times):8.0f} ms, worst {max(times):6.0f}" if times else "never"
    print(f"{name:<20} full width again after {took}; samples missing in "
          f"{max(r['steps_with_samples_missing'] for r in rows)} steps "
          f"({max(r['samples_never_trained'] for r in rows)} samples); loss differs in "
          f"{max(r['steps_of_other_loss'] for r in rows)} steps, by {worst['largest_difference']:.2g} at most; "
          f"last loss {worst['last_loss'][1]:.4f}, undisturbed {worst['last_loss'][0]:.4f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sgactor", default=str(ROOT / "build/release/bin/sgactor"))
    parser.add_argument("--python", default=sys.executable, help="has torch and torchft")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--kill-at", type=int, default=30)
    parser.add_argument("--json")
    args = parser.parse_args()
    there = subprocess.run([args.python, "-c", "import torch, torchft"], capture_output=True,
                           text=True, check=False)
    if there.returncode != 0:
        print(f"skipped: {args.python} has no torch with torchft: "
              f"{there.stderr.strip().splitlines()[-1]}; pip install torchft")
        return SKIPPED
    folder = pathlib.Path(tempfile.mkdtemp(prefix="sgactor-torchft-"))
    sides = {"torchft, restarted": lambda f: torchft_side(args, f, False),
             "torchft, spare": lambda f: torchft_side(args, f, True),
             "sgactor, fresh": lambda f: sgactor_side(args, f, 0),
             "sgactor, spare": lambda f: sgactor_side(args, f, 1)}
    rows = {name: [] for name in sides}
    for number in range(args.rounds):
        for index, (name, side) in enumerate(sides.items()):
            rows[name].append(side(folder / f"{number}-{index}"))
            print(f"round {number + 1}, {name}: {rows[name][-1]}", flush=True)
    for name, result in rows.items():
        show(name, result)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(rows) + "\n", encoding="utf-8")
    shutil.rmtree(folder)
    good = all(r["steps_of_other_loss"] == 0 and r["samples_never_trained"] == 0
               for name in rows if name.startswith("sgactor") for r in rows[name])
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
