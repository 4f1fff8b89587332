#!/usr/bin/env python3
"""Faults of every kind at random moments in real runs; nothing may differ from an undisturbed run.

Many runs of a tiny model over meshes of data parallelism, ZeRO 3, pipelines and products of them, with spares. Each is
struck at random times (not at step borders), several times, and compared with a run of the same mesh that nothing happens
to: loss bits of each step, sample ids, and the final state. Counted: divergences, hangs (a run that
does not end in time), processes and copies in memory that are left behind, and how resident memory
of the coordinator and of workers that live long moves from fault to fault.

kinds: kill (SIGKILL of a worker), hang (SIGSTOP), slow (SIGSTOP and SIGCONT in bursts that are shorter
than suspicion), spare (SIGKILL of a worker that hosts nothing), node (SIGKILL of a whole node; another
one joins), and what `sgactor chaos` injects: see INJECTED and LINKS.

usage: fault_soak.py PROGRAM [--faults 20] [--seed 1] [--per-run 6] [--kinds kill,hang,…] [--meshes dp2,…]
                     [--limit S] [--grow KIB] [--keep] [--json FILE]
Exit code 1 if anything differs, hangs, or is left.
"""

import argparse
import collections
import glob
import json
import os
import pathlib
import random
import select
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "e2e/cluster"))
from tiny_job import metrics, write_job  # noqa: E402

# Name: (workers, spares, keys of the job; those without a section are of "parallelism").
MESHES = {
    "dp2": (2, 1, {"data_parallel_degree": 2}),
    "dp4": (4, 1, {"data_parallel_degree": 4}),
    "dp2-zero3": (2, 1, {"data_parallel_degree": 2, "zero_stage": 3}),
    "dp4-zero3": (2, 2, {"data_parallel_degree": 4, "zero_stage": 3}),
    "pp2": (2, 1, {"pipeline_parallel_degree": 2}),
    "dp2-pp2": (4, 1, {"data_parallel_degree": 2, "pipeline_parallel_degree": 2}),
    "dp4-replicas": (4, 1, {"data_parallel_degree": 4, "resilience.mode": "replicas"}),
}
SIGNALS = ("kill", "hang", "slow", "spare", "node")
# Faults that a worker is asked to have, by the request that `sgactor chaos` leaves.
INJECTED = ("kill_actor", "disk_full", "torn_write", "xid", "stall_worker")
# Of the link between the worker and another.
LINKS = ("drop_frame", "delay_frame", "duplicate_frame", "corrupt_frame", "partition")
XIDS = (13, 63, 95)  # restart the worker, ignore, reset the device
SLOW_MS = 60
ENVIRONMENT = dict(os.environ, SGACTOR_INJECT="1")


def read_json(path):
    try:
        return json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError):
        return None


def lines(path):
    try:
        text = pathlib.Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.split("\n")[:-1] if line]


def processes_of(folder):
    """Process ids whose words name the folder; those that have ended and wait for their parent do not count."""
    found = []
    for cmdline in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            words = pathlib.Path(cmdline).read_bytes()
        except OSError:
            continue
        pid = int(cmdline.split("/")[2])
        if os.fsencode(str(folder)) in words and pid != os.getpid():
            found.append(pid)
    return found


def resident_kib(pid):
    try:
        text = pathlib.Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return None
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("VmRSS")), None)


def pause(seconds):
    select.select([], [], [], max(0.0, seconds))


class Facts:
    """What a run computed."""

    def __init__(self, run_dir):
        steps = metrics(run_dir)
        self.bits = [(m["step"], m["loss_bits"]) for m in steps]
        self.samples = {}
        for line in lines(run_dir / "audit.jsonl"):
            if line["what"] == "commit":
                self.samples.setdefault(line["step"], []).append(line["sample_hash"])
        # Chunks are named by their content, and there is one checkpoint: the last.
        self.state = sorted(path.name for path in (run_dir / "ckpt/chunks").glob("*/*"))

    def differences(self, other):
        out = []
        if self.bits != other.bits:
            at = [a[0] for a, b in zip(self.bits, other.bits) if a != b]
            out.append(f"loss bits differ from step {at[0] if at else '?'} on ({len(self.bits)} and "
                       f"{len(other.bits)} steps)")
        if self.samples != other.samples:
            out.append("samples differ")
        if not self.state or self.state != other.state:
            out.append("the final state differs")
        return out


