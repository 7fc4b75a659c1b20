"""One process holds a lock, whatever it does to end, and whatever program the other is."""

import contextlib
import errno
import fcntl
import math
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from dpfed.errors import UserError
from dpfed.files.locking import file_lock, is_held, noted_lock
from tests.patience import at_most

HOLDER = """
import os, subprocess, sys, time
from pathlib import Path
from dpfed.files.locking import file_lock, is_held, noted_lock
with file_lock(Path(sys.argv[1]), "taken"):
    forked = sys.argv[2] == "fork" and os.fork()
    started = sys.argv[2] == "start" and subprocess.Popen(["sleep", "600"]).pid
    if not forked:  # the child says that it is there, which is after it has let go of what it was born with
        print(started or os.getpid(), flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path):
    """Starts a process that holds the lock of a file, and perhaps a child of it; all are ended."""
    pids = []

    def start(children: str = "alone"):
        process = subprocess.Popen([sys.executable, "-c", HOLDER, tmp_path / ".lock", children], stdout=subprocess.PIPE)
        pids.extend([process.pid, int(process.stdout.readline())])
        return process

    yield start
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("children", ["alone", "fork", "start"])
def test_a_killed_process_holds_nothing_for_its_children(tmp_path, holder, children):
    process = holder(children)
    with pytest.raises(UserError, match=r"it is taken \[file-locked\]"), file_lock(tmp_path / ".lock", "it is taken"):
        pass
    process.kill()
    process.wait()
    with file_lock(tmp_path / ".lock", "taken"):
        pass


@pytest.mark.parametrize("wait", [60.0, math.inf])
def test_whoever_waits_gets_it_when_it_is_let_go(tmp_path, wait):
    path, got = tmp_path / ".lock", []

    def take():
        with file_lock(path, "taken", wait):
            got.append(time.monotonic())

    second = threading.Thread(target=take)
    with file_lock(path, "taken"):
        second.start()
        second.join(0.2)
        assert second.is_alive() and not got
        let_go = time.monotonic()
    second.join(at_most(5))
    assert got[0] >= let_go


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK])
def test_storage_without_locks_is_refused(tmp_path, monkeypatch, number):
    def refuse(descriptor, operation):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(UserError, match="file-no-locks"):
        with file_lock(tmp_path / ".lock", "taken"):
            pytest.fail("nothing is locked")
    assert (tmp_path / ".lock").read_bytes() == b""


def test_a_file_that_cannot_be_opened_is_named(tmp_path):
    (tmp_path / ".lock").mkdir()
    with pytest.raises(IsADirectoryError, match=".lock"), file_lock(tmp_path / ".lock", "taken"):
        pass


@pytest.mark.parametrize("what", ["link", "dangling link", "pipe"])
def test_only_an_ordinary_file_is_locked(tmp_path, what):
    target, lock = tmp_path / "target", tmp_path / "lock"
    if what == "link":
        target.write_text("precious")
    if "link" in what:
        lock.symlink_to(target)
    else:
        os.mkfifo(lock)
    with pytest.raises(UserError, match="file-not-ordinary"), file_lock(lock, "taken"):
        pytest.fail("it was locked")
    assert not target.exists() or target.read_text() == "precious"


def test_a_look_at_a_lock_tells_if_its_holder_could_be_seen(tmp_path):
    path = tmp_path / ".lock"
    assert is_held(path) is None
    with file_lock(path, "taken"):
        assert is_held(path) is True
    assert is_held(path) is None  # somebody on another machine may hold it
    for _ in range(2):
        with noted_lock(path, "taken"):
            assert is_held(path) is True
            written = (tmp_path / ".lock-holder").stat().st_mtime_ns
    assert is_held(path) is False and (tmp_path / ".lock-holder").stat().st_mtime_ns == written
    (tmp_path / ".lock-holder").write_text("of another machine")
    assert is_held(path) is None
    (tmp_path / ".lock-holder").unlink()
    os.mkfifo(tmp_path / ".lock-holder")
    with noted_lock(path, "taken"):
        assert is_held(path) is True
    assert is_held(path) is None


def test_a_link_in_the_place_of_the_note_is_not_followed(tmp_path):
    (tmp_path / "precious").write_text("precious")
    (tmp_path / ".lock-holder").symlink_to(tmp_path / "precious")
    with noted_lock(tmp_path / ".lock", "taken"):
        pass
    assert (tmp_path / "precious").read_text() == "precious"
