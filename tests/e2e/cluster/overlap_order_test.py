#!/usr/bin/env python3
"""The order of starts that overlap rests on, from traces of a real run.

Trains llama-tiny on two workers with ZeRO 3, one micro-batch each, and asks apps/tools/overlap.py
--order of each worker's trace. Then moves what the traces say of communication behind the step's
computation: the same question must be answered with no.

usage: overlap_order_test.py PROGRAM SOURCE_DIRECTORY
"""

import gzip
import json
import pathlib
import subprocess
import sys
import tempfile

STEPS = 6


def train(program, source, run_dir):
    words = [program, "train", str(source / "apps/examples/llama-tiny.toml"), "--workers=2",
             "--no-cache", f"--run-dir={run_dir}", "--parallelism.data_parallel_degree=2",
             "--parallelism.zero_stage=3", "--training.micro_batch_size=2",
             "--training.global_batch_size=4", f"--training.steps={STEPS}",
             "--training.validation_interval=0", "--checkpoint.interval=0",
             "--log.sample_tokens=0", "--compile.bucket_size=segment", f"--log.trace_steps={STEPS}"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=250, check=False)
    if done.returncode != 0:
        sys.exit(f"train: exit code {done.returncode}: {done.stderr}")


def ask(source, trace):
    words = [sys.executable, str(source / "apps/tools/overlap.py"), str(trace), "--order"]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)


def move_communication(trace, moved):
    """Every slice of a lane but lane 0 starts a minute later."""
    with gzip.open(trace, "rt") as file:
        content = json.load(file)
    late = {(e["pid"], e["tid"]) for e in content["traceEvents"]
            if e.get("name") == "thread_name" and " lane " in e["args"]["name"]
            and not e["args"]["name"].endswith(" lane 0")}
    for event in content["traceEvents"]:
        if event.get("ph") == "X" and (event["pid"], event["tid"]) in late:
            event["ts"] += 60e6
    with gzip.open(moved, "wt") as file:
        json.dump(content, file)


def main():
    program, source = sys.argv[1], pathlib.Path(sys.argv[2])
    with tempfile.TemporaryDirectory(prefix="sgactor-overlap-") as folder:
        run_dir = pathlib.Path(folder) / "run"
        train(program, source, run_dir)
        traces = sorted((run_dir / "trace").iterdir())
        if [t.name for t in traces] != [f"rank{r}_trace.json.gz" for r in range(2)]:
            sys.exit(f"traces: {[t.name for t in traces]}")
        for trace in traces:
            answer = ask(source, trace)
            print(answer.stdout, end="")
            if answer.returncode != 0:
                sys.exit(f"{trace.name}: {answer.stdout}{answer.stderr}")
            moved = pathlib.Path(folder) / "moved.json.gz"
            move_communication(trace, moved)
            answer = ask(source, moved)
            if answer.returncode != 1 or "LATE" not in answer.stdout:
                sys.exit(f"a trace in which all communication is late passes: {answer.stdout}")


if __name__ == "__main__":
    main()
