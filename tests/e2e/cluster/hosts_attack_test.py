#!/usr/bin/env python3
"""A stranger in the network of two hosts that train: the run's bits stay, and its memory too.

Hosts 1 and 2 train over TCP; host 3 has no token. It finds the ports that listen (the coordinator's
control port and one data port a worker; no other may listen to the network), sends random and
mutated messages to each, among them the transport's own hello with bytes changed, and holds idle
connections. Steps must go on, losses must be those of one process, and no process may grow by more
than --grow MiB.

usage: hosts_attack_test.py PROGRAM [--messages 600] [--idle 200]    (10000 and 1000: the long form)
Exit code 77, with the reason, where hosts cannot be made.
"""

import argparse
import json
import pathlib
import random
import signal
import socket
import struct
import subprocess
import sys
import tempfile

from hosts import Hosts, missing, processes_with, wait_until
from tiny_job import loss_bits, metrics, write_job

LISTEN = "0A"
# A frame's header and the hello behind it, as transport/core lays them down: kind, bytes; magic,
# version, peer, nonce.
HEADER = struct.Struct("<II56x")
HELLO = struct.Struct("<QII32s")


def listening(pid):
    """(address in numbers, port) of the TCP sockets of a process that listen."""
    links = [f.readlink() for f in pathlib.Path(f"/proc/{pid}/fd").iterdir()]
    sockets = {str(link)[8:-1] for link in links if str(link).startswith("socket:[")}
    found = set()
    with open(f"/proc/{pid}/net/tcp", encoding="utf-8") as table:
        for line in table.readlines()[1:]:
            words = line.split()
            if words[3] == LISTEN and words[9] in sockets:
                address, port = words[1].split(":")
                packed = struct.pack("<I", int(address, 16))
                found.add((socket.inet_ntoa(packed), int(port, 16)))
    return found


def resident_mib(pid):
    with open(f"/proc/{pid}/statm", encoding="utf-8") as file:
        return int(file.read().split()[1]) * 4 / 1024


def message(rng):
    kind = rng.randrange(4)
    if kind == 0:
        return rng.randbytes(1 + rng.randrange(1500))
    if kind == 1:  # a frame that announces more than there is
        return HEADER.pack(rng.randrange(8), rng.choice((64, 65, 2**20, 2**32 - 1))) + bytes(64)
    if kind == 2:  # a TLS record that is cut
        return b"\x16\x03\x01" + rng.randbytes(rng.randrange(300))
    hello = HELLO.pack(int.from_bytes(b"SGACTOR1", "little"), 1, rng.randrange(9),
                       rng.randbytes(32))
    changed = bytearray(HEADER.pack(1, HELLO.size) + hello)
    for _ in range(rng.randrange(1, 5)):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed[:rng.randrange(1, len(changed) + 1)])


def attack(places, num_messages, num_idle):
    """What host 3 does. Prints a line when it has done all but let go of its idle connections."""
    rng = random.Random(20)
    for i in range(num_messages):
        place = places[i % len(places)]
        with socket.create_connection(place, timeout=10) as s:
            try:
                s.sendall(message(rng))
                if i % 3 == 0:
                    s.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # closed before we were done: as it should be
    idle = [socket.create_connection(places[i % len(places)], timeout=10)
            for i in range(num_idle)]
    print(f"sent {num_messages} messages, holds {len(idle)} connections", flush=True)
    signal.pause()


def start_run(hosts, program, job, run_dir):
    folder = run_dir.parent
    train = [program, "train", str(job), f"--run-dir={run_dir}", "--no-cache",
             "--training.steps=1000000", "--workers=2", "--nodes=2:2",
             f"--bind={hosts.address(0)}"]
    started = [hosts.start(0, train, folder / "train.out")]
    token = run_dir / "control" / "token"
    wait_until(lambda: token.exists() or started[0].poll() is not None, 30, "a token")
    node = [program, "node", "--token", str(token)]
    started.append(hosts.start(1, node, folder / "node.out"))
    wait_until(lambda: len(metrics(run_dir)) >= 5 or started[0].poll() is not None, 60, "5 steps")
    if started[0].poll() is not None:
        sys.exit((folder / "train.out").read_text(errors="replace"))
    return started


def run(args, folder, hosts):
    job = write_job(folder, dp=2, zero=3)
    run_dir = folder / "run"
    started = start_run(hosts, args.program, job, run_dir)
    pids = processes_with(str(run_dir))
    places = sorted(set().union(*(listening(pid) for pid in pids)))
    print(f"ports: {places}")
    expected = sorted([hosts.address(0)] * 2 + [hosts.address(1)])
    if sorted(address for address, _ in places) != expected:
        sys.exit(f"expected a control port and a data port a worker: {places}")
    before = {pid: resident_mib(pid) for pid in pids}
    words = [sys.executable, __file__, "--attack", json.dumps(places),
             f"--messages={args.messages}", f"--idle={args.idle}", args.program]
    out = folder / "attack.out"
    stranger = hosts.start(2, words, out)
    wait_until(lambda: "holds" in out.read_text() or stranger.poll() is not None, args.limit,
               "the end of the attack")
    if stranger.poll() is not None:
        sys.exit(out.read_text(errors="replace"))
    print(out.read_text().strip())
    during = len(metrics(run_dir))
    wait_until(lambda: len(metrics(run_dir)) >= during + 20 or started[0].poll() is not None, 30,
               "steps beside idle connections")
    grown = max(resident_mib(pid) - before[pid] for pid in pids)
    stranger.terminate()
    coordinator = min(pid for pid in pids if pid_runs(pid, "train"))
    subprocess.run(["kill", "-INT", str(coordinator)], check=True)
    codes = [process.wait(timeout=30) for process in started]
    if codes != [130, 0]:
        sys.exit(f"exit codes {codes}: {(folder / 'train.out').read_text(errors='replace')}")
    if grown > args.grow:
        sys.exit(f"a process grew by {grown:.1f} MiB")
    return job, loss_bits(run_dir), grown


def pid_runs(pid, command):
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        words = file.read().split(b"\0")
    return len(words) > 1 and words[1] == command.encode()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("program")
    parser.add_argument("--messages", type=int, default=600)
    parser.add_argument("--idle", type=int, default=200)
    parser.add_argument("--grow", type=float, default=32, help="MiB")
    parser.add_argument("--limit", type=float, default=200, help="seconds for the attack")
    parser.add_argument("--attack", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.attack:
        attack([tuple(place) for place in json.loads(args.attack)], args.messages, args.idle)
        return
    if missing():
        print(f"skipped: {missing()}")
        sys.exit(77)
    with tempfile.TemporaryDirectory(prefix="sgactor-attack-") as name:
        folder = pathlib.Path(name)
        with Hosts(3) as hosts:
            job, losses, grown = run(args, folder, hosts)
        calm = folder / "calm"
        subprocess.run([args.program, "train", str(job), f"--run-dir={calm}", "--no-cache",
                        f"--training.steps={len(losses)}", "--optimizer.decay_steps=1000000"],
                       check=True, capture_output=True, timeout=300)
        if loss_bits(calm) != losses:
            sys.exit("losses are not those of a run that nobody disturbed")
        print(f"{len(losses)} steps, the bits of an undisturbed run; at most {grown:.1f} MiB grown")


if __name__ == "__main__":
    main()
