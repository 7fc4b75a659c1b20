"""Processes that belong together end together, whatever ends them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dpfed.config import load_config
from dpfed.errors import UserError
from dpfed.federation.demo import one_machine
from dpfed.federation.demo import processes as module
from dpfed.federation.demo.processes import processes
from tests.patience import exit_code, until

ROOT = Path(__file__).resolve().parents[3]
CODE = """import sys, time; from pathlib import Path; from dpfed.federation.demo.processes import processes
with processes(Path(sys.argv[1])) as members:
    members.start('parent', sys.argv[2:]); time.sleep(300)
"""


def sleepers(seconds):
    """Processes that sleep for exactly this long: nobody else has that number."""
    pids = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = file.read_bytes().split(b"\0")
        except OSError:
            continue
        if words[:2] == [b"sleep", str(seconds).encode()]:
            pids.append(int(file.parent.name))
    return pids


@pytest.fixture
def seconds():
    number = 1_000_000_000 + int.from_bytes(os.urandom(4))
    yield number
    for pid in sleepers(number):
        os.kill(pid, signal.SIGKILL)


def family(seconds):
    """A process with a child in its group and one in a session of its own, as Flower's SuperExec is."""
    return ["sh", "-c", f"setsid sleep {seconds} & sleep {seconds} & wait"]


def command(code, folder, seconds):
    return [sys.executable, "-c", code, str(folder), *family(seconds)]


def wait_for_family(seconds, members=2, patience=10):
    assert until(lambda: len(sleepers(seconds)) == members, patience, pause=0.02), sleepers(seconds)


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
    parent = subprocess.Popen(command(CODE, tmp_path, seconds), cwd=ROOT, stderr=subprocess.DEVNULL)
    wait_for_family(seconds)
    parent.send_signal(how)
    assert exit_code(parent, 20) != 0
    assert sleepers(seconds) == []


def test_nothing_is_left_when_the_parent_is_killed(tmp_path, seconds):
    with subprocess.Popen(command(CODE, tmp_path, seconds), cwd=ROOT) as parent:
        wait_for_family(seconds)
        parent.kill()
    wait_for_family(seconds, 0, 20)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_of_a_parent_that_is_told_as_it_ends(tmp_path, seconds, how):
    code = (
        "import sys; from pathlib import Path; import dpfed.federation.demo.processes as module; module._GRACE = 1\n"
        "with module.processes(Path(sys.argv[1])) as members:\n"
        "    members.start('parent', sys.argv[2:])\n"
        "    members.start('deaf', ['sh', '-c', 'trap \"\" TERM; echo deaf; while :; do sleep 0.1; done'])\n"
        "    members.wait_for('deaf', 'deaf', 10); sys.stdin.readline()\n"
        "    print('closing', flush=True)\n"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command(code, tmp_path, seconds), cwd=ROOT, **pipes) as parent:
        wait_for_family(seconds)
        parent.stdin.write("\n")
        parent.stdin.flush()
        assert parent.stdout.readline() == "closing\n"
        time.sleep(0.3)  # the deaf one, which was started last, is being waited for
        parent.send_signal(how)
        exit_code(parent, 20)
    wait_for_family(seconds, 0, 20)


def test_those_that_are_deaf_share_one_time_to_end(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_GRACE", 1.0)
    with processes(tmp_path) as members:
        for name in ("one", "two", "three", "four"):
            members.start(name, ["sh", "-c", "trap '' TERM; echo deaf; while :; do sleep 0.1; done"])
        for name in ("one", "two", "three", "four"):
            members.wait_for(name, "deaf", 20)
        began = time.monotonic()
    assert time.monotonic() - began < 3.0 and not any(map(members.running, ("one", "two", "three", "four")))


def test_a_demo_that_was_killed_begins_anew_and_leaves_foreign_files(tmp_path, monkeypatch):
    def found(config, parties, *_):
        raise UserError(", ".join(sorted(path.name for path in parties.iterdir())))

    monkeypatch.setattr(one_machine, "_found", found)
    parties = tmp_path / "run-parties"
    for name in ("stores", "site-0", ".site-1.partial-00ff00ff", ".stores.partial-00ff00ff"):  # as SIGKILL leaves them
        (parties / name).mkdir(parents=True)
    for name in (".stores.lock", ".DS_Store"):
        (parties / name).touch()
    again = [load_config("quickstart"), tmp_path / "run", 2, 0.8, {}]
    with pytest.raises(UserError, match=r"^\.DS_Store, \.stores\.lock$"):
        one_machine.federate(*again)
    (parties / "notes.txt").touch()
    with pytest.raises(UserError, match="flower-demo-in-use"):
        one_machine.federate(*again)


@pytest.mark.parametrize(("how", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_demo_that_is_stopped_names_what_resumes_it(how, code, dpfed, tmp_path, monkeypatch):
    monkeypatch.setattr("dpfed.federation.demo.one_machine.federate", lambda *_: signal.raise_signal(how))
    status, _, error = dpfed("federation", "demo", "quickstart", "--run", tmp_path / "run")
    assert status == code and error.splitlines()[-1] == "stopped; the same command resumes"