class Run:
    """A run that is struck."""

    def __init__(self, args, words, folder, rng, nodes):
        self.args, self.folder, self.rng = args, folder, rng
        self.run_dir = folder / "run"
        self.errors = open(folder / "stderr", "wb")
        self.nodes = []
        self.faults = []
        self.memory = []  # (faults so far, KiB of the coordinator)
        self.of_workers = collections.defaultdict(list)
        self.process = subprocess.Popen(
            [*words, f"--run-dir={self.run_dir}", *(["--nodes=1:2"] if nodes else [])],
            stdout=self.errors, stderr=self.errors, env=ENVIRONMENT)
        self.wants_nodes = nodes

    def state(self):
        return read_json(self.run_dir / "control/state.json") or {"workers": []}

    def workers(self, active):
        """Those of the last dealing that are still this run's."""
        pids = [w["pid"] for w in self.state()["workers"] if bool(w["ranks"]) == active]
        mine = set(processes_of(self.folder))
        return [pid for pid in pids if pid in mine]

    def join_node(self):
        token = self.run_dir / "control/token"
        if not token.exists():
            return
        self.nodes.append(subprocess.Popen(
            [self.args.program, "node", f"--token={token}", "--workers=2", "--devices=cpu:1"],
            stdout=self.errors, stderr=self.errors, env=ENVIRONMENT))

    def inject(self, kind, pid):
        """Leaves a request, unless one is not taken yet. The same actor failure twice at one step would end
        the run, as it should."""
        request = self.run_dir / "control/request.json"
        if request.exists() or (kind == "kill_actor" and self.faults and self.faults[-1][0] == kind):
            return False
        index = next((w["index"] for w in self.state()["workers"] if w["pid"] == pid), None)
        if index is None:
            return False
        fault = {"inject": kind, "worker": index, "value": 0}
        if kind == "xid":
            fault["value"] = self.rng.choice(XIDS)
        if kind in LINKS:
            others = [w["ranks"][0] for w in self.state()["workers"] if w["ranks"] and w["pid"] != pid]
            if not others:
                return False
            fault["to_rank"] = self.rng.choice(others)
            fault["value"] = self.rng.randint(20, 400)  # milliseconds
        whole = self.run_dir / "control/request.tmp"
        whole.write_text(json.dumps(fault) + "\n", encoding="utf-8")
        whole.rename(request)
        self.faults.append((kind, time.time(), pid))
        return True

    def sample(self):
        value = resident_kib(self.process.pid)
        if value is not None:
            self.memory.append((len(self.faults), value))
        for pid in self.workers(True):
            value = resident_kib(pid)
            if value is not None:
                self.of_workers[pid].append((len(self.faults), value))

    def strike(self, kind):
        """False if there is nobody to strike now."""
        if kind == "node":
            alive = [n for n in self.nodes if n.poll() is None]
            if not alive:
                return False
            self.rng.choice(alive).kill()
            self.faults.append((kind, time.time(), alive[0].pid))
            self.join_node()
            return True
        pids = self.workers(kind != "spare")
        if not pids:
            return False
        pid = self.rng.choice(pids)
        try:
            if kind in INJECTED + LINKS:
                return self.inject(kind, pid)
            if kind == "slow":
                for _ in range(self.rng.randint(2, 6)):
                    os.kill(pid, signal.SIGSTOP)
                    pause(SLOW_MS / 1e3)
                    os.kill(pid, signal.SIGCONT)
                    pause(SLOW_MS / 1e3)
            else:
                os.kill(pid, signal.SIGSTOP if kind == "hang" else signal.SIGKILL)
        except ProcessLookupError:
            return False
        self.faults.append((kind, time.time(), pid))
        return True

    def has_begun(self):
        """A step is done: an actor that fails before that ends the run, as it would fail again."""
        file = self.run_dir / "metrics.jsonl"
        return file.exists() and file.stat().st_size > 0

    def wait(self, count, kinds):
        """Strikes until the run ends. Returns what went wrong."""
        deadline = time.monotonic() + self.args.limit
        while self.process.poll() is None and not (self.workers(True) and self.has_begun()):
            if time.monotonic() > deadline:
                return ["hang: it did not begin"]
            pause(0.01)
        if self.wants_nodes:
            self.join_node()
        due = time.monotonic() + self.rng.uniform(0, 0.5)
        while self.process.poll() is None:
            now = time.monotonic()
            if now > deadline:
                return [f"hang: no end within {self.args.limit:.0f} s; last fault {self.faults[-1:]}"]
            if now >= due and len(self.faults) < count:
                self.sample()
                self.strike(self.rng.choice(kinds))
                # One in four follows hard upon the one before: it strikes in the recovery.
                close = self.rng.random() < 0.25
                due = now + (self.rng.uniform(0, 0.12) if close else self.rng.uniform(0.1, 1.2))
            pause(0.005)
        if self.process.returncode != 0:
            return [f"exit code {self.process.returncode}: {self.tail()}"]
        return []

    def tail(self):
        self.errors.flush()
        text = (self.folder / "stderr").read_text(encoding="utf-8", errors="replace")
        return " | ".join(text.splitlines()[-4:])[-700:]

    def close(self):
        """Ends what is left; returns it."""
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            for node in self.nodes:
                node.poll()
            if not processes_of(self.folder):
                break
            pause(0.02)
        left = [f"process {pid} is left" for pid in processes_of(self.folder)]
        for pid in processes_of(self.folder):
            os.kill(pid, signal.SIGKILL)
        self.process.wait()
        for node in self.nodes:
            node.wait()
        memory = glob.glob(f"/dev/shm/sgactor-{self.process.pid}-*")
        left += [f"{path} is left" for path in memory]
        for path in memory:
            shutil.rmtree(path, ignore_errors=True)
        self.errors.close()
        return left


