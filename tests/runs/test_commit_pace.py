"""How many steps are charged together: a number that is chosen before the first step, from noise."""

import copy

import pytest
import torch

from dpfed.config import parse_config
from dpfed.privacy.ledger import Ledger
from dpfed.runs import commit_pace
from dpfed.runs.build import build
from dpfed.runs.commit_pace import steps_between_commits
from dpfed.runs.pretraining import pretrain


def parts_of(tiny, every=None, checkpoints=50, steps=200):
    tiny["training"] |= {"checkpoint_every": checkpoints} | ({} if every is None else {"commit_every": every})
    tiny["privacy"]["steps"] = steps
    return build(parse_config(tiny))


@pytest.mark.parametrize(("seconds", "expected"), [(1e-9, 50), (0.5 / 120, 10), (1.0, 1), (100.0, 1)])
def test_ten_seconds_lie_between_two_commits(tiny, monkeypatch, seconds, expected):
    """A step of 60 records takes about twice its bare passes; checkpoints are commits, too."""
    monkeypatch.setattr(commit_pace, "_seconds_of_a_record", lambda parts: 2 * seconds)
    assert steps_between_commits(parts_of(tiny)) == expected


@pytest.mark.parametrize(("every", "checkpoints", "expected"), [(7, 50, 7), (7, 3, 3)])
def test_a_configured_number_is_taken(tiny, monkeypatch, every, checkpoints, expected):
    monkeypatch.setattr(commit_pace, "_seconds_of_a_record", lambda parts: pytest.fail("nothing is to be measured"))
    assert steps_between_commits(parts_of(tiny, every, checkpoints)) == expected


def test_the_pass_on_noise_changes_nothing(tiny):
    parts = parts_of(tiny)
    before, drawn, training = copy.deepcopy(parts.model.state_dict()), torch.get_rng_state(), parts.model.training
    assert steps_between_commits(parts) >= 1
    assert all(torch.equal(value, before[name]) for name, value in parts.model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), drawn) and parts.model.training == training
    assert all(parameter.grad is None for parameter in parts.model.parameters())


def test_a_device_without_room_for_the_pass_leaves_it_to_the_run(tiny, monkeypatch):
    def full(parts):
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(commit_pace, "_seconds_of_a_record", full)
    assert steps_between_commits(parts_of(tiny)) == 50


@pytest.mark.long
def test_a_run_charges_as_many_steps_together(tiny, tmp_path, monkeypatch):
    tiny["training"] |= {"checkpoint_every": 6, "commit_every": 2}
    tiny["evaluation"] = {"split": "none"}
    charge, charged = Ledger.charge, []
    monkeypatch.setattr(Ledger, "charge", lambda self, *some: (charge(self, *some), charged.append(len(some))))
    pretrain(parse_config(tiny), tmp_path / "run")
    assert charged == [2, 2, 2]
