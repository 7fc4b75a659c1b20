"""The local socket of a site: its SuperNode's process asks, the site worker answers.

A SuperNode starts a fresh process for every message. That process is thin: it hands the packet through this socket to the
worker that holds records, model and ledger, and takes the answer back. File permissions say who may open the socket.
"""

from __future__ import annotations

import contextlib
import grp
import logging
import os
import select
import socket
import stat
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

from dpfed.errors import UserError
from dpfed.files.locking import file_lock
from dpfed.protocol.messages import MOST_VECTOR, Failure, Packet, PacketError, failed, receive_packet, send_packet

_LONGEST_PATH = 100  # bytes; operating systems allow 104 to 108
_LONGEST_READ = 10.0  # seconds that one read or write on a connection may take
_CONNECTIONS = 32  # at a time; one more, and the oldest that has not said what it asks for is hung up on
_TICK = 0.2  # seconds between looks at the stop event
_QUEUE = 0.02  # seconds between two attempts at a door where too many wait

_log = logging.getLogger(__name__)


def serve(
    path: Path,
    handle: Callable[[Packet], Packet],
    stop: threading.Event,
    group: str | None = None,
    most: int = MOST_VECTOR,
) -> None:
    """Answers packets, one after the other, until told to stop. The packet in hand is answered before this returns.

    Args:
        path: of the socket. Its directory is made if need be, and no other user may write there.
        handle: answers one packet. When it raises, the other side learns that it failed, and nothing else.
        stop: ends the service.
        group: whose members may ask, too; default: only this user.
        most: bytes that a question's vector may have.

    Raises:
        UserError: if the socket cannot be there, or another worker serves it.
    """
    path = Path(path)
    with _listening(path, group) as listener, _Visitors(handle, stop, most) as visitors:
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                connection, _ = listener.accept()
                visitors.receive(connection)


def ask(path: Path, packet: Packet, timeout: float) -> Packet:
    """Hands a packet to the worker behind a socket and waits for the answer.

    Args:
        path: of the socket.
        packet: the question.
        timeout: seconds to wait for the answer to begin.

    Raises:
        TimeoutError: if none came.
        PacketError: if the answer is not a packet.
        OSError: if nobody is there, or it went away.
    """
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(timeout)
        _connect(sock, path, timeout)
        send_packet(sock, packet)
        return receive_packet(sock)


def _connect(sock: socket.socket, path: Path, timeout: float) -> None:
    """Connects; where too many others stand at the door, waits with them instead of being sent away."""
    end = time.monotonic() + timeout
    while True:
        try:
            return sock.connect(os.fspath(path))
        except BlockingIOError:  # what a queue that is full says to a socket with a timeout
            if time.monotonic() > end:
                raise TimeoutError(f"too many others wait at {path}") from None
            time.sleep(_QUEUE)


class _Visitors:
    """Everybody who is connected, each in a thread of its own: whoever is silent or slow delays nobody else."""

    def __init__(self, handle: Callable[[Packet], Packet], stop: threading.Event, most: int) -> None:
        self._handle, self._stop, self._most = handle, stop, most
        self._turn = threading.Lock()
        self._reading: dict[socket.socket, None] = {}  # whose packet has not come yet, the oldest first
        self._threads: set[threading.Thread] = set()
        self._lock = threading.Lock()

    def __enter__(self) -> _Visitors:
        return self

    def __exit__(self, *_: object) -> None:
        for thread in list(self._threads):
            thread.join()

    def receive(self, sock: socket.socket) -> None:
        """Answers a new visitor, and hangs up on the oldest silent one if there are too many."""
        with self._lock:
            self._reading[sock] = None
            if len(self._threads) >= _CONNECTIONS:
                with contextlib.suppress(OSError):
                    next(iter(self._reading)).shutdown(socket.SHUT_RDWR)  # its thread notices, and ends
        thread = threading.Thread(target=self._answer, args=(sock,), daemon=True)
        self._threads.add(thread)
        thread.start()

    def _answer(self, sock: socket.socket) -> None:
        """One connection. Whatever the other side does ends here."""
        try:
            with sock, contextlib.suppress(OSError):
                sock.settimeout(_LONGEST_READ)
                try:
                    packet = receive_packet(sock, self._most)
                except PacketError:
                    send_packet(sock, failed(Failure.GARBLED))
                    return
                finally:
                    with self._lock:
                        self._reading.pop(sock, None)
                with self._turn:
                    if _gone(sock):  # an answer that nobody waits for might still cost budget
                        return
                    stopped = self._stop.is_set()
                    reply = failed(Failure.UNREACHABLE) if stopped else _handled(self._handle, packet)
                send_packet(sock, reply)
        finally:
            self._threads.discard(threading.current_thread())


