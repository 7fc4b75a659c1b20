"""Whether a Ray cluster answers, seen before Ray is asked: Ray itself waits for minutes, and ends with a traceback."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

from dpfed.cluster.waiting import WAIT
from dpfed.errors import UserError
from dpfed.progress import Watcher

_LEFT_BEHIND = 20.0  # seconds for a cluster that this machine started last: it was up by then, so it answers, or is gone
_TOLD_AGAIN = 30.0  # seconds after which it is told once more that this waits
_EACH = 2.0  # seconds for one attempt
_RAYS = "ray://"


def require_cluster(watcher: Watcher, wait: float | None = None) -> None:
    """Waits for the cluster that RAY_ADDRESS names, or that this machine started last, to take connections.

    Nothing is asked of it where none is named: one is then started on this machine.

    Args:
        watcher: is told that it waits.
        wait: seconds; ``None``: as long as for any head that is starting, if it is named, and otherwise a few.

    Raises:
        UserError: if nothing answers, or the address is none.
    """
    address, source = cluster_address()
    if not address:
        return
    host, port = parsed(address)
    if wait is None:
        wait = WAIT if source == "RAY_ADDRESS" else _LEFT_BEHIND
    remedy = "start it (`ray start --head`), or set RAY_ADDRESS=local for one on this machine alone"
    deadline, tell = time.monotonic() + wait, time.monotonic()
    while True:
        try:
            socket.create_connection((host, port), timeout=max(0.1, min(_EACH, wait))).close()
            return
        except OSError as error:  # an unknown name as well
            if time.monotonic() >= deadline:
                raise UserError(
                    f"no Ray cluster answers at {address!r} ({source}) within {wait:g} seconds "
                    f"({error.strerror or error}): {remedy}."
                ) from None
        if time.monotonic() >= tell:
            left = deadline - time.monotonic()
            watcher.note(f"waiting up to {max(left, 0):.0f} seconds for the Ray cluster at {address}")
            tell += _TOLD_AGAIN
        time.sleep(min(0.5, wait))


def cluster_address() -> tuple[str, str]:
    """The cluster that Ray will connect to, "" for none that is there before, and which variable or file names it."""
    given = os.environ.get("RAY_ADDRESS", "")
    address, source = (given, "RAY_ADDRESS") if given not in ("", "auto") else (_last_started(), "ray_current_cluster")
    if address == "local" or ("://" in address and not address.startswith(_RAYS)):
        address = ""
    return address, source


def _last_started() -> str:
    """The address that `ray start` left on this machine; `ray stop` takes it away, and a crash does not."""
    try:
        return (ray_folder() / "ray_current_cluster").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def ray_folder() -> Path:
    """Where Ray keeps its sessions and logs on this machine."""
    return Path(os.environ.get("RAY_TMPDIR", os.environ.get("TMPDIR", "/tmp")), "ray")  # noqa: S108 where Ray looks


def parsed(address: str) -> tuple[str, int]:
    """Host and port of an address.

    Raises:
        UserError: if it has none.
    """
    host, colon, port = address.removeprefix(_RAYS).rpartition(":")
    if not (colon and host.strip("[]") and port.isascii() and port.isdecimal() and len(port) <= 5 and 0 < int(port) < 65536):
        raise UserError(
            f"RAY_ADDRESS = {address!r}: expected host and port of a Ray cluster, such as 10.0.0.5:6379, or 'local' or 'auto'."
        )
    return host.strip("[]"), int(port)
