"""Work that is handed out to processes: to new ones that share nothing, and that end when this one ends, however it ends."""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, cast

from dpfed.errors import UserError

Tell = Callable[[int], None]  # called with how much is done

MOST_WORKERS = 512
_TOLD_EVERY = 0.2  # seconds between two messages about how far a process is


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def each(
    work: Callable[[Any, Tell], Any], items: Sequence[Any], workers: int, told: Callable[[int, int], None] | None = None
) -> Iterator[tuple[int, Any]]:
    """Does the same work with each of some items.

    Args:
        work: a function of a module; called with an item and a function to tell how far it is.
        items: what can be pickled.
        workers: processes at most; one of them, or a single item, is worked on in this process.
        told: called with the number of an item and how much of it is done.

    Yields:
        The number of an item and what came out of it, as soon as it is done, in any order.

    Raises:
        UserError: if a process dies; and whatever the work raises. All processes have ended then.
    """
    told = told or (lambda number, done: None)
    if min(workers, len(items)) <= 1:
        for number, item in enumerate(items):
            yield number, work(item, functools.partial(told, number))
        return
    context, waiting = multiprocessing.get_context("spawn"), iter(enumerate(items))
    busy: dict[Connection, tuple[SpawnProcess, int]] = {}
    try:
        for number, item in [next(waiting) for _ in range(min(workers, len(items)))]:
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(work, there), daemon=True)
            process.start()
            there.close()
            busy[here] = process, number
            here.send(item)
        while busy:
            for ready in wait(list(busy)):
                here = cast(Connection, ready)
                process, number = busy[here]
                try:
                    kind, found = here.recv()
                except (EOFError, ConnectionError):
                    raise _died(process) from None
                if kind == "far":
                    told(number, found)
                    continue
                if kind == "failed":
                    raise found
                yield number, found
                if (following := next(waiting, None)) is None:
                    del busy[here]
                    here.close()
                else:
                    busy[here] = process, following[0]
                    here.send(following[1])
    finally:
        for here, (process, _) in busy.items():
            process.kill()
            process.join()
            here.close()


def _died(process: SpawnProcess) -> UserError:
    process.join()
    code = process.exitcode or 0
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
    return UserError(
        f"a process of the import {how}, perhaps for want of memory. Start the same import again: it goes on where it stopped, "
        "and with fewer workers it needs less memory.",
        command="--workers says how many.",
    )


def _serve(work: Callable[[Any, Tell], Any], there: Connection) -> None:
    """Works on what comes, until the other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent was interrupted as well, and ends this process
    threading.Thread(target=_end_with_parent, daemon=True).start()
    last = 0.0

    def tell(done: int) -> None:
        nonlocal last
        if (now := time.monotonic()) - last >= _TOLD_EVERY:
            last = now
            there.send(("far", done))

    while True:
        try:
            item = there.recv()
        except EOFError:
            return
        try:
            answer = "done", work(item, tell)
        except Exception as error:
            answer = "failed", error
        there.send(answer)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)