def growth(samples):
    """KiB from the first third of the samples to the last; None if there are too few to tell."""
    third = len(samples) // 3
    if third < 4:
        return None
    values = [kib for _, kib in samples]
    return statistics.median(values[-third:]) - statistics.median(values[third:2 * third])


class Soak:
    def __init__(self, args, folder):
        self.args, self.folder = args, folder
        self.rng = random.Random(args.seed)
        self.quiet = {}
        self.counts = collections.Counter()
        self.recoveries = 0
        self.problems = []
        self.grown = []

    def words(self, mesh):
        workers, spares, keys = MESHES[mesh]
        return [self.args.program, "train", str(self.folder / "job.toml"), f"--workers={workers}",
                f"--spares={spares}", "--devices=cpu:1", f"--training.steps={self.args.steps}",
                "--training.global_batch_size=8", "--resilience.max_faults=1000000",
                "--resilience.mirror_interval=10", "--resilience.check_frames=on",
                "--resilience.progress_floor=3", f"--cache-dir={self.folder / 'plans'}",
                *[f"--{key if '.' in key else f'parallelism.{key}'}={value}" for key, value in keys.items()]]

    def undisturbed(self, mesh):
        if mesh not in self.quiet:
            run_dir = self.folder / f"{mesh}-quiet"
            done = subprocess.run([*self.words(mesh), f"--run-dir={run_dir}"], capture_output=True,
                                  text=True, check=False, timeout=self.args.limit)
            if done.returncode != 0:
                sys.exit(f"{mesh}, undisturbed: {done.stderr.strip()}")
            self.quiet[mesh] = Facts(run_dir)
        return self.quiet[mesh]

    def run(self, number, mesh, count):
        expected = self.undisturbed(mesh)
        folder = self.folder / f"{number}-{mesh}"
        folder.mkdir()
        kinds = [k for k in self.args.kinds if k != "node"]
        nodes = "node" in self.args.kinds and (not kinds or self.rng.random() < 0.34)
        if nodes:
            kinds.append("node")
        run = Run(self.args, self.words(mesh), folder, self.rng, nodes)
        problems = run.wait(count, kinds)
        problems += run.close()
        if not any(p.startswith("hang") for p in problems):
            problems += Facts(run.run_dir).differences(expected)
        records = lines(run.run_dir / "recoveries.jsonl")
        self.recoveries += len(records)
        self.counts.update(kind for kind, _, _ in run.faults)
        for who, samples in [("coordinator", run.memory), *run.of_workers.items()]:
            grown = growth(samples)
            if grown is None:
                continue
            self.grown.append(grown)
            if grown > self.args.grow:
                problems.append(f"memory of {who} grew by {grown:.0f} KiB")
        told = ", ".join(f"{k} {n}" for k, n in
                         sorted(collections.Counter(f[0] for f in run.faults).items()))
        print(f"{number:4} {mesh:<10} {len(run.faults):3} faults ({told}), {len(records)} recoveries: "
              f"{'; '.join(problems) or 'equal'}", flush=True)
        self.problems += [f"run {number}, {mesh}: {p}" for p in problems]
        if not problems and not self.args.keep:
            shutil.rmtree(folder)
        return len(run.faults)

    def all(self):
        done, number, empty = 0, 0, 0
        order = list(self.args.meshes)
        while done < self.args.faults and empty < 5:
            count = min(self.rng.randint(1, 2 * self.args.per_run - 1), self.args.faults - done)
            struck = self.run(number, order[number % len(order)], count)
            done += struck
            empty = 0 if struck else empty + 1
            number += 1
        if done < self.args.faults:
            self.problems.append(f"only {done} of {self.args.faults} faults struck")
        return number


