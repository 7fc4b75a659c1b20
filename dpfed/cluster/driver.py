"""Connection of this process to Ray, and its end together with all processes that were started for it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from dpfed.console.interruption import wait_for

if TYPE_CHECKING:
    from psutil import Process

_SOON = 5.0  # seconds for Ray to connect after a signal, so that it can then disconnect in good order
_LONG = 30.0  # seconds for Ray to disconnect
_SECONDS = 1.0  # for processes that end by themselves once their raylet has ended


def begin_ray(**settings: Any) -> None:
    """Calls ``ray.init`` in another thread, and waits for it.

    In the main thread, Ray would handle SIGTERM itself, and a signal would have no effect while Ray waits for its head.

    Args:
        **settings: Keyword arguments of ``ray.init``.

    Raises:
        Exception: Any exception that ``ray.init`` raises. The cluster that it may have started is ended first.
        Interrupted: If SIGINT or SIGTERM arrives; likewise.
    """
    import psutil
    import ray

    before, outcome = psutil.Process().children(), Future[None]()

    def connect() -> None:
        try:
            ray.init(**settings)
            outcome.set_result(None)
        except BaseException as error:
            outcome.set_exception(error)

    connecting = threading.Thread(target=connect, daemon=True)
    connecting.start()
    try:
        wait_for(connecting)
        outcome.result()
    except BaseException:
        wait_for(connecting, _SOON)
        if connecting.is_alive():  # `ray.shutdown` would wait for Ray's head, too
            _kill(process for process in psutil.Process().children(recursive=True) if process not in before)
        else:
            end_ray()
        raise


def end_ray() -> None:
    """Disconnects this process from Ray, and ends the cluster if this process started it.

    Ray kills a raylet that does not end within a second. Agents of a killed raylet that are still being loaded at this time
    live on for ten seconds and longer. This function ends them.
    """
    import psutil
    import ray

    started: list[Process] = []
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process().children():
            if child.name() == "raylet":
                started += child.children(recursive=True)
    ending = threading.Thread(target=ray.shutdown, daemon=True)
    ending.start()
    try:
        wait_for(ending, _LONG)
    finally:
        wait_for(ending, _LONG)
        _kill(psutil.wait_procs(started, _SECONDS)[1])


def _kill(processes: Iterable[Process]) -> None:
    import psutil

    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
