"""What the launcher chooses and refuses before it starts anything; no Ray is started here."""

from pathlib import Path
from queue import Empty, Queue
from types import SimpleNamespace

import pytest
import torch

from dpfed.artifacts.directory import RunDirectory
from dpfed.cluster import launch, work
from dpfed.cluster.launch import Resources, _refuse_job_copy, _sized, _with_a_place
from dpfed.cluster.link import MARK_BYTES, Link
from dpfed.cluster.relay import Hosts, Relay, relayed
from dpfed.cluster.torchrun import process_group
from dpfed.cluster.work import Task, _mark
from dpfed.config import load_config, parse_config
from dpfed.errors import UserError
from dpfed.privacy.randomness import Randomness
from dpfed.progress import Silent
from dpfed.runs.build import build

CPU, GPU = {"CPU": 8.0}, {"CPU": 8.0, "GPU": 4.0}
COPY = "/tmp/ray/session/runtime_resources/working_dir_files/_ray_pkg_1"


class Notes(Silent):
    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


@pytest.mark.parametrize(
    ("asked", "machines", "cpus", "gpus"),
    [
        (Resources(workers=3), [CPU, CPU], 4, 0),  # 5 would be a third of all, but two of them do not fit on one machine
        (Resources(workers=2), [CPU], 4, 0),
        (Resources(workers=8), [GPU, GPU, {"CPU": 64.0}], 2, 1),  # the machine without GPUs has no place
        (Resources(workers=2, gpus=0), [GPU], 4, 0),
        (Resources(workers=2, cpus=1), [GPU], 1, 1),
        (Resources(workers=9), [CPU, CPU], 1, 0),
    ],
)
def test_workers_get_what_a_machine_has_room_for(asked, machines, cpus, gpus):
    progress = Notes()
    sized = _sized(asked, machines, False, progress)
    assert (sized.cpus, sized.gpus, progress.notes) == (cpus, gpus, [])


def test_too_few_machines_are_compared_with_the_least_number_of_workers():
    progress, asked = Notes(), Resources(workers=8, least=2, cpus=4)
    _sized(asked, [{"CPU": 4.0}], False, progress)
    assert progress.notes == ["waiting for machines: the cluster has room for 1 of 2 workers with 4 CPUs each"]
    with pytest.raises(UserError, match="room for 1 of 2 workers with 4 CPUs each"):
        _sized(asked, [{"CPU": 4.0}], True, progress)


def test_what_continues_a_run_whose_workers_died(tmp_path, tiny_config):
    task = Task(tmp_path / "run", tiny_config)
    assert "the same command begins it" in launch._continued(task)
    RunDirectory.create(task.folder, tiny_config, Randomness.from_seed(0))
    assert f"`dpfed resume {task.folder} --cluster ray` continues" in launch._continued(task)


@pytest.mark.parametrize(
    ("asked", "machines", "words"),
    [
        (Resources(workers=4, least=1), [{"CPU": 2.0}], "2 workers (of 1-4: the cluster has no room for more now)"),
        # once machines have come
        (Resources(workers=4, least=2), [{"CPU": 1.0}], "2 workers (of 2-4: the cluster has no room for more now)"),
        (Resources(workers=4, least=1), [CPU], "4 workers"),
        (Resources(workers=1), [CPU], "1 worker"),
    ],
)
def test_as_many_workers_are_announced_as_there_is_room_for(asked, machines, words, monkeypatch):
    monkeypatch.setattr(launch, "_machines", lambda: machines)
    assert launch._counted(_sized(asked, machines, False, Notes())) == words


def test_messages_name_the_host_of_a_worker(monkeypatch):
    ray_queue = pytest.importorskip("ray.util.queue")
    import ray

    class Here(Queue):
        def __init__(self, **_):
            super().__init__()

        def get(self, timeout):
            try:
                return super().get(timeout=timeout)
            except Empty:
                raise ray_queue.Empty from None

        def shutdown(self, force):
            pass

    monkeypatch.setattr(ray_queue, "Queue", Here)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: "0" * 56))
    progress, hosts = Notes(), Hosts()
    with relayed(Path("/runs/one"), progress, hosts, "starting", lambda: "") as queue:
        Relay(queue).at(1, "north")
        queue.put(("deaths", [0, 1], "died: restart 1 of 3"))
    assert progress.notes == ["workers 0, 1 on north died: restart 1 of 3"]
    assert [hosts.worker(rank) for rank in (0, 1)] == ["0", "1 on north"]


