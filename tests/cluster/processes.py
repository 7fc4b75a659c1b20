"""Processes of a cluster for tests, with the environment that torchrun gives them.

They are forked from a server that has imported torch, so they start at once. Each writes to an output of its own, and can be
killed.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from dpfed.cli import main
from tests import accounted, calibrated
from tests.patience import Patience
from tests.undrawn import undraw

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(
    ["dpfed.cluster.torchrun", "dpfed.console.terminal", "dpfed.runs.pretraining", "tests.undrawn", "tests.calibrated"]
    # What a run imports on its way, which would take each process seconds.
    + ["dp_accounting.pld", "dp_accounting.rdp", "pandas", "PIL.Image", "PIL.JpegImagePlugin", "pyarrow.pandas_compat"]
    + ["torch._dynamo", "torch.onnx", "scipy.signal", "rich._emoji_codes"]
)

_PATIENCE = 60.0  # seconds of a quiet machine; far below the hours after which torch.distributed gives up


class Processes:
    """`world` processes, each of which calls ``task(rank, *args)``. Use as a context: what still runs at the end is killed.

    Args:
        world: how many.
        folder: for their outputs; made if it is not there.
        task: importable from where the test is.
        args: the same in all of them.
    """

    def __init__(self, world: int, folder: Path, task: Callable[..., None], *args: object) -> None:
        folder.mkdir(exist_ok=True)
        self._outputs = [folder / f"{rank}.txt" for rank in range(world)]
        port = free_port()
        self.members = [
            _SERVER.Process(target=_enter, args=(rank, world, port, output, task, args), daemon=True)
            for rank, output in enumerate(self._outputs)
        ]
        for process in self.members:
            process.start()

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def wait(self, seconds: float = _PATIENCE) -> list[int]:
        """Exit codes of all; a process that has not ended after so many seconds of a quiet machine fails the test."""
        patience = Patience(seconds)
        for process in self.members:
            while process.is_alive() and not patience.ended:
                process.join(0.5)
        late = [rank for rank, process in enumerate(self.members) if process.is_alive()]
        self.kill()
        assert not late, f"processes {late} hung. {self.text}"
        return [process.exitcode for process in self.members]

    def kill(self) -> None:
        """SIGKILL for all that still run."""
        for process in self.members:
            process.kill()
        for process in self.members:
            process.join()

    def output(self, rank: int) -> str:
        """What a process printed, on stdout and stderr."""
        return self._outputs[rank].read_text()

    @property
    def text(self) -> str:
        """The output of all."""
        return "\n".join(f"[{rank}] {self.output(rank)}" for rank in range(len(self.members)))


def dpfed(*arguments: object) -> None:
    """Calls the command line; ends the process with its exit code."""
    sys.argv = ["dpfed", *map(str, arguments)]
    main()


def command(rank: int, *arguments: object) -> None:
    """The task that is a command line."""
    dpfed(*arguments)


def pretrain(source: Path, run: Path, *options: str) -> tuple[object, ...]:
    """The command line that begins a run in processes that torchrun could have started."""
    return ("pretrain", source, "--run", run, "--cluster", "torchrun", *options)


def come_and_wait(place: Path) -> None:
    """Tells `wait_for` that this process has come here, and stays until it is killed."""
    place.touch()
    time.sleep(3600)


def wait_for(place: Path, processes: Processes, seconds: float = _PATIENCE) -> None:
    """Returns when one of the processes has come to a place."""
    patience = Patience(seconds)
    while not place.exists():
        assert not patience.ended and all(p.is_alive() for p in processes.members), processes.text
        time.sleep(0.01)


def _enter(rank: int, world: int, port: int, output: Path, task: Callable[..., None], args: tuple) -> None:
    with open(output, "wb") as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
    torch.set_num_threads(1)
    os.environ |= as_torchrun(rank, world, port)
    accounted.keep()
    calibrated.keep()
    with pytest.MonkeyPatch.context() as patch:
        undraw(patch)
        task(rank, *args)


def as_torchrun(rank: int, world: int, port: int) -> dict[str, str]:
    """The environment of a process that torchrun started."""
    place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world), "GLOO_SOCKET_IFNAME": "lo"}
    return place | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
