"""Machines that are apart, on one computer: namespaces with addresses of their own, on a switch from which they can be cut off.

A machine has its own network, processes, host name, clock, `/tmp/ray` and `/dev/shm`, and shares all other files, as machines
with common storage do. Nothing leads out of the switch. Linux and root only; all of it ends with the process that made it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.patience import Patience, run_to_end

ROOT = Path(__file__).resolve().parents[2]
_NET = "10.77.0"
# The first process: ends with the one that started it (PR_SET_PDEATHSIG), and has orphans reaped.
_INIT = """
import ctypes, signal
ctypes.CDLL(None).prctl(1, 9)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
while True: signal.pause()
"""
_APART = ["unshare", "--mount", "--net", "--pid", "--uts", "--ipc", "--fork", "--mount-proc"]
_CLOCK = Path(__file__).with_name("clock.c")


class Machine:
    """One machine, which runs.

    Args:
        name: of the host. As on Debian, its own name stands for 127.0.1.1 in its `/etc/hosts`.
        address: its own.
        folder: for its home, its logs, and what only it sees.

    Attributes:
        environment: of all that is started on it.
        clock: seconds by which what is started from now on sees another time of day (`clock.c`).
    """

    def __init__(self, name: str, address: str, folder: Path) -> None:
        self.name = name
        self.address = address
        self.clock = 0
        self._folder = folder / name
        for part in ("home", "ray"):
            (self._folder / part).mkdir(parents=True, exist_ok=True)
        (self._folder / "hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 {name}\n")
        (self._folder / "resolv.conf").write_text("# nobody is asked for a name\n")
        inherited = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("RAY_", "FLWR_")) and "proxy" not in key.lower()
        }
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        more = {"HOME": str(self._folder / "home"), "PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        self.environment = {**inherited, **more, "PYTHONUNBUFFERED": "1"}
        self._init: subprocess.Popen[bytes] | None = None

    def boot(self, switch: Switch) -> None:
        """Starts it, with nothing on it, and plugs it in."""
        command = ["setpriv", "--pdeathsig", "KILL", *_APART]
        self._init = subprocess.Popen([*command, sys.executable, "-S", "-c", _INIT], stderr=subprocess.DEVNULL)
        children = Path(f"/proc/{self._init.pid}/task/{self._init.pid}/children")
        self._pid = until(lambda: children.read_text().split() or None, "a namespace")[0]
        until(lambda: b"signal.pause" in Path(f"/proc/{self._pid}/cmdline").read_bytes() or None, "a namespace")
        home = self._folder
        shutil.rmtree(home / "ray")
        (home / "ray").mkdir()
        Path("/tmp/ray").mkdir(exist_ok=True)
        switch.plug(self)
        self.run(
            "sh",
            "-ec",
            f"hostname {self.name}; ip link set lo up; {self._addressed()};"
            f"mount --bind {home}/ray /tmp/ray; mount -t tmpfs tmpfs /dev/shm;"
            f"for name in hosts resolv.conf; do mount --bind {home}/$name /etc/$name; done",
        )

    def move(self, address: str) -> None:
        """Gives it another address, in the place of its own."""
        self.address = address
        self.run("sh", "-ec", f"ip addr flush dev eth0; {self._addressed()}")

    def _addressed(self) -> str:
        # The way out leads to nobody: Ray and others look which address they would take to it, and send nothing.
        return f"ip addr add {self.address}/24 dev eth0; ip link set eth0 up; ip route add default via {_NET}.253"

    def kill(self) -> None:
        """Power off: whatever runs on it is gone at once."""
        if self._init is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(self._pid), signal.SIGKILL)
            self._init.wait()
        self._init = None

    @property
    def home(self) -> Path:
        """The home of its user."""
        return self._folder / "home"

    @property
    def pid(self) -> str:
        """Its first process, as seen from outside."""
        return self._pid

    def start(self, log: str, *command: object, **environment: str) -> subprocess.Popen[bytes]:
        """Starts a program there; its output goes to a log of that name."""
        with self.log(log).open("ab") as file:
            return subprocess.Popen(
                self._there(*command),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=self._settings(environment),
                cwd=self.home,
                start_new_session=True,
            )

    def run(
        self, *command: object, check: bool = True, seconds: float = 400, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Runs a program there to its end."""
        done = run_to_end(
            self._there(*command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
            env=self._settings(environment),
            cwd=self.home,
        )
        assert done.returncode == 0 or not check, f"{self.name}: {command}\n{done.stdout}"
        return done

    def log(self, name: str) -> Path:
        """Where a program writes that was started."""
        return self._folder / f"{name}.log"

    def text(self, name: str) -> str:
        """What it wrote."""
        return self.log(name).read_text(errors="replace") if self.log(name).exists() else ""

    def sent(self) -> int:
        """Bytes that it has sent."""
        devices = Path(f"/proc/{self._pid}/net/dev").read_text()
        return int(devices[devices.index("eth0:") :].split()[9])

    def _there(self, *command: object) -> list[str]:
        return ["nsenter", "-t", self._pid, "-m", "-n", "-p", "-u", "-i", "--wd=.", "--", *map(str, command)]

    def _settings(self, more: dict[str, str]) -> dict[str, str]:
        if not self.clock:
            return {**self.environment, **more}
        library = self._folder / "clock.so"
        if not library.exists():
            run_to_end(["gcc", "-shared", "-fPIC", "-o", library, _CLOCK], check=True, timeout=60)
        return {**self.environment, "LD_PRELOAD": str(library), "CLOCK_AWAY": str(self.clock), **more}


class Switch:
    """What the machines are plugged into.

    Args:
        folder: for what the machines keep.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.machines: dict[str, Machine] = {}
        self._box = Machine("switch", f"{_NET}.254", folder)
        self._ports: dict[str, str] = {}
        self._plugged = 0
        self._box.boot(self)
        self._box.run("ip", "link", "set", "eth0", "up")

    def machine(self, name: str) -> Machine:
        """A new machine, which runs."""
        number = len(self.machines) + 1
        machine = self.machines[name] = Machine(name, f"{_NET}.{number}", self._folder)
        machine.boot(self)
        return machine

    def plug(self, machine: Machine) -> None:
        """Connects a machine that has been started; the switch itself is a bridge with nothing behind it."""
        if machine is self._box:
            machine.run("ip", "link", "add", "eth0", "type", "bridge")
            return
        self._plugged += 1  # the port of a machine that was killed may be there for a moment
        port = self._ports[machine.name] = f"port{self._plugged}"
        there = f"ip link add {port} type veth peer name eth0 netns {machine.pid}; ip link set {port} master eth0 up"
        # In the switch's network, and among the processes of all machines.
        run_to_end(["nsenter", "-t", self._box.pid, "-n", "--", "sh", "-ec", there], check=True, timeout=10)

    def slow(self, machine: Machine, rate: str) -> None:
        """Lets a machine send and receive no faster than that, such as ``2mbit``."""
        shape = f"root tbf rate {rate} burst 64kb latency 2s"
        self._box.run("tc", *f"qdisc replace dev {self._ports[machine.name]} {shape}".split())
        machine.run("tc", *f"qdisc replace dev eth0 {shape}".split())

    def cut(self, machine: Machine) -> None:
        """Loses all that goes to a machine and comes from it, without a word to either side."""
        self._box.run("ip", "link", "set", self._ports[machine.name], "nomaster")

    def mend(self, machine: Machine) -> None:
        """Carries it again."""
        self._box.run("ip", "link", "set", self._ports[machine.name], "master", "eth0")

    def close(self) -> None:
        """Ends everything."""
        for machine in (*self.machines.values(), self._box):
            machine.kill()


@contextlib.contextmanager
def switch(folder: Path) -> Iterator[Switch]:
    """A switch with machines, until the block ends."""
    made = Switch(folder)
    try:
        yield made
    finally:
        made.close()


def impossible() -> str:
    """Why there can be no machines here; empty: there can."""
    if missing := [name for name in ("unshare", "nsenter", "setpriv", "ip", "tc") if not shutil.which(name)]:
        return f"{', '.join(missing)} not installed"
    done = subprocess.run([*_APART, "true"], capture_output=True, text=True)
    return f"namespaces are not allowed here: {done.stderr.strip()}" if done.returncode else ""


def no_other_clock() -> str:
    """Why a machine cannot have another time of day; empty: it can. A time namespace moves only the clocks since boot."""
    return "" if shutil.which("gcc") else "gcc is not installed"


def until(look, what: str, seconds: float = 10.0):
    patience = Patience(seconds)
    while (result := look()) is None:
        assert not patience.ended, f"no {what} in {seconds:g} s"
        time.sleep(0.02)
    return result
