"""The machines of a Ray cluster: how many workers they have room for, now and while a run is at work."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from dpfed.progress import Watcher

_EVERY = 5.0  # seconds between looks; Ray takes about half a minute until it knows that a machine is gone


def machines() -> list[dict[str, float]]:
    """What each machine of the cluster has."""
    import ray

    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def room_for(cpus: int, gpus: int, there: list[dict[str, float]]) -> int:
    """For how many workers there is room.

    Args:
        cpus: of each worker.
        gpus: of each worker; 0 or 1.
        there: what each machine has.
    """
    room = [(int(machine.get("CPU", 0)) // cpus, int(machine.get("GPU", 0))) for machine in there]
    return sum(min(pair) if gpus else pair[0] for pair in room)


@contextlib.contextmanager
def watched(least: int, room: Callable[[], int], watcher: Watcher, every: float = _EVERY) -> Iterator[None]:
    """Within it, the operator is told when machines are missing without which a run cannot go on, and when they are back.

    Ray waits for them without a word, and without an end.

    Args:
        least: workers that the run needs.
        room: for how many there is room now.
        watcher: is told.
        every: seconds between two looks.
    """
    ended = threading.Event()

    def look() -> None:
        missing = False
        while not ended.wait(every):
            with contextlib.suppress(Exception):  # of Ray's, where the head is gone: the run ends, and says so
                now = room()
                if (now < least) != missing:
                    missing = not missing
                    waits = f"the cluster has room for {now} of {least} workers, and the run waits for the others"
                    watcher.note(f"machines are missing: {waits}" if missing else "the machines that were missing are back")

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(timeout=10)
