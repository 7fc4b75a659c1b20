"""Whole runs of sharded models: the engine is chosen once, written down, and kept; also that of runs from before the choice."""

import pytest

from cluster import shards
from dpfed.privacy.ledger import Ledger
from dpfed.runs.directory import RunDirectory
from dpfed.training.worker import Worker
from tests.cluster.processes import Processes, come_and_wait, dpfed, pretrain, wait_for

SHARDED = ("--set", "training.sharding=fsdp", "--set", "bounding.engine=auto", "--set", "training.checkpoint_every=2")
STOPPED = 3


def stop(rank, place, *arguments):
    bounded_sum = Worker.bounded_sum

    def stopping(self, step):
        if step == STOPPED and rank == 0:
            come_and_wait(place)
        return bounded_sum(self, step)

    Worker.bounded_sum = stopping
    dpfed(*arguments)


def go_on(rank, folder, *arguments):
    """Goes on, and writes down which engine each worker has."""
    shard = shards.shard

    def watched(parts):
        found = shard(parts)
        (folder / f"engine-{rank}").write_text(type(found[2]).__name__)
        return found

    shards.shard = watched
    dpfed(*arguments)


@pytest.mark.parametrize(
    ("written", "engine"),
    [("layerwise", "ShardedLayerwiseEngine"), pytest.param("auto", "ShardedEngine", marks=pytest.mark.slow)],
    ids=["of now", "of an earlier version"],
)
def test_a_run_keeps_its_engine(source, tmp_path, written, engine):
    arguments = (tmp_path / "here", *pretrain(source, tmp_path / "run", *SHARDED))
    with Processes(2, tmp_path / "out", stop, *arguments) as processes:
        wait_for(tmp_path / "here", processes)
        processes.kill()
        assert "engine: layerwise" in processes.output(0)
    file = tmp_path / "run" / "config.toml"
    assert 'engine = "layerwise"' in file.read_text()
    file.write_text(file.read_text().replace('engine = "layerwise"', f'engine = "{written}"'))
    with Processes(2, tmp_path / "on", go_on, tmp_path, "resume", tmp_path / "run", "--cluster", "torchrun") as processes:
        assert processes.wait() == [0, 0], processes.text
    assert [(tmp_path / f"engine-{rank}").read_text() for rank in range(2)] == [engine] * 2
    run = RunDirectory.open(tmp_path / "run")
    assert run.finished and Ledger.open(run.ledger).charged == 6