def _handled(handle: Callable[[Packet], Packet], packet: Packet) -> Packet:
    try:
        return handle(packet)
    except Exception as error:
        # Where, but not the text: it may quote a record.
        place = traceback.extract_tb(error.__traceback__)[-1]
        _log.error("a message failed: %s in %s, line %s", type(error).__name__, place.filename, place.lineno)
        return failed(Failure.INTERNAL)


def _gone(sock: socket.socket) -> bool:
    """Whether the other side has hung up: it sends nothing after its packet, so what is readable is the end."""
    return bool(select.select([sock], [], [], 0)[0])


@contextlib.contextmanager
def _listening(path: Path, group: str | None) -> Iterator[socket.socket]:
    """A socket that only this user, and perhaps a group, can connect to."""
    if len(os.fsencode(path)) > _LONGEST_PATH:
        raise UserError(
            f"the socket's path {path} has more than {_LONGEST_PATH} bytes: choose a shorter one, such as /run/dpfed/site."
        )
    _directory(path.parent, group)
    with _only_one(path), socket.socket(socket.AF_UNIX) as listener:
        if path.exists() and not stat.S_ISSOCK(path.stat().st_mode):
            raise UserError(f"{path} is there and is not a socket: choose another path.")
        path.unlink(missing_ok=True)  # left behind by a worker that was killed
        listener.bind(os.fspath(path))
        try:
            _share(path, group, 0o600)  # before `listen`, so nobody gets in earlier
            listener.listen(_CONNECTIONS)
            listener.settimeout(_TICK)
            yield listener
        finally:
            path.unlink(missing_ok=True)


def _directory(folder: Path, group: str | None) -> None:
    if not folder.exists():
        folder.mkdir(parents=True, mode=0o700)
        _share(folder, group, 0o700)
    found = folder.stat()
    if not stat.S_ISDIR(found.st_mode):
        raise UserError(f"{folder} is not a directory: the socket needs one of its own.")
    if found.st_uid not in (os.geteuid(), 0):
        raise UserError(
            f"{folder} belongs to another user (number {found.st_uid}), who could put a socket of theirs there: choose a "
            "directory of your own."
        )
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UserError(f"other users may write to {folder}, and could put a socket of theirs there: choose another directory.")


def _share(path: Path, group: str | None, mode: int) -> None:
    """Sets the owner's permissions, and lets a group in: through a directory, or to read and write on a socket."""
    if group is not None:
        try:
            os.chown(path, -1, grp.getgrnam(group).gr_gid)
        except KeyError as error:
            raise UserError(f"there is no group {group!r} on this machine.") from error
        except PermissionError as error:
            raise UserError(f"only members of the group {group!r} can share a socket with it: join it first.") from error
        mode |= 0o010 if path.is_dir() else 0o060
    path.chmod(mode)


def _only_one(path: Path) -> contextlib.AbstractContextManager[None]:
    """A lock beside the socket."""
    taken = f"another site worker already answers at {path}: stop it, or choose another path."
    return file_lock(path.with_name(f"{path.name}.lock"), taken)
