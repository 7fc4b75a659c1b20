"""The local socket of a site: real sockets, and processes where one must die."""

import contextlib
import grp
import logging
import os
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time
from multiprocessing import Pipe
from pathlib import Path

import pytest

from dpfed.errors import UserError
from dpfed.federation.site import local_socket
from dpfed.federation.site.local_socket import ask, receive_packet, send_packet, serve
from dpfed.protocol.messages import LONGEST_HEADER, Failure, Packet, PacketError, failed
from tests.patience import Patience, at_most, until

PATIENCE = at_most(10.0)  # seconds


@pytest.fixture
def path():
    with tempfile.TemporaryDirectory(prefix="door-") as folder:  # short: a socket's path has at most about 100 bytes
        yield Path(folder) / "site" / "socket"


@contextlib.contextmanager
def serving(path, handle, **options):
    """A site worker in a thread; yields its stop event."""
    stop, troubles = threading.Event(), []

    def run():
        try:
            serve(path, handle, stop, **options)
        except UserError as error:
            troubles.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    patience = Patience(PATIENCE)
    while not troubles and not patience.ended:
        try:
            with socket.socket(socket.AF_UNIX) as probe:
                probe.connect(str(path))
            break
        except OSError:
            time.sleep(0.01)
    try:
        if troubles:
            raise troubles[0]
        yield stop
    finally:
        stop.set()
        thread.join(PATIENCE)
        assert not thread.is_alive()


def echo(packet):
    return packet


# Framing


@pytest.mark.parametrize("size", [0, 1, 1 << 24, (1 << 24) + 5])
def test_what_is_sent_is_what_comes(size):
    sent = Packet(b'{"kind": "x"}', b"signature", os.urandom(size))
    ours, theirs = Pipe()
    with ours, theirs:
        sender = threading.Thread(target=send_packet, args=(ours, sent))
        sender.start()
        assert receive_packet(theirs) == sent
        sender.join()


@pytest.mark.parametrize("lengths", [(LONGEST_HEADER + 1, 0, 0), (0, (4 << 10) + 1, 0), (0, 0, 1001)])
def test_what_is_too_large_is_refused_before_it_comes(lengths):
    ours, theirs = Pipe()
    with ours, theirs, open(ours.fileno(), "wb", closefd=False) as raw:
        for length in lengths:
            raw.write(struct.pack("!i", length))
            raw.flush()
            if length:
                break
        with pytest.raises(PacketError, match="not a packet"):
            receive_packet(theirs, 1000)


@pytest.mark.parametrize("content", [b"", b"GET / HTTP/1.1\r\n\r\n", b"dpf1", struct.pack("!i", 5) + b"{}"])
def test_what_is_no_packet_is_refused(content):
    ours, theirs = Pipe()
    with theirs:
        with ours, open(ours.fileno(), "wb", closefd=False) as raw:
            raw.write(content)
        with pytest.raises(PacketError):
            receive_packet(theirs)


# The door


def test_only_this_user_may_knock(path):
    with serving(path, echo):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_group_may_knock_if_it_is_named(path):
    group = grp.getgrgid(os.getgid()).gr_name
    with serving(path, echo, group=group):
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o710
        assert path.stat().st_gid == path.parent.stat().st_gid == os.getgid()


def test_what_the_user_can_mend_is_said(path):
    for place, options, message in (
        (path, {"group": "no-such-group"}, "socket-no-group"),
        (path.with_name("x" * 100), {}, "socket-path-long"),
    ):
        with pytest.raises(UserError, match=message):
            serve(place, echo, threading.Event(), **options)
    path.write_text("mine")
    with pytest.raises(UserError, match="socket-path-taken"):
        serve(path, echo, threading.Event())
    assert path.read_text() == "mine"


def test_a_directory_that_others_may_write_to_is_refused(path):
    path.parent.mkdir()
    path.parent.chmod(0o777)
    with pytest.raises(UserError, match="socket-folder-open"):
        serve(path, echo, threading.Event())


def test_a_second_worker_is_refused_and_the_first_goes_on(path):
    with serving(path, echo):
        with pytest.raises(UserError, match="another site worker"):
            serve(path, echo, threading.Event())
        assert ask(path, Packet(b"still", b""), PATIENCE).header == b"still"


def test_the_socket_of_a_killed_worker_is_replaced(path):
    code = (
        "import sys, threading; from pathlib import Path\n"
        "from dpfed.federation.site.local_socket import serve\n"
        "serve(Path(sys.argv[1]), lambda packet: packet, threading.Event())\n"
    )
    worker = subprocess.Popen([sys.executable, "-c", code, str(path)])
    patience = Patience(PATIENCE)
    while not patience.ended:
        try:
            ask(path, Packet(b"there?", b""), PATIENCE)
            break
        except OSError:
            time.sleep(0.02)
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    assert path.exists()
    with pytest.raises(ConnectionRefusedError):
        ask(path, Packet(b"there?", b""), PATIENCE)
    with serving(path, echo):
        assert ask(path, Packet(b"there?", b""), PATIENCE).header == b"there?"


def test_garbage_and_hanging_up_do_no_harm(path):
    with serving(path, echo):
        for content in (b"", b"\0" * 20, b"G", b"{}" * 5000):
            with socket.socket(socket.AF_UNIX) as visitor:
                visitor.settimeout(PATIENCE)
                visitor.connect(str(path))
                visitor.sendall(content)
        with socket.socket(socket.AF_UNIX) as visitor:
            visitor.settimeout(PATIENCE)
            visitor.connect(str(path))
            visitor.sendall(b"GET / HTTP/1.1")
            assert b"garbled" in visitor.recv(1000)
        assert ask(path, Packet(b"question", b"", b"abc"), PATIENCE).vector == b"abc"


