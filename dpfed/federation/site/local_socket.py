"""The local socket of a site: the process of the SuperNode's app sends requests, and the site worker answers them.

By default, a SuperNode starts a new process for every message. That process only passes the packet through this socket to
the worker, and takes the answer back. The worker holds records, model and ledger. File permissions determine who may open the
socket.
"""

from __future__ import annotations

import contextlib
import grp
import logging
import math
import os
import socket
import stat
import struct
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

from dpfed.errors import UserError
from dpfed.files.locking import file_lock
from dpfed.protocol.messages import LONGEST_HEADER, MOST_VECTOR, Failure, Packet, PacketError, failed

_LONGEST_PATH = 100  # bytes; operating systems allow 104 to 108
_LONGEST_READ = 10.0  # seconds that one read or write on a connection may take
_CONNECTIONS = 32  # connections at a time; before a further one, the oldest that does not wait for an answer is closed
_LONGEST_SIGNATURE = 4 << 10  # bytes
_TICK = 0.2  # seconds between looks at the stop event

_log = logging.getLogger(__name__)


def serve(
    path: Path,
    handle: Callable[[Packet], Packet],
    stop: threading.Event,
    group: str | None = None,
    most: int = MOST_VECTOR,
    between: Callable[[], None] = lambda: None,
) -> None:
    """Answers packets until `stop` is set; a packet that is being answered at that moment still gets its answer.

    Each connection is read and written in its own thread, so a slow client delays no other; only `handle` is called for one
    packet at a time. Whenever there are more than 32 connections, the oldest one is closed. Connections whose packet waits for
    its answer, or whose answer has been on its way for less than 10 seconds, are not closed.

    Args:
        path: Path of the socket. Its directory is made if need be, and no other user may write there.
        handle: Function that answers one packet. If the function raises an error, the client learns only that it did.
        stop: Event that ends the service.
        group: Name of the group whose members may connect, too; default: only this user.
        most: Largest size of a request's vector, in bytes; default: 8 GiB.
        between: Function that is called several times a second, also while packets are being answered; default: does nothing.

    Raises:
        UserError: If the path of the socket or its directory is unsuitable, if another worker already answers at the path, or
            if the group cannot be given access.
        OSError: If the system cannot make the socket.
    """
    turn = threading.Lock()
    spared: dict[threading.Thread, float] = {}  # threads whose packet has come: time until which they may answer

    def answer(connection: Connection) -> None:
        this_thread = threading.current_thread()
        with contextlib.suppress(OSError), connection:
            try:
                packet = receive_packet(connection, most)
            except PacketError:
                return send_packet(connection, failed(Failure.GARBLED))
            spared[this_thread] = math.inf
            try:
                if connection.poll(0) and not stop.is_set():  # the connection ended, and its packet could still be read
                    return
                with turn:
                    if stop.is_set():
                        reply = failed(Failure.UNREACHABLE)
                    elif connection.poll(0):  # the client hung up: an answer that nobody waits for might still cost budget
                        return
                    else:
                        reply = _handled(handle, packet)
                spared[this_thread] = time.monotonic() + _LONGEST_READ
                send_packet(connection, reply)
            finally:
                del spared[this_thread]

    visitors: dict[threading.Thread, socket.socket] = {}  # in the order of their arrival
    with _listening(Path(path), group) as listener:
        while not stop.is_set():
            between()
            for thread in [thread for thread in visitors if not thread.is_alive()]:
                visitors.pop(thread).close()
            try:
                sock, _ = listener.accept()
                connection = _connection(sock.dup(), _LONGEST_READ)  # `sock` can shut it down
            except TimeoutError:
                continue
            except OSError as error:  # such as too many open files
                _log.error("no connection can be accepted now: %s", error.strerror)
                stop.wait(_TICK)
                continue
            newest = threading.Thread(target=answer, args=(connection,), daemon=True)
            visitors[newest] = sock
            if len(visitors) > _CONNECTIONS:
                now = time.monotonic()
                _close(visitors.pop(next(thread for thread in visitors if spared.get(thread, 0.0) < now)))
            newest.start()
        _see_off(visitors, turn)


def _see_off(visitors: dict[threading.Thread, socket.socket], turn: threading.Lock) -> None:
    """Ends all connections once the packet that is being answered has its answer."""
    for sock in visitors.values():
        with contextlib.suppress(OSError):  # the client has gone
            sock.shutdown(socket.SHUT_RD)  # no packet comes any more; answers still go out
    with turn:
        until = time.monotonic() + _LONGEST_READ
    for thread, sock in visitors.items():
        thread.join(max(0.0, until - time.monotonic()))
        _close(sock)


def _close(sock: socket.socket) -> None:
    """Ends a connection, also for the thread that reads from it or writes to it."""
    with sock, contextlib.suppress(OSError):  # the client has gone
        sock.shutdown(socket.SHUT_RDWR)


def ask(path: Path, packet: Packet, timeout: float) -> Packet:
    """Sends a packet to the worker behind a socket and waits for the answer.

    Args:
        path: Path of the socket.
        packet: Request.
        timeout: Longest wait until the answer begins, in seconds.

    Raises:
        TimeoutError: If no answer came in time.
        PacketError: If the answer is not a packet.
        OSError: If no worker is there, or the worker went away.
    """
    sock = socket.socket(socket.AF_UNIX)
    with _connection(sock, timeout, path) as connection:
        send_packet(connection, packet)
        if not connection.poll(timeout):
            raise TimeoutError
        return receive_packet(connection)


