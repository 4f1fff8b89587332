#!/usr/bin/env python3
"""Three hosts (network name spaces joined by cables): training, and a cable that is pulled.

Host 1 has the coordinator and its own node, hosts 2 and 3 a node each that joins by the token; one
worker a host, so every tensor between workers goes over TCP. The losses must be those of one
process, bit for bit. Then the cable of host 3 is pulled while a run goes. With resilience.mode off
the coordinator ends within --timeout seconds with exit code 1 and a line that names host-3, and no
process is left on any host, the cut-off one included. With its default the others take over host
3's rank and go on, with the bits of a run that nobody disturbed, and host 3 ends by itself once
nobody has come for it.

usage: hosts_test.py PROGRAM [--steps 20] [--timeout 20]
Exit code 77, with the reason, where hosts cannot be made.
"""

import argparse
import os
import pathlib
import signal
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


def bits_of_one_process(program, job, run_dir, steps, more=()):
    words = [program, "train", str(job), f"--run-dir={run_dir}", "--no-cache",
             f"--training.steps={steps}", *more]
    subprocess.run(words, check=True, capture_output=True, timeout=300)
    return loss_bits(run_dir)


def train_on_hosts(hosts, program, job, folder, steps):
    run_dir = folder / "run"
    started, outs = start_all(hosts, program, job, run_dir, steps)
    codes = [process.wait(timeout=120) for process in started]
    if codes != [0] * NUM_HOSTS:
        sys.exit(f"exit codes {codes}\n{show(outs)}")
    expected = bits_of_one_process(program, job, folder / "one", steps)
    if loss_bits(run_dir) != expected or len(expected) != steps:
        sys.exit(f"losses differ: {loss_bits(run_dir)} and {expected}")
    seconds = sum(line["step_ms"] for line in metrics(run_dir)) / 1e3
    print(f"{steps} steps on {NUM_HOSTS} hosts over TCP: the bits of one process, "
          f"{seconds / steps * 1e3:.1f} ms a step", flush=True)


def start_and_pull(hosts, program, job, run_dir, more):
    """A run without an end whose third host is cut off after five steps."""
    started, outs = start_all(hosts, program, job, run_dir, 10**6, more)
    wait_until(lambda: len(metrics(run_dir)) >= 5 or started[0].poll() is not None, 60,
               lambda: f"5 steps\n{show(outs)}")
    if started[0].poll() is not None:
        sys.exit(f"ended early\n{show(outs)}")
    hosts.pull(NUM_HOSTS - 1)
    return started, outs, time.monotonic()


def end_after_a_cut(hosts, program, job, folder, timeout):
    run_dir = folder / "cut"
    started, outs, pulled = start_and_pull(hosts, program, job, run_dir, ["--resilience.mode=off"])
    wait_until(lambda: started[0].poll() is not None, timeout, lambda: f"an end\n{show(outs)}")
    ended = time.monotonic() - pulled
    text = outs[0].read_text(errors="replace")
    name = hosts.names[NUM_HOSTS - 1]
    if started[0].returncode != 1 or name not in text:
        sys.exit(f"exit code {started[0].returncode}, expected 1 and {name}\n{show(outs)}")
    wait_until(lambda: not processes_with(str(run_dir)), timeout,
               lambda: f"no process left: {processes_with(str(run_dir))}\n{show(outs)}")
    gone = time.monotonic() - pulled
    line = [line for line in text.splitlines() if name in line][-1]
    print(f"cable pulled: the coordinator ended after {ended:.1f} s, the last process after "
          f"{gone:.1f} s: {line}", flush=True)
    hosts.plug_in(NUM_HOSTS - 1)


def go_on_after_a_cut(hosts, program, job, folder, timeout):
    run_dir = folder / "on"
    # Whoever is cut off waits this long for another coordinator.
    more = ["--resilience.orphan_timeout=3"]
    started, outs, _ = start_and_pull(hosts, program, job, run_dir, more)
    reached = len(metrics(run_dir))
    wait_until(lambda: len(metrics(run_dir)) > reached + 20 or started[0].poll() is not None,
               timeout, lambda: f"steps without host 3\n{show(outs)}")
    wait_until(lambda: started[2].poll() is not None, timeout,
               lambda: f"the end of the host that was cut off\n{show(outs)}")
    for pid in processes_with(str(run_dir)):
        if is_coordinator(pid):
            os.kill(pid, signal.SIGINT)
    codes = [process.wait(timeout=timeout) for process in started]
    if codes[:2] != [130, 0] or codes[2] == 0:
        sys.exit(f"exit codes {codes}\n{show(outs)}")
    wait_until(lambda: not processes_with(str(run_dir)), timeout, "no process left")
    losses = loss_bits(run_dir)
    calm = bits_of_one_process(program, job, folder / "calm", len(losses),
                               ["--optimizer.decay_steps=1000000"])
    if losses != calm:
        sys.exit(f"losses are not those of an undisturbed run\n{show(outs)}")
    text = outs[0].read_text(errors="replace")
    line = [line for line in text.splitlines() if line.startswith("recovered")]
    print(f"cable pulled: {len(losses)} steps, the bits of an undisturbed run: {line}")


def is_coordinator(pid):
    try:
        words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return len(words) > 1 and words[1] == b"train"


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
            end_after_a_cut(hosts, args.program, job, folder, args.timeout)
            go_on_after_a_cut(hosts, args.program, job, folder, 2 * args.timeout)


if __name__ == "__main__":
    main()
