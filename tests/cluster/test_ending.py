"""Ray's processes end with the command that started them, even if their raylet does not answer."""

import json
import os
import subprocess
import sys
import tempfile

import pytest

psutil = pytest.importorskip("psutil")
pytest.importorskip("ray")

_COMMAND = """
import json, logging, psutil, ray
from dpfed.cluster.ending import end_ray

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
