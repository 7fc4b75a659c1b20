"""Waits end on a quiet machine when they should, and later on a busy one."""

import os
import subprocess
import sys
import time

import pytest

from tests import patience
from tests.patience import MOST, Patience, exit_code, output_of, run_to_end, strain, until


@pytest.fixture
def machine(monkeypatch):
    """A machine of four cores whose clock and load a test sets."""
    now = {"seconds": 0.0, "load": 0.0}
    monkeypatch.setattr(os, "getloadavg", lambda: (now["load"], 0.0, 0.0))
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(time, "monotonic", lambda: now["seconds"])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.update(seconds=now["seconds"] + seconds))
    return now


@pytest.mark.parametrize(("load", "expected"), [(0.0, 1.0), (4.0, 1.0), (8.0, 2.0), (40.0, 10.0), (4e4, MOST)])
def test_a_wait_lasts_as_long_as_the_load_says(machine, load, expected):
    machine["load"] = load
    assert strain() == expected
    assert not until(lambda: False, 10.0, pause=0.25)
    assert machine["seconds"] == pytest.approx(10.0 * expected, rel=0.03)


def test_a_machine_that_becomes_busy_prolongs_what_is_left(machine):
    waiting = Patience(60.0)
    machine["seconds"] += 30.0
    assert waiting.left == 30.0
    machine["load"] = 12.0
    machine["seconds"] += 1.0
    assert waiting.left == pytest.approx(30.0 - 1 / 3)
    machine["seconds"] += 86.0
    assert not waiting.ended
    machine["seconds"] += 4.0
    assert waiting.ended and waiting.left == 0.0


def test_a_system_without_a_load_is_a_quiet_one(monkeypatch):
    def refuses():
        raise OSError

    monkeypatch.setattr(os, "getloadavg", refuses)
    assert strain() == 1.0


def test_until_returns_what_holds(machine):
    assert until(lambda: "found" if machine["seconds"] > 3.0 else "", 10.0) == "found"
    assert machine["seconds"] < 3.1


def test_a_late_process_is_killed_and_its_output_kept(monkeypatch):
    monkeypatch.setattr(patience, "strain", lambda: 1.0)
    words = [sys.executable, "-c", "import time; time.sleep(0.8); print(input())"]
    done = run_to_end(words, timeout=30.0, capture_output=True, text=True, input="told\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "told\n", "")
    with pytest.raises(subprocess.CalledProcessError):
        run_to_end([sys.executable, "-c", "raise SystemExit(3)"], timeout=30.0, check=True)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            exit_code(process, 0.1)
        with pytest.raises(subprocess.TimeoutExpired):
            output_of(process, 0.1)
        assert process.wait(10) < 0
