"""Does work in separate processes. They have no memory in common with this process, and end when it ends, in whatever way.

The processes are started as programs of their own, so that this process's main module is not run again. After their work, they
wait for further work.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any, cast

from dpfed.errors import Notice, UserError

_LOOKED_EVERY = 0.2  # seconds between two checks whether the parent is alive
_PROGRAM = "from dpfed.data.processes import serve; serve({0}, {1})"


def cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def loader_processes(workers: int, work: object) -> int:
    """Returns `workers`; warns and returns 0 if the work of a torch loader cannot be sent to other processes.

    On macOS and Windows, and with Python 3.14, a new process gets a pickled copy of its work. A lambda, or a function inside
    another function, cannot be pickled.

    Args:
        workers: Number of processes that were requested.
        work: Objects that each process needs.
    """
    if workers == 0 or multiprocessing.get_start_method() == "fork":
        return workers
    try:
        pickle.dumps(work)
    except Exception as error:
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        warnings.warn(
            "this process reads the records and makes the views by itself, which takes longer: the work cannot be sent to "
            f"other processes ({said}). Define functions at the top of a module, not as lambdas.",
            Notice,
            stacklevel=3,
        )
        return 0
    return workers


class Processes:
    """A pool of processes that apply a function to items. As a context manager, it ends them at the end of the ``with`` block.

    Args:
        workers: Largest number of processes.
    """

    def __init__(self, workers: int = 1) -> None:
        self._workers = workers
        self._all: dict[Connection, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *error: object) -> None:
        self._end()

    def each(self, work: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
        """Applies a function to each item, in the processes.

        If `workers` is 1, or there is only one item, this process does the work itself.

        Args:
            work: Function at the top of a module.
            items: Items that can be pickled.

        Yields:
            The result for each item, as soon as it is done, in any order.

        Raises:
            UserError: If a process dies. An error of `work` is raised as it is. In both cases, all processes are ended first.
        """
        count = min(self._workers, len(items))
        if count <= 1:
            yield from map(work, items)
            return
        waiting, busy = iter(items), set[Connection]()
        try:
            for here in self._started(count):
                here.send((work, next(waiting)))
                busy.add(here)
            while busy:
                for ready in wait(list(busy)):
                    here = cast(Connection, ready)
                    try:
                        is_done, result = here.recv()
                    except (EOFError, ConnectionError):
                        raise _died(self._all[here]) from None
                    if not is_done:
                        raise result
                    busy.remove(here)
                    if (item := next(waiting, None)) is not None:
                        busy.add(here)
                        here.send((work, item))
                    yield result
        finally:
            if busy:
                self._end()

    def _started(self, count: int) -> list[Connection]:
        """Returns the connections to `count` processes, and starts new processes if there are too few."""
        paths = os.pathsep.join(path for path in sys.path if path)
        while len(self._all) < count:
            here, there = Pipe()
            self._all[here] = subprocess.Popen(
                [sys.executable, "-P", "-c", _PROGRAM.format(there.fileno(), os.getpid())],
                pass_fds=[there.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # an interruption from the keyboard is for this process, which ends the others
                env=os.environ | {"PYTHONPATH": paths},
            )
            there.close()
        return list(self._all)[:count]

    def _end(self) -> None:
        for here, process in self._all.items():
            process.kill()
            process.wait()
            here.close()
        self._all.clear()


def _died(process: subprocess.Popen[bytes]) -> UserError:
    code = process.wait()
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    return UserError(f"a process that decodes images {how}, perhaps for lack of memory. Run the command again. [data-process]")


def serve(descriptor: int, parent: int) -> None:
    """Answers requests in a worker process until the parent closes its end of the connection.

    Args:
        descriptor: File descriptor of the worker's end of the connection.
        parent: Id of the parent process; the worker ends when the parent does.
    """
    there = Connection(descriptor)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    while True:
        try:
            work, item = there.recv()
        except EOFError:
            return
        try:
            answer = True, work(item)
        except Exception as error:
            answer = False, error
        there.send(answer)


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOKED_EVERY)
    os._exit(1)