def visitor_of(path, stack):
    visitor = stack.enter_context(socket.socket(socket.AF_UNIX))
    visitor.connect(str(path))  # without a timeout: waits where the queue is full
    visitor.settimeout(PATIENCE)
    return visitor


def answered_soon(path):
    patience = Patience(2)
    assert ask(path, Packet(b"question", b""), PATIENCE).header == b"question"
    return not patience.ended


def test_many_silent_visitors_delay_nobody(path):
    """More than there is room for: then the oldest of them is shut down."""
    with serving(path, echo), contextlib.ExitStack() as stack:
        silent = []
        for number in range(3 * local_socket._CONNECTIONS):
            silent.append(visitor_of(path, stack))
            silent[-1].sendall(b"\0\0\0"[: number % 3])  # nothing, or a beginning
            if number % 8 == 7:
                assert answered_soon(path)
        patience = Patience(2)
        with contextlib.suppress(ConnectionError):
            silent[0].recv(100)  # its connection has ended
        assert not patience.ended


def test_who_waits_is_not_shut_down_for_who_is_silent(path):
    begun, go, replies = threading.Event(), threading.Event(), []

    def handle(packet):
        begun.set()
        go.wait(PATIENCE)
        return packet

    with serving(path, handle), contextlib.ExitStack() as stack:
        first = threading.Thread(target=lambda: replies.append(ask(path, Packet(b"first", b""), PATIENCE)))
        first.start()
        begun.wait(PATIENCE)
        for _ in range(2 * local_socket._CONNECTIONS):
            visitor_of(path, stack)
        go.set()
        first.join()
    assert replies == [Packet(b"first", b"")]


def test_more_questions_than_there_is_room_for_wait_in_no_thread(path):
    """Complete packets, while the worker is busy: nobody else is let in, and it goes on afterwards."""
    go = threading.Event()
    before = threading.active_count()
    with serving(path, lambda packet: packet if go.wait(PATIENCE) else None), contextlib.ExitStack() as stack:
        for _ in range(3 * local_socket._CONNECTIONS):
            with contextlib.suppress(ConnectionError):  # refused already
                visitor_of(path, stack).sendall(struct.pack("!ixxxxxxxx", 0))
        time.sleep(0.5)
        assert threading.active_count() - before <= local_socket._CONNECTIONS + 1
        go.set()
        time.sleep(0.5)
        assert answered_soon(path)


def test_who_takes_the_answer_in_drops_does_not_hold_up_the_end(path, monkeypatch):
    monkeypatch.setattr(local_socket, "_LONGEST_READ", 1.0)
    with serving(path, lambda packet: Packet(b"long", b"", bytes(1 << 24))) as stop, contextlib.ExitStack() as stack:
        visitor = visitor_of(path, stack)
        visitor.sendall(struct.pack("!ixxxxxxxx", 0))
        assert visitor.recv(1)
        patience = Patience(3)
        stop.set()
        while path.exists() and not patience.ended:
            visitor.recv(1 << 16)
            time.sleep(0.1)
        assert not patience.ended


def test_silent_visitors_do_not_delay_the_end(path):
    with contextlib.ExitStack() as stack:
        with serving(path, echo):
            for _ in range(local_socket._CONNECTIONS):
                visitor_of(path, stack)
            time.sleep(0.2)  # all are let in
            patience = Patience(2)
        assert not patience.ended


def test_a_worker_goes_on_when_files_run_out(path):
    """A process with room for few files, and more visitors than that."""
    code = (
        "import resource, sys, threading; from pathlib import Path\n"
        "from dpfed.federation.site.local_socket import serve\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))\n"
        "serve(Path(sys.argv[1]), lambda packet: packet, threading.Event())\n"
    )
    worker = subprocess.Popen([sys.executable, "-c", code, str(path)], stderr=subprocess.DEVNULL)
    try:
        assert until(path.exists, PATIENCE, pause=0.02)
        time.sleep(0.2)
        with contextlib.ExitStack() as stack:
            for _ in range(30):
                visitor_of(path, stack)
            time.sleep(0.5)
            assert worker.poll() is None
        assert answered_soon(path)
    finally:
        worker.kill()
        worker.wait()


def test_a_directory_of_another_user_is_refused(path, monkeypatch):
    path.parent.mkdir(mode=0o755)
    if os.geteuid() == 0:
        os.chown(path.parent, 4711, -1)
    else:
        monkeypatch.setattr(local_socket.os, "geteuid", lambda: 4711)
    with pytest.raises(UserError, match="socket-folder-owner"):
        serve(path, echo, threading.Event())


def test_a_failure_says_nothing_about_itself(path, caplog):
    def fail(packet):
        raise ValueError("patient 4711 in /records/secret")

    with caplog.at_level(logging.DEBUG), serving(path, fail):
        reply = ask(path, Packet(b"question", b""), PATIENCE)
        assert reply == failed(Failure.INTERNAL) == Packet(b'{"kind": "failure", "reason": "internal"}', b"")
        assert ask(path, Packet(b"question", b""), PATIENCE) == reply  # and goes on
    assert "ValueError" in caplog.text
    assert "4711" not in caplog.text
    assert "/records" not in caplog.text


def test_the_packet_in_hand_is_answered_before_the_end(path):
    begun, replies = threading.Event(), []

    def handle(packet):
        begun.set()
        time.sleep(0.3)
        return packet

    with serving(path, handle) as stop:
        visitor = threading.Thread(target=lambda: replies.append(ask(path, Packet(b"last", b""), PATIENCE)))
        visitor.start()
        begun.wait(PATIENCE)
        stop.set()
        visitor.join()
    assert replies == [Packet(b"last", b"")]
