#!/usr/bin/env python3
"""Three hosts (network name spaces joined by cables): training, and a cable that is pulled.

Host 1 has the coordinator and its own node, hosts 2 and 3 a node each that joins by the token; one
worker a host, so every tensor between workers goes over TCP. The losses must be those of one
process, bit for bit. Then the cable of host 3 is pulled while the run goes: within --timeout
seconds the coordinator ends with exit code 1 and a line that names host-3, and no process is left
on any host, the cut-off one included.

usage: hosts_test.py PROGRAM [--steps 20] [--timeout 20]
Exit code 77, with the reason, where hosts cannot be made.
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile
import time

from hosts import Hosts, missing, processes_with, wait_until
from tiny_job import loss_bits, metrics, write_job

NUM_HOSTS = 3


def start_all(hosts, program, job, run_dir, steps, more=()):
    """The coordinator on host 1, then the nodes. Returns (process, output file) of each."""
    folder = run_dir.parent
    train = [program, "train", str(job), f"--run-dir={run_dir}", "--no-cache",
             f"--training.steps={steps}", f"--workers={NUM_HOSTS}",
             f"--nodes={NUM_HOSTS}:{NUM_HOSTS}", f"--bind={hosts.address(0)}", *more]
    token = run_dir / "control" / "token"
    outs = [folder / f"{run_dir.name}.host{i + 1}" for i in range(NUM_HOSTS)]
    started = [hosts.start(0, train, outs[0])]
    wait_until(lambda: token.exists() or started[0].poll() is not None, 30, "a token")
    for i in range(1, NUM_HOSTS):
        node = [program, "node", "--token", str(token), f"--bind={hosts.address(i)}"]
        started.append(hosts.start(i, node, outs[i]))
    return started, outs


def show(outs):
    return "\n".join(f"--- {out.name}\n{out.read_text(errors='replace')}" for out in outs)


def train_on_hosts(hosts, program, job, folder, steps):
    one = folder / "one"
    words = [program, "train", str(job), f"--run-dir={one}", "--no-cache",
             f"--training.steps={steps}"]
    subprocess.run(words, check=True, capture_output=True, timeout=120)
    run_dir = folder / "run"
    started, outs = start_all(hosts, program, job, run_dir, steps)
    codes = [process.wait(timeout=120) for process in started]
    if codes != [0] * NUM_HOSTS:
        sys.exit(f"exit codes {codes}\n{show(outs)}")
    if loss_bits(run_dir) != loss_bits(one) or len(loss_bits(one)) != steps:
        sys.exit(f"losses differ: {loss_bits(run_dir)} and {loss_bits(one)}")
    seconds = sum(line["step_ms"] for line in metrics(run_dir)) / 1e3
    print(f"{steps} steps on {NUM_HOSTS} hosts over TCP: the bits of one process, "
          f"{seconds / steps * 1e3:.1f} ms a step")


def pull_a_cable(hosts, program, job, folder, timeout):
    run_dir = folder / "cut"
    started, outs = start_all(hosts, program, job, run_dir, 10**6,
                              ["--resilience.mode=off"])
    wait_until(lambda: len(metrics(run_dir)) >= 5 or started[0].poll() is not None, 60, "5 steps")
    if started[0].poll() is not None:
        sys.exit(f"ended early\n{show(outs)}")
    hosts.pull(NUM_HOSTS - 1)
    pulled = time.monotonic()
    wait_until(lambda: started[0].poll() is not None, timeout, f"an end\n{show(outs)}")
    ended = time.monotonic() - pulled
    text = outs[0].read_text(errors="replace")
    name = hosts.names[NUM_HOSTS - 1]
    if started[0].returncode != 1 or name not in text:
        sys.exit(f"exit code {started[0].returncode}, expected 1 and {name}\n{show(outs)}")
    wait_until(lambda: not processes_with(str(run_dir)), timeout,
               f"no process left: {processes_with(str(run_dir))}\n{show(outs)}")
    gone = time.monotonic() - pulled
    line = [line for line in text.splitlines() if name in line][-1]
    print(f"cable pulled: the coordinator ended after {ended:.1f} s, the last process after "
          f"{gone:.1f} s: {line}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("program")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--timeout", type=float, default=20, help="seconds from the pull to the end")
    args = parser.parse_args()
    if missing():
        print(f"skipped: {missing()}")
        sys.exit(77)
    with tempfile.TemporaryDirectory(prefix="sgactor-hosts-") as name:
        folder = pathlib.Path(name)
        job = write_job(folder, dp=NUM_HOSTS, zero=1)
        with Hosts(NUM_HOSTS) as hosts:
            train_on_hosts(hosts, args.program, job, folder, args.steps)
            pull_a_cable(hosts, args.program, job, folder, args.timeout)


if __name__ == "__main__":
    main()
