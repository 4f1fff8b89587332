#!/usr/bin/env python3
"""All-reduce of floats in place between processes of this machine: sgactor beside Open MPI and Gloo, in turns within one run.

usage: side_by_side.py --bench build/release/bin/collectives_bench [--python PYTHON_WITH_TORCH] [--rounds N] [--processes 2,4]
                       [--bytes 8,65536,...]

Needs Open MPI (Debian: apt-get install openmpi-bin libopenmpi-dev) and, for Gloo, a Python that has torch. A side that is missing is
left out, and said so. Each round runs every side once, in an order that rotates, so that a slow minute of the machine falls on all of
them; the median over rounds of each side's median call counts. Sides of one row of the table use the same means: shared memory, or TCP
on loopback. On a machine that others use as well, run it in a scheduling group of its own: bash -c 'echo -19 >
/proc/self/autogroup; nice -n -19 python3 ...'. Prints a Markdown table with the bus bandwidth, 2 (n-1)/n * bytes / time, and, last, one JSON line.
"""
import argparse
import json
import os
import pathlib
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
SIZES = [8, 4096, 65536, 1 << 20, 8 << 20, 64 << 20]


def run(command, **kwargs):
    out = subprocess.run(command, capture_output=True, text=True, timeout=600, **kwargs)
    if out.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: exit code {out.returncode}\n{out.stderr[-2000:]}")
    line = [text for text in out.stdout.splitlines() if text.startswith("{")][-1]
    return {row["bytes"]: (row["time_us"], row["cpu_us"]) for row in json.loads(line)["rows"]}


def sgactor(args, transport, algorithm):
    return lambda n: run([args.bench, transport, str(n), algorithm, *map(str, args.bytes)])


def open_mpi(args, program, transport):
    btl = {"shm": "self,vader", "tcp": "self,tcp"}[transport]
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--mca", "pml", "ob1", "--mca", "btl", btl]
    if transport == "tcp":
        command += ["--mca", "btl_tcp_if_include", "lo"]
    return lambda n: run([*command, "-n", str(n), program, *map(str, args.bytes)])


def gloo(args):
    return lambda n: run([args.python, HERE / "gloo_all_reduce.py", str(n), *map(str, args.bytes)])


def make_sides(args, folder):
    sides = {"sgactor ring, shm": sgactor(args, "shm", "ring"), "sgactor exact, shm": sgactor(args, "shm", "exact"),
             "sgactor ring, tcp": sgactor(args, "tcp", "ring")}
    if shutil.which("mpicc"):
        program = pathlib.Path(folder) / "mpi_all_reduce"
        subprocess.run(["mpicc", "-O2", "-o", program, HERE / "mpi_all_reduce.c"], check=True)
        sides["Open MPI, shm"] = open_mpi(args, program, "shm")
        sides["Open MPI, tcp"] = open_mpi(args, program, "tcp")
    else:
        print("bench: no mpicc, Open MPI is left out", flush=True)
    if args.python:
        sides["Gloo, tcp"] = gloo(args)
    else:
        print("bench: no --python with torch, Gloo is left out", flush=True)
    return sides


def measure(args, sides, n):
    times = {name: {size: [] for size in args.bytes} for name in sides}
    names = list(sides)
    loads = []
    for turn in range(args.rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            loads.append(os.getloadavg()[0])
            for size, time in sides[name](n).items():
                times[name][size].append(time)
            print(f"{n} processes, round {turn + 1}/{args.rounds}, {name}: "
                  f"{times[name][args.bytes[-1]][-1][0]:.0f} us at {args.bytes[-1]} B", flush=True)
    def medians(kind):
        return {name: {size: statistics.median(t[kind] for t in several) for size, several in by_size.items()}
                for name, by_size in times.items()}
    return medians(0), medians(1), loads


def bus_gb_s(n, size, time_us):
    return 2 * (n - 1) / n * size / time_us * 1e-3


def print_table(args, n, medians, cpu, loads):
    names = list(medians)
    print(f"\n{n} processes, {args.rounds} rounds, load average {min(loads):.1f} to {max(loads):.1f}; GB/s of bus bandwidth "
          f"(and us a call below 64 KiB)\n")
    print("| bytes | " + " | ".join(names) + " |\n| ---: |" + " ---: |" * len(names))
    for size in args.bytes:
        cells = [f"{medians[name][size]:.1f} us" if size < 65536 else f"{bus_gb_s(n, size, medians[name][size]):.2f}" for name in names]
        print(f"| {size} | " + " | ".join(cells) + " |")
    best = args.bytes[-1]
    print("| CPU ms a call and process | " + " | ".join(f"{cpu[name][best] * 1e-3:.1f}" for name in names) + " |")
    for means in ("shm", "tcp"):
        others = [name for name in names if name.endswith(means) and not name.startswith("sgactor")]
        if others:
            other = min(others, key=lambda name: medians[name][best])
            ratio = medians[other][best] / medians[f"sgactor ring, {means}"][best]
            print(f"\nover {means} at {best} bytes: sgactor ring has {ratio:.2f} of the bandwidth of {other}")
    sys.stdout.flush()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", required=True)
    parser.add_argument("--python")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--processes", default="2,4")
    parser.add_argument("--bytes", default=",".join(map(str, SIZES)))
    args = parser.parse_args()
    args.bytes = [int(text) for text in args.bytes.split(",")]
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}", flush=True)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        sides = make_sides(args, folder)
        for n in map(int, args.processes.split(",")):
            medians, cpu, loads = measure(args, sides, n)
            print_table(args, n, medians, cpu, loads)
            results.append({"processes": n, "time_us": medians, "cpu_us": cpu, "load": [min(loads), max(loads)]})
    print(json.dumps(results))


if __name__ == "__main__":
    main()
