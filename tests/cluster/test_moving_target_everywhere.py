"""BYOL's target network on several workers: in every step all compute with the coordinator's, whatever carries it."""

import json

import pytest
import torch

from dpfed.config import parse_config
from dpfed.federation.simulation import Simulation, simulate
from dpfed.federation.site.worker import SiteWorker
from dpfed.training.coordinator import Coordinator
from dpfed.training.worker import Worker
from tests.cluster.witness import seen_by_two

STEPS = 3


@pytest.fixture
def byol(tiny):
    tiny["model"] = {"kind": "image", "width": 8, "embedding": 16, "head_hidden": 16}
    tiny["objective"] = {"name": "byol", "momentum": 0.5}
    tiny["privacy"] = {"noise_multiplier": 1.0, "accountant": "rdp", "batch": 64, "steps": STEPS, "seed": 7}
    tiny["evaluation"] = {"split": "none"}
    return parse_config(tiny)


def same(one, two):
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.slow
def test_all_workers_of_a_cluster_hold_the_same_target_in_every_step(byol, tmp_path):
    first, second = (seen["held"] for seen in seen_by_two(byol, tmp_path))
    assert len(first) == STEPS and all(same(one, two) for one, two in zip(first, second, strict=True))
    moving = [name for name in first[0] if name.startswith("target.")]
    assert any(not torch.equal(first[0][name], first[2][name]) for name in moving)


def test_sites_compute_with_the_coordinators_target_also_after_a_step_they_missed(byol, tmp_path, monkeypatch):
    released, held, apply, bounded_sum = {}, [], Coordinator.apply, Worker.bounded_sum

    def watched_apply(self, step, total):
        released[step] = {name: value.clone() for name, value in self.post_processors[0]._move.__self__.state_dict().items()}
        return apply(self, step, total)

    def watched_sum(self, step):
        held.append((step, {name: value.clone() for name, value in self._model.state_dict().items()}))
        return bounded_sum(self, step)

    answer, missed = SiteWorker._step, []

    def late(self, header, vector):
        if header["step"] == 1 and not missed:
            missed.append(1)
            raise RuntimeError
        return answer(self, header, vector)

    monkeypatch.setattr(Coordinator, "apply", watched_apply)
    monkeypatch.setattr(Worker, "bounded_sum", watched_sum)
    monkeypatch.setattr(SiteWorker, "_step", late)
    run = simulate(byol, tmp_path / "run", Simulation(sites=2, skew=0.0))
    events = [json.loads(line) for line in run.journal.read_text().splitlines()]
    assert [len(event["arrived"]) for event in events if event["event"] == "collected"] == [2, 1, 2]
    assert len(held) == 5 and all(same(state, released[step]) for step, state in held)