def config(*changes):
    return load_config("configs/quickstart.toml", list(changes))


def test_generated_records_lie_beside_the_run_of_a_submitted_job():
    task = Task(Path("/shared/runs/x"), config(f"data.stores={COPY}/stores"))
    placed = _with_a_place(task)
    assert placed.config.data.stores == "/shared/runs/stores"
    _refuse_job_copy(placed)
    imported = Task(task.folder, config(f"data.stores={COPY}/stores", "data.source=folder", "data.path=/shared/mine"))
    assert _with_a_place(imported) is imported


def test_paths_in_a_jobs_copy_are_refused_where_they_are_used():
    shared = ["data.stores=/shared/stores"]
    with pytest.raises(UserError, match="--run as.*ray-job-copy"):
        _refuse_job_copy(Task(Path(COPY, "runs/x"), config(*shared)))
    with pytest.raises(UserError, match="data.stores as.*ray-job-copy"):
        _refuse_job_copy(Task(Path("/shared/x"), config(f"data.stores={COPY}/stores")))
    with pytest.raises(UserError, match="model.weights as.*ray-job-copy"):
        name = {"kind": "open_clip", "architecture": "ViT-B-32", "weights": f"{COPY}/w.pt"}
        _refuse_job_copy(Task(Path("/shared/x"), parse_config({"model": name, "data": {"stores": "/shared/stores"}})))
    _refuse_job_copy(Task(Path("/shared/x"), config("data.source=store", "data.path=/shared/mine")))  # no store is written


def test_a_worker_without_the_shared_storage_begins_nothing(tmp_path, tiny_config):
    task = Task(tmp_path / "here" / "run", tiny_config, resume=True, beside=tmp_path / "elsewhere")
    with process_group(), pytest.raises(UserError, match="worker-storage"):
        work.work(task, Silent())
    assert not (tmp_path / "here").exists()


def test_rank_0_holds_the_run_begun_or_resumed(tmp_path, tiny_config, monkeypatch):
    task, held = Task(tmp_path / "run", tiny_config, resume=True), []

    def run_job(job, *_):
        with pytest.raises(UserError, match="in use"), RunDirectory.open(task.folder).locked():
            pass
        held.append(job)
        raise UserError("that is all")

    monkeypatch.setattr(work, "run_job", run_job)
    for _ in range(2):
        with process_group(), pytest.raises(UserError, match="that is all"):
            work.work(task, Silent())
    assert len(held) == 2


def test_a_worker_in_trouble_names_no_record_to_the_others(tmp_path, tiny_config, monkeypatch):
    class Link:
        rank, size, told = 1, 2, []
        messages = iter([build(tiny_config).config.dump().encode(), b"", bytes(32)])  # configuration, identity, the owners' key

        def broadcast(self):
            return next(self.messages)

        def agree(self, mark, trouble):
            self.told.append(trouble)

        def announce(self, step):
            return None

    def refused(*_, **__):
        raise UserError("the image of 'patient 4711' cannot be decoded. [image-broken]", "an image cannot be decoded")

    monkeypatch.setattr(work, "build", refused)
    work._follow(Link(), tmp_path / "run")
    assert Link.told == ["an image cannot be decoded [image-broken]"]


@pytest.mark.parametrize(
    ("other", "code"),
    [
        ({"store": "x", "plan": "x"}, "worker-other-records"),
        ({"own": {"loss": "x"}}, "worker-other-code"),
        ({"plan": "x"}, "worker-other-plan"),
        ({}, None),
    ],
)
def test_workers_agree_on_records_code_and_plan(monkeypatch, other, code):
    def report(plan="a", store="b", own=None):
        parts = SimpleNamespace(plan=SimpleNamespace(fingerprint=plan), store=SimpleNamespace(fingerprint=store), own=own or {})
        return _mark(parts)

    def gathered(self, tensor):
        theirs = tensor.clone()
        theirs[:MARK_BYTES] = torch.frombuffer(bytearray(report(**other)), dtype=torch.uint8)
        return [tensor, theirs]

    monkeypatch.setattr(Link, "_all", gathered)
    with process_group():
        if code is None:
            return Link().agree(report())
        with pytest.raises(UserError, match=rf"worker 1 on .*\[{code}\]"):
            Link().agree(report())
