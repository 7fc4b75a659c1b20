"""`dpfed cluster status`: the runs on a Ray cluster, where their workers are, and how far they have come."""

import json

import pytest

pytest.importorskip("ray")

from dpfed.cluster import status
from dpfed.cluster.relay import RUN
from dpfed.cluster.status import _runs
from tests.live.conftest import make, plan  # noqa: F401  fixtures

NODES = [
    {"NodeID": "a", "Alive": True, "NodeManagerHostname": "north", "NodeManagerAddress": "10.0.0.1", "Resources": {"CPU": 8.0}},
    {"NodeID": "b", "Alive": True, "NodeManagerHostname": "south", "NodeManagerAddress": "10.0.0.2", "Resources": {"CPU": 4.0}},
]


def actor(kind, job, node="a", name="", state="ALIVE"):
    return {"ActorClassName": kind, "JobID": job, "Address": {"NodeID": node}, "Name": name, "State": state}


def worker(job, node, **more):
    return actor("RayTrainWorker", job, node, **more)


def test_each_run_has_the_workers_of_its_own_driver(make, tmp_path):  # noqa: F811
    run = make(done=3)
    actors = [
        actor("_QueueActor", "1", name=f"{RUN}{run.path}"),
        *(worker("1", "b"), worker("1", "a"), worker("1", "b"), worker("1", "a", state="DEAD")),
        actor("_QueueActor", "2", name=f"{RUN}{tmp_path / 'waiting'}"),
        actor("_QueueActor", "3", name=f"{RUN}/gone", state="DEAD"),
        worker("4", "a"),  # of another program
    ]
    with run.locked():
        one, other = _runs(NODES, actors)
    assert (one.run, one.workers) == (str(run.path), {"north (10.0.0.1)": 1, "south (10.0.0.2)": 2})
    assert one.state == "running, 3 of 6 (50 %)"
    assert (other.run, other.workers) == (str(tmp_path / "waiting"), {}) and "another machine" in other.state


def test_what_is_printed(dpfed, monkeypatch):
    runs = [status.Running("/runs/one", {"north": 2}, "running, 3 of 6 (50 %)"), status.Running("/runs/two", {}, "nothing yet")]
    machines = [status.Machine("north", 8.0, 4.0), status.Machine("south", 8.0, 0.0)]
    monkeypatch.setattr(status, "_looked", lambda: (machines, {"cpus": 2.0, "gpus": 0.0}, runs))
    code, out, _ = dpfed("cluster", "status")
    assert code == 0 and "2 machines; free: 2 of 16 CPUs, 0 of 4 GPUs" in out and "workers: 2 on north" in out
    assert "workers: none now" in out
    facts = json.loads(dpfed("cluster", "status", "--json")[1])
    assert [one["run"] for one in facts["runs"]] == ["/runs/one", "/runs/two"] and facts["free"]["cpus"] == 2


@pytest.mark.parametrize(
    ("address", "code"), [("", "ray-no-cluster"), ("local", "ray-no-cluster"), ("127.0.0.1:1", "ray-unreachable")]
)
def test_nothing_is_started_to_be_looked_at(dpfed, monkeypatch, tmp_path, address, code):
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setenv("RAY_ADDRESS", address)
    exit_code, _, error = dpfed("cluster", "status")
    assert exit_code == 2 and f"[{code}]" in error and "RAY_ADDRESS=local" not in error and "RAY_ADDRESS is ''" not in error
    assert not list(tmp_path.iterdir())
