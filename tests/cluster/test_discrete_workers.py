"""Discrete noise in a cluster: one training step, whoever carries the sums."""

import pytest
import torch

from dpfed.artifacts.directory import RunDirectory
from dpfed.cluster.torchrun import take_part
from dpfed.cluster.work import Task
from dpfed.config import parse_config
from dpfed.privacy.ledger import Ledger
from dpfed.privacy.noise import KeyedNoise
from dpfed.privacy.randomness import Randomness
from dpfed.progress import Silent
from dpfed.training.coordinator import Coordinator
from tests.cluster.processes import Processes


def watch(rank, config, folder):
    """Takes part in a run, and writes down each clean sum with what became of it."""
    real, seen = Coordinator._release, []

    def watched(self, step, total):
        clean = total.values.clone()
        seen.append((clean, real(self, step, total).clone()))
        return seen[-1][1].clone()

    Coordinator._release = watched
    take_part(Task(folder / "run", config), Silent())
    torch.save(seen, folder / f"{rank}.pt")


@pytest.mark.slow
def test_workers_sums_get_the_noise_of_one_process_once(discrete, tmp_path):
    discrete["privacy"] |= {"seed": 11, "steps": 2}
    discrete["evaluation"] = {"split": "none"}
    with Processes(2, tmp_path, watch, parse_config(discrete), tmp_path) as processes:
        assert processes.wait() == [0, 0], processes.text
    plan, seen = Ledger.open(RunDirectory.open(tmp_path / "run").ledger).plan, torch.load(tmp_path / "0.pt")
    assert plan.noise.kind == "discrete" and len(seen) == 2
    for step, (clean, noisy) in enumerate(seen):
        keyed = KeyedNoise(plan.noise_of(), Randomness.from_seed(11), "noise", plan.fingerprint)
        assert torch.equal(noisy, keyed.add_(clean.clone(), step)) and clean.norm() > 0
