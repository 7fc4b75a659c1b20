"""Processes that belong together end together, whatever ends them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dpfed.federation.demo.processes import processes

ROOT = Path(__file__).resolve().parents[3]


def sleepers(seconds):
    """Processes that sleep for exactly this long: nobody else has that number."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = file.read_bytes().split(b"\0")
        except OSError:
            continue
        if words[:2] == [b"sleep", str(seconds).encode()]:
            found.append(int(file.parent.name))
    return found


@pytest.fixture
def seconds():
    number = 1_000_000_000 + int.from_bytes(os.urandom(4))
    yield number
    for pid in sleepers(number):
        os.kill(pid, signal.SIGKILL)


def family(seconds):
    """A process with a child in its group and one in a session of its own, as Flower's SuperExec is."""
    return ["sh", "-c", f"setsid sleep {seconds} & sleep {seconds} & wait"]


def wait_for_family(seconds):
    deadline = time.monotonic() + 10
    while len(sleepers(seconds)) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(sleepers(seconds)) == 2


def test_a_killed_process_takes_its_children_along(tmp_path, seconds):
    with processes(tmp_path) as members:
        members.start("parent", family(seconds))
        wait_for_family(seconds)
        assert len(members.descendants("parent", "sleep")) == 2
        members.kill("parent")
        assert not members.running("parent")
        assert sleepers(seconds) == []


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_when_the_parent_is_told_to_end(tmp_path, seconds, how):
    code = (
        "import sys, time; from pathlib import Path; from dpfed.federation.demo.processes import processes\n"
        "with processes(Path(sys.argv[1])) as members:\n"
        "    members.start('parent', sys.argv[2:]); time.sleep(300)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path), *family(seconds)], cwd=ROOT, stderr=subprocess.DEVNULL
    )
    wait_for_family(seconds)
    parent.send_signal(how)
    assert parent.wait(20) != 0
    assert sleepers(seconds) == []


def test_nothing_is_left_when_the_parent_is_killed(tmp_path, seconds):
    code = (
        "import sys, time; from pathlib import Path; from dpfed.federation.demo.processes import processes\n"
        "with processes(Path(sys.argv[1])) as members:\n"
        "    members.start('parent', sys.argv[2:]); time.sleep(300)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path), *family(seconds)], cwd=ROOT) as parent:
        wait_for_family(seconds)
        parent.kill()
    deadline = time.monotonic() + 20
    while sleepers(seconds) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert sleepers(seconds) == []


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_when_the_parent_is_told_so_while_it_ends(tmp_path, seconds, how):
    code = (
        "import sys; from pathlib import Path; import dpfed.federation.demo.processes as module; module._GRACE = 1\n"
        "with module.processes(Path(sys.argv[1])) as members:\n"
        "    members.start('parent', sys.argv[2:])\n"
        "    members.start('deaf', ['sh', '-c', 'trap \"\" TERM; echo deaf; while :; do sleep 0.1; done'])\n"
        "    members.wait_for('deaf', 'deaf', 10); sys.stdin.readline()\n"
        "    print('closing', flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path), *family(seconds)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        wait_for_family(seconds)
        parent.stdin.write("\n")
        parent.stdin.flush()
        assert parent.stdout.readline() == "closing\n"
        time.sleep(0.3)  # the deaf one, which was started last, is being waited for
        parent.send_signal(how)
        parent.wait(20)
    deadline = time.monotonic() + 20
    while sleepers(seconds) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert sleepers(seconds) == []
