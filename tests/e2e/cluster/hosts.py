"""Hosts made of network name spaces, for tests: each has a name, an address and a cable of its own.

A bridge in a name space of its own joins the cables, so that nothing of this machine's network is
touched. Needs root and `ip` (iproute2).
"""

import os
import shutil
import signal
import subprocess
import time


def missing():
    """Why hosts cannot be made here; empty if they can."""
    if os.geteuid() != 0:
        return "not root"
    for tool in ("ip", "unshare", "nsenter"):
        if shutil.which(tool) is None:
            return f"no {tool}"
    made = subprocess.run(["unshare", "--net", "--uts", "true"], capture_output=True, check=False)
    return "" if made.returncode == 0 else "no name spaces here"


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


class Hosts:
    """`count` hosts 10.77.0.1, 10.77.0.2, … named "host-1", … As a context manager."""

    def __init__(self, count):
        self.tag = f"sga{os.getpid()}"
        self.names = [f"host-{i + 1}" for i in range(count)]
        self.running = []

    def __enter__(self):
        try:
            self.plug()
        except BaseException:
            self.__exit__()
            raise
        return self

    def plug(self):
        switch = f"{self.tag}-switch"
        ip("netns", "add", switch)
        ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        ip("-n", switch, "link", "set", "bridge", "up")
        for i in range(len(self.names)):
            space = self.space(i)
            ip("netns", "add", space)
            ip("-n", space, "link", "set", "lo", "up")
            ip("-n", space, "link", "add", "cable", "type", "veth", "peer", "name", f"port{i}",
               "netns", switch)
            ip("-n", space, "address", "add", f"{self.address(i)}/24", "dev", "cable")
            ip("-n", space, "link", "set", "cable", "up")
            ip("-n", switch, "link", "set", f"port{i}", "master", "bridge", "up")

    def __exit__(self, *_):
        for process in self.running:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True,
                                check=False).stdout
        for line in listed.splitlines():
            if line.startswith(self.tag):
                subprocess.run(["ip", "netns", "delete", line.split()[0]], check=False)

    def space(self, i):
        return f"{self.tag}-{i}"

    @staticmethod
    def address(i):
        return f"10.77.0.{i + 1}"

    def start(self, i, words, out):
        """Starts a program on host i, in a session of its own; its output goes to the file out."""
        script = f'hostname {self.names[i]} && exec "$@"'
        with open(out, "wb") as file:
            process = subprocess.Popen(
                ["ip", "netns", "exec", self.space(i), "unshare", "--uts", "sh", "-c", script,
                 "sh", *words],
                stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                start_new_session=True)
        self.running.append(process)
        return process

    def pull(self, i):
        """Pulls the cable of host i."""
        ip("-n", self.space(i), "link", "set", "cable", "down")

    def plug_in(self, i):
        """Plugs it in again."""
        ip("-n", self.space(i), "link", "set", "cable", "up")


def processes_with(word):
    """Process ids whose command line has this word in it, zombies left out."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                if word.encode() in file.read():
                    found.append(int(name))
        except OSError:
            continue
    return found


def wait_until(condition, seconds, what):
    """Ends the test with `what` (a text, or a function that gives one then) if time runs out."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"not within {seconds} s: {what() if callable(what) else what}")
        time.sleep(0.02)  # asks again; nothing relies on its length
