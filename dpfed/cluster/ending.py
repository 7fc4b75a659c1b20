"""End of Ray in this process, with all processes of a cluster that this process started."""

from __future__ import annotations

import contextlib

_SECONDS = 1.0  # for processes that end by themselves once their raylet has ended


def end_ray() -> None:
    """Disconnects this process from Ray, and ends the cluster if this process started it.

    Ray kills a raylet that does not end within a second. Agents of a killed raylet that are still being loaded at this time
    live on for ten seconds and longer. This function ends them.
    """
    import psutil
    import ray

    started = []
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process().children():
            if child.name() == "raylet":
                started += child.children(recursive=True)
    ray.shutdown()
    for process in psutil.wait_procs(started, _SECONDS)[1]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
