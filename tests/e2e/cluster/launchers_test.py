#!/usr/bin/env python3
"""Runs that somebody else has started: torchrun's environment, mpirun, srun.

Each trains a tiny job on three workers and must end with the bits of one process, exit code 0 and
no process left. What this machine lacks is named and left out; torchrun's environment needs
nothing.

usage: launchers_test.py PROGRAM [--only REGEX]
"""

import argparse
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile

import slurm
from hosts import processes_with, wait_until
from tiny_job import loss_bits, write_job

STEPS = 12
LIMIT_S = 120


def train_words(program, job, run_dir, *more):
    return [program, "train", str(job), f"--run-dir={run_dir}", "--no-cache",
            f"--training.steps={STEPS}", *more]


def run(words, env=None):
    print("$", " ".join(words), flush=True)
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=LIMIT_S,
                          stdin=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        sys.exit(f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def by_environment(program, job, run_dir):
    """Two processes with RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, as torchrun gives them."""
    words = train_words(program, job, run_dir, "--workers=3")
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    print("$", *(f"{k}={v}" for k, v in place.items()), "RANK=0|1", " ".join(words), flush=True)
    # The second one first: it has to wait for the coordinator.
    started = [subprocess.Popen(words, env={**os.environ, **place, "RANK": rank}, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
               for rank in ("1", "0")]
    outs = [process.communicate(timeout=LIMIT_S)[0] for process in started]
    codes = [process.returncode for process in started]
    if codes != [0, 0]:
        sys.exit(f"exit codes {codes}\n" + "\n---\n".join(outs))


def by_mpirun(program, job, run_dir):
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    run(["mpirun", *root, "--oversubscribe", "-n", "2",
         *train_words(program, job, run_dir, "--workers=3")])


def by_srun(program, job, run_dir):
    with slurm.Slurm(run_dir.parent / "slurm") as cluster:
        run(["srun", "-N", "2", "-n", "2", *train_words(program, job, run_dir, "--workers=3")],
            cluster.env)


def by_srun_nodes(program, job, run_dir):
    """`srun sgactor node` lends Slurm's nodes to a run that was started by hand."""
    with slurm.Slurm(run_dir.parent / "slurm") as cluster:
        words = train_words(program, job, run_dir, "--workers=3", "--nodes=3:3")
        print("$", " ".join(words), "&", flush=True)
        with subprocess.Popen(words, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT) as coordinator:
            token = run_dir / "control" / "token"
            wait_until(lambda: token.exists() or coordinator.poll() is not None, 30, "a token")
            run(["srun", "-N", "2", "-n", "2", program, "node", "--token", str(token)],
                cluster.env)
            out = coordinator.communicate(timeout=LIMIT_S)[0]
        if coordinator.returncode != 0:
            sys.exit(f"exit code {coordinator.returncode}\n{out}")


def no_mpirun():
    return "" if shutil.which("mpirun") else "no mpirun (package openmpi-bin)"


LAUNCHERS = [
    ("torchrun's environment", by_environment, lambda: ""),
    ("mpirun", by_mpirun, no_mpirun),
    ("srun sgactor train", by_srun, slurm.missing),
    ("srun sgactor node", by_srun_nodes, slurm.missing),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("program")
    parser.add_argument("--only", default="", help="launchers whose name matches")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sgactor-launchers-") as name:
        job = write_job(name, dp=3, zero=2)
        one = pathlib.Path(name) / "one"
        subprocess.run(train_words(args.program, job, one), check=True, capture_output=True,
                       timeout=LIMIT_S)
        for number, (launcher, start, missing) in enumerate(LAUNCHERS):
            if not re.search(args.only, launcher):
                continue
            if missing():
                print(f"{launcher}: left out: {missing()}")
                continue
            run_dir = pathlib.Path(name) / f"case{number}" / "run"
            run_dir.parent.mkdir()
            start(args.program, job, run_dir)
            if len(loss_bits(one)) != STEPS or loss_bits(run_dir) != loss_bits(one):
                sys.exit(f"{launcher}: losses {loss_bits(run_dir)}, not {loss_bits(one)}")
            wait_until(lambda: not processes_with(str(run_dir)), 5,  # pylint: disable=W0640
                       f"{launcher}: no process left: {processes_with(str(run_dir))}")
            print(f"{launcher}: the bits of one process", flush=True)


if __name__ == "__main__":
    main()
