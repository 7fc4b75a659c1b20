"""Whether a Ray cluster answers, seen before Ray is asked: Ray itself waits for minutes, and ends with a traceback.

Also here: whether a Ray cluster takes this machine's token: Ray tries a wrong one again and again, and does not say why it
fails.

Also here: trying again, in sight of the user, until something of Ray's is there: on a busy machine it takes minutes to start.

Also here: the machines of a Ray cluster: how many workers they have room for, now and while a run lasts.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from dpfed.errors import UserError
from dpfed.progress import Watcher, signs_of_life

WAIT = 300.0  # seconds until it is given up
_AGAIN = 2.0  # seconds between two attempts
_Result = TypeVar("_Result")


def patiently(
    attempt: Callable[[], _Result],
    what: str,
    watcher: Watcher,
    hopeless: Callable[[Exception], bool],
    remedy: str,
    wait: float = WAIT,
) -> _Result:
    """The result of the first attempt that succeeds.

    Args:
        attempt: is made again after any exception but a hopeless one.
        what: is attempted, such as ``connecting to Ray``.
        watcher: learns why it waits, and every half minute that it still does.
        hopeless: whether another attempt would end alike.
        remedy: what the user can do, in the sentence at the end.
        wait: seconds; an attempt that has begun is not cut short.

    Raises:
        UserError: with the last reason, when time is over or an attempt was hopeless.
    """
    started, told, spoke = time.monotonic(), "", 0.0
    while True:
        try:
            with signs_of_life(watcher.note, what):
                return attempt()
        except UserError:
            raise
        except Exception as error:
            reason, taken = last_line(error), time.monotonic() - started
            if hopeless(error):
                raise UserError(f"{what} failed: {reason}. {remedy}") from error
            if taken >= wait:
                raise UserError(f"{what} failed for {taken:.0f} seconds, the last time with: {reason}. {remedy}") from error
        if reason != told or taken - spoke >= _TOLD_AGAIN:
            watcher.note(f"{what}: not yet ({reason}); trying again for up to {wait - taken:.0f} seconds")
            told, spoke = reason, taken
        time.sleep(min(_AGAIN, wait))


def last_line(error: Exception) -> str:
    """What an error says: of a traceback that a server sent along, the end."""
    return (str(error).strip() or type(error).__name__).splitlines()[-1].strip().rstrip(".")


_LEFT_BEHIND = 20.0  # seconds for a cluster that this machine started last: it was up by then, so it answers, or is gone
_TOLD_AGAIN = 30.0  # seconds after which it learns once more that this waits
_EACH = 2.0  # seconds for one attempt
_RAYS = "ray://"


def require_cluster(watcher: Watcher, wait: float | None = None) -> None:
    """Waits for the cluster that RAY_ADDRESS names, or that this machine started last, to take connections.

    Nothing is asked of it where none is named: one is then started on this machine.

    Args:
        watcher: learns that it waits.
        wait: seconds; ``None``: as long as for any head that is starting, if it is named, and otherwise a few.

    Raises:
        UserError: if nothing answers, or the address is none.
    """
    address, source = cluster_address()
    if not address:
        return
    there = parsed(address)
    if wait is None:
        wait = WAIT if source == "RAY_ADDRESS" else _LEFT_BEHIND
    what = f"reaching the Ray cluster at {address!r} ({source})"
    remedy = "Start it (`ray start --head`), or set RAY_ADDRESS=local for one on this machine alone."
    patiently(lambda: socket.create_connection(there, timeout=_EACH).close(), what, watcher, lambda error: False, remedy, wait)


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


_ANSWER = 2.0  # seconds; a head that takes longer is starting, and Ray asks it again
_QUESTION = "/ray.rpc.NodeInfoGcsService/GetClusterId"  # what every member asks first; only whether it is let in matters here


def require_admission() -> None:
    """Refuses at once what Ray would try for minutes: a cluster that expects another token.

    Raises:
        UserError: if the cluster says that the token is missing or wrong.
    """
    address, source = cluster_address()
    if not address or "://" in address:  # Ray's client says it itself
        return
    try:
        import grpc
        from ray._private.authentication.grpc_authentication_client_interceptor import _get_authentication_metadata_tuple
    except ImportError:  # another version of Ray: it takes longer, and ends the same way
        return
    host, port = parsed(address)
    with grpc.insecure_channel(f"{f'[{host}]' if ':' in host else host}:{port}") as channel:
        try:
            channel.unary_unary(_QUESTION)(b"", timeout=_ANSWER, metadata=_get_authentication_metadata_tuple())
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.UNAUTHENTICATED:
                return
            raise UserError(
                f"the Ray cluster at {address!r} ({source}) does not take this machine's token: set RAY_AUTH_MODE=token, and "
                "RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH to the token of that cluster."
            ) from None


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
    """Within it, the operator learns when machines are missing without which a run cannot continue, and when they are back.

    Ray waits for them without a word, and without an end.

    Args:
        least: workers that the run needs.
        room: for how many there is room now.
        watcher: receives messages.
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
