"""Connection of this process to Ray, and its end together with all processes that were started for it.

Ray is called in another thread. In the main thread, Ray would handle SIGTERM itself, and a signal would have no effect while
Ray waits for its head.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from types import FrameType
from typing import TYPE_CHECKING, Any

from dpfed.cluster.calls import Call

if TYPE_CHECKING:
    from psutil import Process

_LONG = 30.0  # seconds for Ray to disconnect
_SECONDS = 1.0  # for processes that end by themselves once their raylet has ended


def begin_ray(**settings: Any) -> None:
    """Connects this process to Ray, or starts a cluster on this machine.

    Args:
        **settings: Keyword arguments of ``ray.init``.

    Raises:
        Exception: Any exception that ``ray.init`` raises. The cluster that it may have started is ended first.
        Interrupted: If SIGINT or SIGTERM arrives; likewise.
    """
    import psutil
    import ray

    before = psutil.Process().children()
    connecting = Call(lambda: ray.init(**settings))
    try:
        connecting.finish()
    except BaseException:
        connecting.interrupt(may_end=_may_end)
        if connecting.is_over:
            end_ray()
        # A head that starts is not yet known to `ray.shutdown`.
        _kill(process for process in psutil.Process().children(recursive=True) if process not in before)
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
    ending = Call(ray.shutdown)
    try:
        ending.wait(_LONG)
    finally:
        ending.wait(_LONG)
        _kill(psutil.wait_procs(started, _SECONDS)[1])


def _may_end(frame: FrameType) -> bool:
    """Returns whether ``ray.init`` may end here: in Ray's own code (most of the time, it waits there), before its head runs.

    Once the head runs, the connection must be complete before Ray can disconnect.
    """
    from ray._private import worker

    return worker._global_node is None and str(frame.f_globals.get("__name__")).startswith("ray.")


def _kill(processes: Iterable[Process]) -> None:
    import psutil

    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
