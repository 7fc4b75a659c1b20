"""A real Ray head on loopback with token authentication, and jobs that are submitted to it, for tests."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.patience import Patience, exit_code, run_to_end

ROOT = Path(__file__).resolve().parents[2]
RAY = Path(sys.executable).with_name("ray")
_START = 180.0  # seconds that a head may take to start, on a busy machine
_STARTS = 5  # Ray gives the parts of a node 15 s to answer, whatever it is told: on a busy machine it must be started again


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    code: int
    output: str


class Job:
    """A command on its way: `ray job submit`, which prints the job's log until the job ends.

    Attributes:
        name: what Ray calls it.
    """

    def __init__(self, head: RayHead, name: str, process: subprocess.Popen[str], output: Path) -> None:
        self.name = name
        self._head = head
        self._process = process
        self._output = output

    def wait(self, seconds: float = 400) -> Done:
        """The end of the job; should it never come, the job is stopped and the log shown."""
        try:
            code = exit_code(self._process, seconds)
        except subprocess.TimeoutExpired:
            self.stop()
            raise AssertionError(f"{self.name} did not end in {seconds} s:\n{self._output.read_text()}") from None
        return Done(code, self._output.read_text())

    def stop(self) -> None:
        """`ray job stop`."""
        self._head.ray("job", "stop", self.name, check=True)
        exit_code(self._process, 60)

    def give_up(self) -> None:
        """Ends the command, where the head is gone that it waits for."""
        self._process.kill()
        self._process.wait()

    @property
    def running(self) -> bool:
        """Whether the job has not ended yet."""
        return self._process.poll() is None


class RayHead:
    """A head that runs.

    Attributes:
        folder: where Ray keeps its session, logs among it.
        environment: of commands that talk to this head and to no other.
    """

    def __init__(self, folder: Path, gcs: int, dashboard: int, token: str) -> None:
        self.folder = folder
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
            "PATH": f"{RAY.parent}{os.pathsep}{os.environ['PATH']}",  # the job's `python` is the one of this environment
            "RAY_ADDRESS": f"127.0.0.1:{gcs}",
            "RAY_API_SERVER_ADDRESS": f"http://127.0.0.1:{dashboard}",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": token,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",  # otherwise a node that is told to end waits 30 s for its workers
            "RAY_worker_niceness": "0",  # otherwise 15: on a busy machine, tests would wait for everything else
        }

    def ray(self, *arguments: str, check: bool = False, **environment: str) -> Done:
        """Runs the `ray` command until it ends."""
        return self._run([str(RAY), *arguments], environment, check)

    def dpfed(self, *arguments: str, **environment: str) -> Done:
        """Runs the `dpfed` command, in a process that finds this head."""
        return self._run([sys.executable, "-m", "dpfed", *arguments], environment)

    def submit(self, *arguments: object, **environment: str) -> Job:
        """Submits `python -m dpfed pretrain --cluster ray` with the repository as its working directory.

        Args:
            arguments: of the command.
            environment: of `ray job submit`, on top of the head's.
        """
        name = f"job-{secrets.token_hex(4)}"
        command = [str(RAY), "job", "submit", "--submission-id", name, "--working-dir", str(ROOT), "--"]
        command += ["python", "-m", "dpfed", "pretrain", "--cluster", "ray", *map(str, arguments)]
        output = self.folder / f"{name}.txt"
        with output.open("w") as file:
            process = subprocess.Popen(
                command, stdout=file, stderr=subprocess.STDOUT, text=True, env={**self.environment, **environment}
            )
        return Job(self, name, process, output)

    def kill(self) -> None:
        """SIGKILL for the head and for all that runs on it: drivers, workers, what submits jobs."""
        token = f"RAY_AUTH_TOKEN={self.environment['RAY_AUTH_TOKEN']}".encode()
        while left := [pid for pid in _processes_with(token) if pid != os.getpid()]:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)

    def worker(self, rank: int) -> int:
        """Process of a rank of the workers that were started last."""
        return self._workers()[rank]

    def workers(self) -> int:
        """How many workers were started last."""
        return len(self._workers())

    def driver(self, folder: Path) -> int:
        """Process of the submitted command that trains a run."""
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                words = path.read_bytes().split(b"\0")
                if words[1:4] == [b"-m", b"dpfed", b"pretrain"] and os.fsencode(folder) in words:
                    return int(path.parent.name)
        raise AssertionError(f"no process trains {folder}")

    @contextlib.contextmanager
    def second_node(self, cpus: int) -> Iterator[subprocess.Popen[bytes]]:
        """Another node of the cluster, on this machine too; ends, and all on it, by SIGTERM to its own process."""
        command = [str(RAY), "start", "--block", f"--address={self.environment['RAY_ADDRESS']}", f"--num-cpus={cpus}"]
        command += ["--num-gpus=0", "--object-store-memory=100000000"]
        log, environment = self.folder / "node.txt", self.environment
        for _ in range(_STARTS):
            with log.open("w") as file:
                process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=environment, cwd=self.folder)
            while process.poll() is None and "Ray runtime started" not in log.read_text():
                time.sleep(0.2)
            if process.poll() is None:
                break
        try:
            yield process
        finally:
            process.terminate()
            exit_code(process, 60)

    def _workers(self) -> dict[int, int]:
        """Rank -> process, as Ray Train's controller logged them last."""
        logs = (self.folder / "session_latest" / "logs" / "train").glob("ray-train-app-controller-*.log")
        text = max(logs, key=lambda path: path.stat().st_mtime).read_text()
        last = text[text.rindex("Started training worker group") :]
        return {int(rank): int(pid) for pid, rank in re.findall(r"pid=(\d+)\) world_rank=(\d+)", last)}

    def logs(self) -> dict[Path, bytes]:
        """Everything that Ray, the jobs and the workers wrote, by file."""
        return {
            path: path.read_bytes()
            for path in self.folder.rglob("*")
            if path.is_file() and "runtime_resources" not in path.parts
        }

    def _run(self, command: list[str], environment: dict[str, str], check: bool = False) -> Done:
        done = run_to_end(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**self.environment, **environment},
            timeout=400,
            cwd=ROOT,
        )
        assert done.returncode == 0 or not check, done.stdout
        return Done(done.returncode, done.stdout)


