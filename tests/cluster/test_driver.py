"""Ray's processes live as long as the command that started them, even if a signal comes early or a raylet does not answer."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time

import pytest

from tests.patience import Patience

psutil = pytest.importorskip("psutil")
pytest.importorskip("ray")

_COMMAND = """
import json, logging, psutil, ray
from dpfed.cluster.driver import end_ray

def killing_shutdown():  # as Ray does where a raylet takes longer than a second to end
    for agent in raylet.children():
        agent.suspend()  # as one that is still being loaded, and does not look for its raylet yet
    raylet.kill()
    shutdown()

ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
started = psutil.Process().children(recursive=True)
raylet = next(process for process in started if process.name() == "raylet")
shutdown, ray.shutdown = ray.shutdown, killing_shutdown
print(json.dumps([[process.pid, process.create_time()] for process in started]), flush=True)
end_ray()
"""


@pytest.mark.long
def test_agents_end_although_their_raylet_was_killed(tmp_path):
    folder = tempfile.mkdtemp(prefix="re-", dir="/tmp")  # sockets lie in it, whose paths must be short
    settings = {**os.environ, "RAY_TMPDIR": folder, "RAY_USAGE_STATS_ENABLED": "0"}
    with (tmp_path / "said").open("w+") as said:  # a pipe would stay open until the last process ends
        subprocess.run([sys.executable, "-c", _COMMAND], stdout=said, stderr=subprocess.DEVNULL, check=True, env=settings)
        said.seek(0)
        lists = [line for line in said if line.startswith("[[")]
    started = {(number, born) for number, born in json.loads(lists[0])}
    assert len(started) > 3
    left = [process for process in psutil.process_iter() if (process.pid, process.create_time()) in started]
    assert not [process for process in left if process.status() != psutil.STATUS_ZOMBIE]


_CONNECTING = """
import os, signal, sys, threading, time
from dpfed.cluster.launch import _connected
from dpfed.console.interruption import Interrupted, interruptible
from dpfed.progress import Silent

def signal_when_ray_has_its_handlers():
    while True:
        lines = dict(line.split(":") for line in open("/proc/self/status").read().splitlines())
        if int(lines["SigCgt"], 16) >> (signal.SIGSEGV - 1) & 1:
            time.sleep(float(sys.argv[1]))
            os.kill(os.getpid(), signal.SIGTERM)
            return
        time.sleep(0.001)

if len(sys.argv) > 1:
    threading.Thread(target=signal_when_ray_has_its_handlers, daemon=True).start()
with interruptible():
    try:
        with _connected(Silent()):
            time.sleep(1.5)
            import ray
            print("alive:", ray.get(ray.remote(lambda: 5).options(num_cpus=0).remote(), timeout=120), flush=True)
            time.sleep(60)
    except Interrupted as stop:
        time.sleep(4)  # longer than the alarm that Ray's handler sets
        print("ended with", stop.code, flush=True)
"""


@contextlib.contextmanager
def _connecting(tmp_path, *arguments):
    """Exit code and last line of a process that starts a cluster of its own, and what it leaves behind."""
    folder = tempfile.mkdtemp(prefix="re-", dir="/tmp")
    settings = {**os.environ, "RAY_ADDRESS": "local", "RAY_TMPDIR": folder, "RAY_USAGE_STATS_ENABLED": "0"}
    with (tmp_path / "said").open("w+") as said:
        process = subprocess.Popen(
            [sys.executable, "-c", _CONNECTING, *arguments], stdout=said, stderr=subprocess.DEVNULL, env=settings
        )
        yield process, tmp_path / "said"
        code = process.wait(180)
    left = [each for each in psutil.process_iter(["cmdline"]) if folder in " ".join(each.info["cmdline"] or ())]
    assert not [each for each in left if each.status() != psutil.STATUS_ZOMBIE]
    assert (code, (tmp_path / "said").read_text().splitlines()[-1]) == (0, "ended with 143")


@pytest.mark.long
@pytest.mark.parametrize("seconds", ["0", "0.3"])
def test_sigterm_ends_a_command_while_ray_connects(tmp_path, seconds):
    with _connecting(tmp_path, seconds):
        pass


@pytest.mark.long
def test_a_cluster_lives_until_the_command_ends(tmp_path):
    """Linux kills Ray's processes when the thread that started them ends."""
    with _connecting(tmp_path) as (process, said):
        patience = Patience(120)
        while "alive: 5" not in said.read_text():
            assert process.poll() is None and not patience.ended
            time.sleep(0.2)
        process.terminate()
