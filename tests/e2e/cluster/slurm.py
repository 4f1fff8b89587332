"""A Slurm of two nodes on this machine, for tests: everything of it lies in one folder.

From the distribution's packages slurm-wlm and munge; needs root. Neither its own daemons nor its
files in /etc are touched: munged, slurmctld and two slurmd run with files and ports of their own
and end with the context.
"""

import os
import pathlib
import shutil
import socket
import subprocess

from hosts import wait_until

CONF = """ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmctldPort={port0}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={port1} CPUs=1
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={port2} CPUs=1
PartitionName=all Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
"""


def missing():
    """Why there is no Slurm here; empty if there is."""
    if os.geteuid() != 0:
        return "not root"
    for tool in ("slurmctld", "slurmd", "srun", "munged"):
        if shutil.which(tool) is None:
            return f"no {tool} (packages slurm-wlm, munge)"
    return ""


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


class Slurm:
    """As a context manager. `env` is what srun needs in its environment."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.env = {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf")}
        self.daemons = []

    def __enter__(self):
        try:
            self.begin()
        except BaseException:
            self.__exit__()
            raise
        return self

    def begin(self):
        (self.folder / "state").mkdir(parents=True)
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        ports = free_ports(3)
        (self.folder / "slurm.conf").write_text(
            CONF.format(host=socket.gethostname(), folder=self.folder, port0=ports[0],
                        port1=ports[1], port2=ports[2]), encoding="utf-8")
        self.start("munged", "--foreground", "--force",
                   *[f"--{name}={self.folder}/munge.{end}" for name, end in
                     (("key-file", "key"), ("socket", "sock"), ("pid-file", "pid"),
                      ("log-file", "log"), ("seed-file", "seed"))])
        wait_until((self.folder / "munge.sock").exists, 10, "munged")
        self.start("slurmctld", "-D", "-i")
        for node in ("n1", "n2"):
            (self.folder / f"spool.{node}").mkdir()
            self.start("slurmd", "-D", "-N", node)
        wait_until(lambda: self.states() == ["idle", "idle"], 60, f"two idle nodes {self.logs()}")

    def start(self, *words):
        out = open(self.folder / f"{words[0]}.{len(self.daemons)}.out", "wb")
        with out:
            self.daemons.append(subprocess.Popen(words, env=self.env, stdout=out,
                                                 stderr=subprocess.STDOUT,
                                                 stdin=subprocess.DEVNULL))

    def states(self):
        done = subprocess.run(["sinfo", "-h", "-N", "-o", "%t"], env=self.env,
                              capture_output=True, text=True, check=False)
        return done.stdout.split()

    def logs(self):
        return "\n".join(f"--- {p.name}\n{p.read_text(errors='replace')[-2000:]}"
                         for p in sorted(self.folder.glob("*.log")) if p.is_file())

    def __exit__(self, *_):
        for daemon in reversed(self.daemons):
            daemon.terminate()
            try:
                daemon.wait(timeout=10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