def names(known):
    def parse(text):
        out = text.split(",")
        for name in out:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name}: expected of {', '.join(known)}")
        return out
    return parse


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("program")
    parser.add_argument("--faults", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=500, help="of each run")
    parser.add_argument("--per-run", type=int, default=6, help="faults, on average")
    kinds = SIGNALS + INJECTED + LINKS
    parser.add_argument("--kinds", type=names(kinds), default=list(kinds))
    parser.add_argument("--meshes", type=names(MESHES), default=list(MESHES))
    parser.add_argument("--limit", type=float, default=120, help="seconds; a run that takes longer hangs")
    parser.add_argument("--grow", type=int, default=4096, help="KiB of memory that may be noise")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--json")
    args = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="sgactor-faults-"))
    write_job(folder, dp=1, zero=0)
    soak = Soak(args, folder)
    started = time.monotonic()
    runs = soak.all()
    report = {"runs": runs, "faults": dict(soak.counts), "recoveries": soak.recoveries,
              "seconds": time.monotonic() - started, "seed": args.seed,
              "hangs": sum("hang" in p for p in soak.problems),
              "divergences": sum("differ" in p for p in soak.problems),
              "left": sum("is left" in p for p in soak.problems),
              "largest_growth_kib": max(soak.grown, default=None), "problems": soak.problems}
    print(f"{sum(soak.counts.values())} faults in {runs} runs, {report['seconds']:.0f} s: {soak.recoveries} recoveries, "
          f"{report['divergences']} divergences, {report['hangs']} hangs, {report['left']} left behind, "
          f"memory +{report['largest_growth_kib']} KiB at most")
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(report) + "\n", encoding="utf-8")
    if soak.problems:
        print("\n".join(soak.problems))
        print(f"kept: {folder}")
        return 1
    if args.keep:
        print(f"kept: {folder}")
    else:
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
