"""A Ray cluster on machines that are apart, started by the commands of cluster/README.md."""

from __future__ import annotations

import re
import shutil
import subprocess

from tests.apart.machines import ROOT, Machine, Switch

GUIDE = (ROOT / "cluster" / "README.md").read_text()
_STARTS = 5  # a busy machine's node may not start, as the page says


def command(start: str) -> str:
    """The first command of the page that begins so, as one line."""
    lines = re.sub(r" \\\n *", " ", "\n".join(line.strip() for line in GUIDE.splitlines() if line.startswith("    ")))
    return next(line.partition("#")[0].strip() for line in lines.splitlines() if line.startswith(start))


def _option(start: str) -> str:
    """What the page says of an option, in the running text."""
    return re.search(rf"`({re.escape(start)}[^`]*)`", GUIDE)[1]


class Cluster:
    """A head, workers' machines, and a desk from which jobs are submitted.

    Args:
        switch: they are plugged into it.
        workers: machines.
    """

    def __init__(self, switch: Switch, workers: int = 2) -> None:
        self.switch = switch
        self.head, self.desk = switch.machine("head"), switch.machine("desk")
        self.workers = [switch.machine(f"gpu{number}") for number in range(workers)]
        self._export = command("export RAY_AUTH_MODE")
        self._do(self.head, command("ray get-auth-token"))
        for machine in (self.desk, *self.workers):
            shutil.copytree(self.head.home / ".ray", machine.home / ".ray")
        self.start()

    def start(self) -> None:
        """Starts Ray on the head, and then on the workers' machines."""
        self.start_node(self.head, "ray start --head", _option("--dashboard-host"))
        for machine in self.workers:
            self.start_node(machine)

    def start_node(self, machine: Machine, how: str = "ray start --address", more: str = "") -> None:
        """Starts Ray on one machine; again, where it was too slow, as the page says."""
        for _ in range(_STARTS):
            done = self._do(machine, f"{command(how)} {more}", check=False)
            if done.returncode == 0:
                return
            self._do(machine, "ray stop --force", check=False)
        raise AssertionError(done.stdout)

    def submit(self, machine: Machine, log: str, changes: dict[str, str], more: str) -> subprocess.Popen[bytes]:
        """Submits a run by the page's command, some words of which are others here; its output goes to a log."""
        line = command("ray job submit")
        for word, other in changes.items():
            assert word in line, line
            line = line.replace(word, other)
        line = self._here(line.replace(" -- ", f" {_option('--address http')} -- "))
        return machine.start(log, "bash", "-ec", f"{self._export}; exec {line} {more}")

    def _do(self, machine: Machine, line: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return machine.run("bash", "-ec", f"{self._export}; {self._here(line)}", check=check)

    def _here(self, line: str) -> str:
        return line.replace("HEAD", self.head.address)