def _processes_with(setting: bytes) -> list[int]:
    """Processes that run and have a setting in their environment."""
    processes = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if setting in (folder / "environ").read_bytes().split(b"\0"):
                processes.append(int(folder.name))
    return processes


@contextlib.contextmanager
def ray_head(cpus: int = 2, ready: bool = True) -> Iterator[RayHead]:
    """Starts a head on free ports, with a token that nobody else knows, and ends it by SIGTERM to its own process.

    Args:
        cpus: that it has.
        ready: whether to wait until jobs can be submitted.
    """
    folder = Path(tempfile.mkdtemp(prefix="rh-", dir="/tmp"))  # sockets lie in it, whose paths must be short
    gcs, dashboard, *rest = free_ports(7)
    head = RayHead(folder, gcs, dashboard, secrets.token_hex(32))
    names = ["ray-client-server", "dashboard-agent-listen", "dashboard-agent-grpc", "runtime-env-agent", "metrics-export"]
    command = [str(RAY), "start", "--head", "--block", f"--num-cpus={cpus}", "--num-gpus=0", "--node-ip-address=127.0.0.1"]
    command += [f"--port={gcs}", f"--dashboard-port={dashboard}", f"--temp-dir={folder}", "--object-store-memory=100000000"]
    command += [f"--{name}-port={port}" for name, port in zip(names, rest, strict=True)]
    log = folder / "head.txt"
    without_address = {name: value for name, value in head.environment.items() if not name.endswith("ADDRESS")}

    def start() -> subprocess.Popen[bytes]:
        with log.open("w") as file:
            return subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=without_address, cwd=folder)

    process = start()
    try:
        for left in reversed(range(_STARTS) if ready else ()):
            if _answers(process, head, log):
                break
            assert left, f"the Ray head did not start:\n{log.read_text()}"
            process.kill()
            head.kill()  # it leaves parts behind
            process = start()
        yield head
    finally:
        process.send_signal(signal.SIGTERM)
        exit_code(process, 60)
        shutil.rmtree(folder, ignore_errors=True)


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _answers(process: subprocess.Popen[bytes], head: RayHead, log: Path) -> bool:
    """Waits until jobs can be submitted; whether they can. Jobs are listed before the node is up, even if it never comes."""
    request = urllib.request.Request(
        head.environment["RAY_API_SERVER_ADDRESS"] + "/api/jobs/",
        headers={"Authorization": f"Bearer {head.environment['RAY_AUTH_TOKEN']}"},
    )
    patience = Patience(_START)
    while not patience.ended and process.poll() is None:
        with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
            with urllib.request.urlopen(request, timeout=5) as answer:
                if answer.status == 200 and "Ray runtime started" in log.read_text():
                    return True
        time.sleep(0.3)
    return False
