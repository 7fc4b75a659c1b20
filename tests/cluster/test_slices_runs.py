"""A whole run whose ranks share the coordinator's work: killed with three of them, and finished by one process alone."""

import itertools
import json

import pytest
import torch
from safetensors.torch import load_file

from dpfed.cluster.slices import Slices
from dpfed.privacy import blocks
from dpfed.privacy.ledger import Ledger
from dpfed.runs.directory import RunDirectory
from dpfed.training.releases import Releases
from tests.cluster.conftest import STEPS
from tests.cluster.processes import Processes, come_and_wait, dpfed, pretrain, wait_for

STOPPED = 4  # of STEPS; a checkpoint is written after every second


def shared(rank, place, log, *arguments):
    """Long sums begin at once, and blocks are short."""
    blocks.SMALL, blocks.LENGTH = 0, 1000
    take_step, calls = Slices.take_step, itertools.count()

    def counted(self, *args):
        if rank == 1 and place is not None and next(calls) == STOPPED:
            come_and_wait(place)
        with open(f"{log}-{rank}", "a") as file:
            file.write(".")
        return take_step(self, *args)

    Slices.take_step = counted
    dpfed(*arguments)


@pytest.mark.parametrize(
    "further",
    [[], pytest.param(["diagnostics=private", "progress.share=0.5", "privacy.noise_multiplier=0.3"], marks=pytest.mark.slow)],
    ids=["plain", "private progress"],
)
def test_a_run_that_ranks_shared_is_finished_by_one_process(source, tmp_path, further):
    folder = tmp_path / "run"
    options = [word for key in ["optimizer.ema=0.9", *further] for word in ("--set", key)]
    arguments = (tmp_path / "here", tmp_path / "steps", *pretrain(source, folder, *options))
    with Processes(3, tmp_path / "out", shared, *arguments) as processes:
        wait_for(tmp_path / "here", processes)
        processes.kill()
    assert (tmp_path / "steps-1").read_text() == "." * STOPPED
    assert Ledger.open(folder / "ledger.jsonl").block == 1000
    assert len(list((folder / "releases").glob(f"{STOPPED:08d}-*.f32"))) == 3
    noisy = Releases(folder / "releases").load(STOPPED)
    with Processes(1, tmp_path / "again", shared, None, tmp_path / "alone", "resume", folder) as processes:
        assert processes.wait() == [0], processes.text
    assert not (tmp_path / "alone-0").exists()
    run = RunDirectory.open(folder)
    lines = [json.loads(line) for line in run.ledger.read_text().splitlines()[1:]]
    assert [line["step"] for line in lines if line.get("charged")] == list(range(STEPS))
    assert [line["step"] for line in lines if line.get("charged") is False] == [STOPPED]
    assert run.finished and run.card.exists() and not run.releases.exists()
    state = load_file(sorted(run.checkpoints.glob("*.safetensors"))[-1])
    size = sum(value.numel() for name, value in state.items() if name.startswith("optimizer/") and name.endswith("exp_avg"))
    assert size == state["post/moving_average/weights"].numel() == len(noisy) - Ledger.open(run.ledger).plan.statistics_count
    assert all(torch.isfinite(value).all() for value in state.values())
