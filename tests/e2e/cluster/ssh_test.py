#!/usr/bin/env python3
"""Two hosts (network name spaces, an sshd in each) that `sgactor train --hosts FILE` starts over ssh.

The losses must be those of one process, bit for bit, and no process may be left on any host. A host
that cannot be reached must be named, with exit code 2 or 3 and nobody left.

usage: ssh_test.py PROGRAM [--steps 10]
Exit code 77, with the reason, where there are no name spaces or no sshd.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from hosts import Hosts, missing, processes_with, wait_until
from tiny_job import loss_bits, write_job

SSHD = "/usr/sbin/sshd"
NUM_HOSTS = 2


def make_keys(folder):
    for name in ("host_key", "user_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)],
                       check=True)
    shutil.copy(folder / "user_key.pub", folder / "authorized_keys")
    (folder / "sshd_config").write_text(
        f"Port 22\nHostKey {folder}/host_key\nAuthorizedKeysFile {folder}/authorized_keys\n"
        "StrictModes no\nPermitRootLogin yes\nUsePAM no\nPidFile none\n")
    (folder / "ssh_config").write_text(
        f"Host *\n  IdentityFile {folder}/user_key\n  IdentitiesOnly yes\n  LogLevel ERROR\n"
        "  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n")


def start_daemons(hosts, folder):
    # Where sshd drops its rights; its package makes it at boot.
    os.makedirs("/run/sshd", exist_ok=True)
    for i in range(NUM_HOSTS):
        hosts.start(i, [SSHD, "-D", "-e", "-f", str(folder / "sshd_config")], folder / f"sshd{i}")
        wait_until(lambda i=i: "listening" in (folder / f"sshd{i}").read_text(), 20, "an sshd")


def train(hosts, program, job, folder, name, lines, steps, more=()):
    """Starts the run on host 1; returns (exit code, output)."""
    (folder / f"{name}.hosts").write_text("\n".join(lines) + "\n")
    words = [program, "train", str(job), f"--run-dir={folder / name}", "--no-cache",
             f"--training.steps={steps}", f"--workers={NUM_HOSTS}", f"--bind={hosts.address(0)}",
             f"--hosts={folder / (name + '.hosts')}",
             f"--ssh={shutil.which('ssh')} -F {folder / 'ssh_config'}", *more]
    process = hosts.start(0, words, folder / f"{name}.out")
    code = process.wait(timeout=120)
    wait_until(lambda: not processes_with(str(folder / name)), 20, "no process left")
    return code, (folder / f"{name}.out").read_text(errors="replace")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("program")
    parser.add_argument("--steps", type=int, default=10)
    args = parser.parse_args()
    why = missing() or ("" if os.path.exists(SSHD) else "no sshd (package openssh-server)")
    if why:
        print(f"skipped: {why}")
        sys.exit(77)
    program = os.path.abspath(args.program)
    with tempfile.TemporaryDirectory(prefix="sgactor-ssh-") as name:
        folder = pathlib.Path(name)
        make_keys(folder)
        job = write_job(folder, dp=NUM_HOSTS, zero=1)
        with Hosts(NUM_HOSTS) as hosts:
            start_daemons(hosts, folder)
            good = [f"{hosts.address(i)} workers=1" for i in range(NUM_HOSTS)]
            code, text = train(hosts, program, job, folder, "run", good, args.steps)
            if code != 0:
                sys.exit(f"exit code {code}\n{text}")
            one = folder / "one"
            subprocess.run([program, "train", str(job), f"--run-dir={one}", "--no-cache",
                            f"--training.steps={args.steps}"],
                           check=True, capture_output=True, timeout=120)
            if loss_bits(folder / "run") != loss_bits(one) or len(loss_bits(one)) != args.steps:
                sys.exit("losses are not those of one process")
            print(f"{args.steps} steps on {NUM_HOSTS} hosts started over ssh: the bits of one process")
            bad = [good[0], "10.77.0.99"]
            code, text = train(hosts, program, job, folder, "bad", bad, args.steps,
                               ["--join-timeout=8"])
            if code not in (2, 3) or "10.77.0.99" not in text:
                sys.exit(f"exit code {code}, expected 2 or 3 and a line that names 10.77.0.99\n{text}")
            print(f"a host that is not there: exit code {code}")


if __name__ == "__main__":
    main()
