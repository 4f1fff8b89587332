#!/usr/bin/env python3
"""What copies in memory cost a step.

Trains a preset with two workers, with resilience.mode off and mirror in turn, and prints the median
step time of each mode, the ratio of the medians, and the spread of the runs' own medians: a ratio
inside that spread says nothing. The first steps of a run are left out.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile

JOB = """[model]
preset = "{preset}"
[data]
kind = "mock"
mock_tokens = 1000000
validation_fraction = 0.0
[training]
steps = {steps}
seq_len = {seq_len}
micro_batch_size = {micro_batch}
global_batch_size = {batch}
validation_interval = 0
[parallelism]
data_parallel_degree = 2
zero_stage = {zero}
[checkpoint]
interval = 0
[resilience]
mode = "{mode}"
[log]
interval = 1000
sample_tokens = 0
"""


def step_times(program, args, zero, mode, folder):
    """Milliseconds of the steps of one run, but for the first ones."""
    folder.mkdir()
    job = folder / "job.toml"
    job.write_text(JOB.format(preset=args.preset, steps=args.steps, seq_len=args.seq_len, zero=zero,
                              mode=mode, micro_batch=args.micro_batch,
                              batch=2 * args.micro_batch), encoding="utf-8")
    out = folder / "run"
    subprocess.run([program, "train", str(job), "--workers", "2", "--run-dir", str(out)],
                   check=True, capture_output=True, text=True, cwd=folder)
    lines = (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    times = [json.loads(line)["step_ms"] for line in lines if "step_ms" in line]
    if len(times) != args.steps:
        raise SystemExit(f"{len(times)} steps of {args.steps}")
    return times[args.warm:]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("--preset", default="llama-tiny")
    parser.add_argument("--seq-len", type=int, default=128)
    parser.add_argument("--micro-batch", type=int, default=4,
                        help="sequences a worker and step; the ratio falls as it grows")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--warm", type=int, default=5)
    parser.add_argument("--runs", type=int, default=3, help="of each mode")
    args = parser.parse_args()
    program = str(pathlib.Path(args.program).resolve())
    for zero in (0, 3):
        times = {"off": [], "mirror": []}
        for i in range(args.runs):
            # The order changes, so that what drifts does not fall on one mode.
            for mode in list(times) if i % 2 == 0 else list(times)[::-1]:
                with tempfile.TemporaryDirectory() as folder:
                    times[mode].append(step_times(program, args, zero, mode,
                                                  pathlib.Path(folder) / mode))
        median = {m: statistics.median([t for run in runs for t in run])
                  for m, runs in times.items()}
        spread = {m: [round(statistics.median(run), 2) for run in runs]
                  for m, runs in times.items()}
        change = 100 * (median["mirror"] / median["off"] - 1)
        print(f"{args.preset} 2 x {args.micro_batch} x {args.seq_len} tokens, zero {zero}: "
              f"off {median['off']:.2f} ms {spread['off']}, "
              f"mirror {median['mirror']:.2f} ms {spread['mirror']}, {change:+.1f} %", flush=True)


if __name__ == "__main__":
    main()
