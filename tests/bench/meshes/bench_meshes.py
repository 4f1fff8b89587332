#!/usr/bin/env python3
"""One table: llama-tiny on every mesh of workers, with the same logical ranks.

Each row is `sgactor train JOB --workers N` with the parallelism keys printed. The first row is the
reference: one worker that hosts all logical data-parallel ranks. Losses (as bits) and gradient
norms of every dp, pp and ZeRO row must equal its; rows with tp must agree within 1e-5 (loss) and
1e-4 of the norm. Also printed: tokens/s (median step), and the most memory that a logical rank's
arena has had in use. A machine with fewer cores than workers shares them: what tokens/s says then
is what more processes cost, not what they gain.

usage: bench_meshes.py PROGRAM [--steps 50] [--job FILE] [--keep DIR] [--rows REGEX] [--json FILE]
                       [--markdown FILE]
Exit code 1 if a row fails or differs.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile

LOGICAL = 4
# name, dp, tp, pp, zero, more keys
ROWS = [
    ("1x1x1", 1, 1, 1, 0, []),
    ("2x1x1", 2, 1, 1, 0, []),
    ("4x1x1", 4, 1, 1, 0, []),
    ("3x1x1", 3, 1, 1, 0, []),
    ("2x1x1 z1", 2, 1, 1, 1, []),
    ("2x1x1 z2", 2, 1, 1, 2, []),
    ("2x1x1 z3", 2, 1, 1, 3, []),
    ("1x2x1", 1, 2, 1, 0, []),
    ("1x1x2", 1, 1, 2, 0, []),
    ("1x1x4 interleaved", 1, 1, 4, 0, ["--parallelism.schedule=interleaved"]),
    ("2x2x1", 2, 2, 1, 0, []),
    ("2x1x2 z1", 2, 1, 2, 1, []),
    ("2x2x2", 2, 2, 2, 0, []),
]


def command(program, job, run_dir, row, steps):
    _, dp, tp, pp, zero, more = row
    return [
        program,
        "train",
        job,
        f"--workers={dp * tp * pp}",
        f"--run-dir={run_dir}",
        f"--parallelism.data_parallel_degree={dp}",
        f"--parallelism.tensor_parallel_degree={tp}",
        f"--parallelism.pipeline_parallel_degree={pp}",
        f"--parallelism.zero_stage={zero}",
        f"--parallelism.logical_data_parallel={LOGICAL}",
        f"--training.steps={steps}",
        "--training.global_batch_size=8",
        f"--training.micro_batch_size={8 // LOGICAL}",
        "--training.validation_interval=0",
        "--checkpoint.interval=0",
        "--log.sample_tokens=0",
        *more,
    ]


def read_metrics(run_dir):
    path = pathlib.Path(run_dir) / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def run_dir_of(folder, row):
    return folder / re.sub(r"\W", "_", row[0])


def run_row(program, job, folder, row, steps):
    run_dir = run_dir_of(folder, row)
    shutil.rmtree(run_dir, ignore_errors=True)
    words = command(program, job, run_dir, row, steps)
    done = subprocess.run(words, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode != 0:
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
        return None, f"exit code {done.returncode}: {lines[-1] if lines else ''}"
    metrics = read_metrics(run_dir)
    if len(metrics) != steps:
        return None, f"{len(metrics)} lines of metrics for {steps} steps"
    return metrics, ""


def arena_mib(run_dir):
    path = pathlib.Path(run_dir) / "report.json"
    return json.loads(path.read_text(encoding="utf-8"))["memory"]["high_water_bytes"] / 2**20


def loss_of(line):
    return struct.unpack(">f", bytes.fromhex(line["loss_bits"]))[0]


def compare(row, reference, metrics):
    exact = row[2] == 1
    if exact:
        for a, b in zip(reference, metrics):
            if a["loss_bits"] != b["loss_bits"]:
                return f"loss differs at step {b['step']}: {a['loss_bits']} and {b['loss_bits']}"
            if a["grad_norm"] != b["grad_norm"]:
                return f"norm differs at step {b['step']}: {a['grad_norm']} and {b['grad_norm']}"
        return "same bits"
    worst = max(abs(loss_of(a) - loss_of(b)) for a, b in zip(reference, metrics))
    norms = max(abs(a["grad_norm"] - b["grad_norm"]) / a["grad_norm"]
                for a, b in zip(reference, metrics))
    verdict = "within" if worst <= 1e-5 and norms <= 1e-4 else "loss differs:"
    return f"{verdict} {worst:.1e} (loss), {norms:.1e} (norm)"


def processor():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return "unknown"


def markdown(table, args, load):
    """The table as a page, with what one has to know to read it."""
    job = pathlib.Path(args.job).name
    lines = [
        f"# {job} on every mesh",
        "",
        "```",
        f"python3 tests/bench/meshes/bench_meshes.py build/release/bin/sgactor --steps {args.steps}",
        "```",
        "",
        f"{os.cpu_count()} cores, {processor()}; load average before and after: {load[0]:.1f}, "
        f"{load[1]:.1f}. {LOGICAL} logical data-parallel ranks in each row. Workers share the "
        "cores, so tokens/s says what more processes cost here, not what they would gain on "
        "devices of their own.",
        "",
        "| dp x tp x pp | workers | tokens/s | MiB a rank | losses and norms |",
        "| --- | ---: | ---: | ---: | --- |",
    ]
    lines += [f"| {r['row']} | {r['workers']} | {r['tok_s']:.0f} | {r['arena_mib']:.1f} | "
              f"{r['verdict']} |" for r in table]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("program")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--job", default="apps/examples/llama-tiny.toml")
    parser.add_argument("--keep", help="folder for the run directories")
    parser.add_argument("--rows", default="", help="only rows whose name matches (and the first)")
    parser.add_argument("--json", help="write the table to FILE too")
    parser.add_argument("--markdown", help="write the table as a page to FILE too")
    args = parser.parse_args()
    folder = pathlib.Path(args.keep or tempfile.mkdtemp(prefix="sgactor-meshes-"))
    table = []
    reference = None
    load = [os.getloadavg()[0]]
    print(f"{'dp x tp x pp':<20}{'workers':>8}{'tok/s':>10}{'MiB a rank':>12}  losses and norms",
          flush=True)
    for row in ROWS:
        if reference is not None and not re.search(args.rows, row[0]):
            continue
        metrics, problem = run_row(args.program, args.job, folder, row, args.steps)
        verdict = problem
        if metrics is not None:
            reference = reference or metrics
            verdict = compare(row, reference, metrics)
        rate = statistics.median(m["tok_s"] for m in metrics) if metrics else 0
        workers = row[1] * row[2] * row[3]
        mib = arena_mib(run_dir_of(folder, row)) if metrics else 0
        print(f"{row[0]:<20}{workers:>8}{rate:>10.0f}{mib:>12.1f}  {verdict}", flush=True)
        good = verdict == "same bits" or verdict.startswith("within")
        table.append({"row": row[0], "workers": workers, "tok_s": rate, "arena_mib": mib,
                      "verdict": verdict, "good": good})
        if reference is None:
            break
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(table) + "\n", encoding="utf-8")
    if args.markdown:
        load.append(os.getloadavg()[0])
        pathlib.Path(args.markdown).write_text(markdown(table, args, load), encoding="utf-8")
    if not args.keep:
        shutil.rmtree(folder, ignore_errors=True)
    if not all(r["good"] for r in table):
        sys.exit(1)


if __name__ == "__main__":
    main()
