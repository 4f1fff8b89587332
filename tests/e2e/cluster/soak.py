#!/usr/bin/env python3
"""Many steps of a tiny model on an asymmetric placement: no deadlock, nothing that grows.

Four logical ranks on three workers (one hosts two), ZeRO 1, hidden 32, 8 tokens a sequence, mock
data. Samples resident memory, open files and threads of every process of the run while it goes, by
the step that metrics.jsonl has reached. After --warm-up steps the samples are split in four equal
parts by step, and a process fails if its resident memory in the last part is more than --grow KiB
above that of the first, or if it has more files or threads: medians, since a file may be open for a
moment at any step.
A message that stays in a mailbox is memory that stays, so mailboxes are held by the same bound.
The run fails too if no step ends for --stall seconds, if a step is missing, or if a process is left.

usage: soak.py PROGRAM [--steps 300] [--warm-up N] [--grow KIB] [--stall 60] [--json FILE]
"""

import argparse
import json
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from tiny_job import write_job

PAUSE_S = 0.02


def processes_of(folder):
    """Process id -> role, of the run below folder."""
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if len(words) > 1 and words[1] in ("train", "node", "worker") and any(
                str(folder) in word for word in words):
            index = [word.split("=")[1] for word in words if word.startswith("--index=")]
            found[int(entry.name)] = " ".join([words[1], *index])
    return found


def sample(pid):
    """(resident KiB, open files, threads), or None if the process has gone."""
    try:
        status = pathlib.Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
        fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        files = len(list(pathlib.Path(f"/proc/{pid}/fd").iterdir()))
        return int(fields["VmRSS"].split()[0]), files, int(fields["Threads"])
    except (OSError, KeyError):
        return None


class Lines:
    """Counts the lines of a file that grows."""

    def __init__(self, path):
        self.path, self.file, self.count = path, None, 0

    def read(self):
        if self.file is None:
            if not self.path.exists():
                return 0
            self.file = open(self.path, "rb")
        self.count += self.file.read().count(b"\n")
        return self.count


def watch(run, folder, args):
    """Samples until the run ends. Returns ({pid: role}, {pid: [(step, KiB, files, threads)]})."""
    lines = Lines(folder / "run" / "metrics.jsonl")
    roles, samples = {}, {}
    last_step, last_change = -1, time.monotonic()
    while run.poll() is None:
        step = lines.read()
        now = time.monotonic()
        if step != last_step:
            last_step, last_change = step, now
        elif now - last_change > args.stall:
            run.kill()
            sys.exit(f"no step ended for {args.stall} s after step {step}")
        if 0 < step < args.steps:
            roles = roles or processes_of(folder)
            for pid in roles:
                values = sample(pid)
                if values is not None:
                    samples.setdefault(pid, []).append((step, *values))
        time.sleep(max(PAUSE_S, args.steps / 1e5))  # the sampling interval; nothing waits for it
    return roles, samples


def judge(role, samples, args):
    """One row of the table: values of the first and the last part, and what is wrong."""
    quarter = (args.steps - args.warm_up) / 4
    first = [s for s in samples if args.warm_up <= s[0] < args.warm_up + quarter]
    last = [s for s in samples if s[0] >= args.steps - quarter]
    row = {"process": role, "samples": len(samples), "problems": []}
    if len(first) < 3 or len(last) < 3:
        row["problems"].append(f"{len(first)} and {len(last)} samples are too few")
        return row
    for column, name in ((1, "rss_kib"), (2, "files"), (3, "threads")):
        row[name] = [int(statistics.median(s[column] for s in part)) for part in (first, last)]
        slack = args.grow if column == 1 else 0
        if row[name][1] > row[name][0] + slack:
            row["problems"].append(f"{name} grew from {row[name][0]} to {row[name][1]}")
    return row


def soak(args, folder):
    words = [args.program, "train", str(write_job(folder, dp=3, zero=1, logical=4)), "--workers=3",
             f"--run-dir={folder / 'run'}", f"--training.steps={args.steps}", "--no-cache"]
    started = time.monotonic()
    with open(folder / "log", "wb") as log:
        with subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT) as run:
            roles, samples = watch(run, folder, args)
    seconds = time.monotonic() - started
    problems = []
    if run.returncode != 0:
        tail = (folder / "log").read_text(encoding="utf-8", errors="replace").splitlines()[-5:]
        problems.append(f"exit code {run.returncode}: " + " | ".join(tail))
    metrics = (folder / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    if [json.loads(m)["step"] for m in metrics] != list(range(1, args.steps + 1)):
        problems.append(f"{len(metrics)} lines of metrics for {args.steps} steps")
    if processes_of(folder):
        problems.append(f"left behind: {processes_of(folder)}")
    if sorted(role.split()[0] for role in roles.values()) != ["node", "train"] + ["worker"] * 3:
        problems.append(f"processes seen: {sorted(roles.values())}")
    rows = [judge(roles[pid], samples.get(pid, []), args) for pid in sorted(roles)]
    return {"steps": args.steps, "seconds": seconds, "processes": rows, "problems": problems}


def print_report(report):
    rate = report["steps"] / report["seconds"]
    print(f"{report['steps']} steps in {report['seconds']:.1f} s, {rate:.0f} a second")
    print(f"{'process':<12}{'samples':>8}{'resident KiB':>20}{'files':>12}{'threads':>12}")
    for row in report["processes"]:
        values = ["{} -> {}".format(*row[n]) if n in row else "-"
                  for n in ("rss_kib", "files", "threads")]
        print(f"{row['process']:<12}{row['samples']:>8}{values[0]:>20}{values[1]:>12}"
              f"{values[2]:>12}  {'; '.join(row['problems']) or 'flat'}")
    for problem in report["problems"]:
        print(f"problem: {problem}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("program")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--warm-up", type=int, help="default: a tenth of the steps, at least 100")
    parser.add_argument("--grow", type=int, default=512, help="KiB that may be noise")
    parser.add_argument("--stall", type=float, default=60, help="seconds without a step: deadlock")
    parser.add_argument("--json", help="write the report to FILE too")
    args = parser.parse_args()
    if args.warm_up is None:
        args.warm_up = max(100, args.steps // 10)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="sgactor-soak-"))
    try:
        report = soak(args, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print_report(report)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(report) + "\n", encoding="utf-8")
    if report["problems"] or any(row["problems"] for row in report["processes"]):
        sys.exit(1)


if __name__ == "__main__":
    main()