def send_packet(connection: Connection, packet: Packet) -> None:
    """Writes a packet.

    Raises:
        OSError: If the connection fails.
    """
    for part in (packet.header, packet.signature, packet.vector):
        connection.send_bytes(part)


def receive_packet(connection: Connection, most: int = MOST_VECTOR) -> Packet:
    """Reads a packet.

    Args:
        connection: Connection to read from.
        most: Largest size of the vector, in bytes; default: 8 GiB.

    Raises:
        PacketError: If the bytes are not a packet, are too many, or end too early.
        OSError: If the connection fails.
    """
    try:
        header, signature, vector = map(connection.recv_bytes, (LONGEST_HEADER, _LONGEST_SIGNATURE, most))
    except (EOFError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # an error of the system
            raise
        raise PacketError(f"what came is not a packet ({error})") from error
    return Packet(header, signature, vector)


def _connection(sock: socket.socket, seconds: float, to: Path | None = None) -> Connection:
    """Wraps a socket as a connection on which one read or write takes `seconds` at most.

    Args:
        sock: Socket that is connected, or is to be connected.
        seconds: Time limit, in seconds; also for connecting while too many others wait.
        to: Path of the socket to connect to; ``None``: the socket is connected already.
    """
    sock.settimeout(None)
    limit = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        sock.setsockopt(socket.SOL_SOCKET, option, limit)
    with sock:
        if to is not None:
            try:
                sock.connect(os.fspath(to))
            except BlockingIOError:
                raise TimeoutError(f"too many others wait at {to}") from None
        return Connection(sock.detach())


def _handled(handle: Callable[[Packet], Packet], packet: Packet) -> Packet:
    try:
        return handle(packet)
    except Exception as error:
        # Log the place, but not the text: it may quote a record.
        place = traceback.extract_tb(error.__traceback__)[-1]
        _log.error("a message failed: %s in %s, line %s", type(error).__name__, place.filename, place.lineno)
        return failed(Failure.INTERNAL)


@contextlib.contextmanager
def _listening(path: Path, group: str | None) -> Iterator[socket.socket]:
    """Makes a socket to which only this user, and perhaps a group, can connect.

    Raises:
        UserError: If the path is unsuitable, another worker answers there, or the group cannot be given access.
    """
    if len(os.fsencode(path)) > _LONGEST_PATH:
        raise UserError(
            f"{path} has more than {_LONGEST_PATH} bytes: choose a shorter path, such as /run/dpfed/site. [socket-path-long]"
        )
    if not path.parent.exists():
        path.parent.mkdir(parents=True, mode=0o700)
        _let_in(path.parent, group, 0o700)
    refuse_open_folder(path.parent, os.geteuid())
    taken = f"another site worker already answers at {path}: stop it, or choose another path."
    with file_lock(path.with_name(f"{path.name}.lock"), taken), socket.socket(socket.AF_UNIX) as listener:
        if path.exists() and not stat.S_ISSOCK(path.stat().st_mode):
            raise UserError(f"{path} exists, but is not a socket: choose another path. [socket-path-taken]")
        path.unlink(missing_ok=True)  # left behind by a worker that was killed
        listener.bind(os.fspath(path))
        try:
            _let_in(path, group, 0o600)  # before `listen`, so nobody gets in earlier
            listener.listen(_CONNECTIONS)
            listener.settimeout(_TICK)
            yield listener
        finally:
            path.unlink(missing_ok=True)


def refuse_open_folder(folder: Path, user: int) -> None:
    """Refuses a folder in which another user could put a socket.

    Args:
        folder: Folder of a socket.
        user: Id of the user that serves the socket.

    Raises:
        UserError: If the folder is unsuitable; the message says why.
        OSError: If the folder does not exist, or its permissions cannot be read.
    """
    status = folder.stat()
    if not stat.S_ISDIR(status.st_mode):
        raise UserError(f"{folder} is not a directory: the socket needs one of its own. [socket-no-folder]")
    if status.st_uid not in (user, 0):
        raise UserError(
            f"{folder} belongs to another user (number {status.st_uid}), who could put a socket of theirs there: choose a "
            "directory of your own. [socket-folder-owner]"
        )
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UserError(
            f"others may write to {folder}, and put a socket there: `chmod go-w {folder}`, or choose another directory. "
            "[socket-folder-open]"
        )


def _let_in(path: Path, group: str | None, mode: int) -> None:
    """Sets the owner's permissions, and lets a group pass a directory, or read and write on a socket."""
    if group is not None:
        try:
            os.chown(path, -1, grp.getgrnam(group).gr_gid)
        except KeyError as error:
            raise UserError(f"there is no group {group!r} on this machine: make it first. [socket-no-group]") from error
        except PermissionError as error:
            raise UserError(f"this user is not in the group {group!r}: add the user to it first. [socket-group]") from error
        mode |= 0o010 if path.is_dir() else 0o060
    path.chmod(mode)
