"""BYOL's target network in whole runs: a function of the released weights, the same after an interruption."""

import pytest
import torch
from safetensors.torch import load_file

from dpfed.config import parse_config
from dpfed.errors import UserError
from dpfed.runs.pretraining import pretrain, resume
from dpfed.training.coordinator import Coordinator
from tests.sparing import sparing


@pytest.fixture
def byol(tiny):
    tiny["model"] = {"kind": "image", "width": 8, "embedding": 16, "head_hidden": 16}
    tiny["objective"] = {"name": "byol", "momentum": 0.7}
    tiny["privacy"] |= {"seed": 11}
    tiny["evaluation"] = {"split": "none"}
    return tiny


def followed(state):
    """What the target follows, in its order."""
    return torch.cat([state[name].flatten() for name in state if name.startswith(("encoder.", "head."))])


def target(state):
    return torch.cat([state[name].flatten() for name in state if name.startswith("target.")])


def test_the_target_is_the_average_of_the_weights_after_each_step_also_when_resumed(byol, tmp_path, monkeypatch):
    seen, apply = [], Coordinator.apply

    def watched(self, step, total):
        if not seen:
            seen.append({name: value.clone() for name, value in self.post_processors[0]._move.__self__.state_dict().items()})
        summary = apply(self, step, total)
        seen.append({name: value.clone() for name, value in self.post_processors[0]._move.__self__.state_dict().items()})
        return summary

    monkeypatch.setattr(Coordinator, "apply", watched)
    whole = load_file(pretrain(parse_config(byol), tmp_path / "whole").model / "model.safetensors")
    assert len(seen) == 7
    expected = followed(seen[0]).double()
    assert torch.equal(target(seen[0]), followed(seen[0]))
    for state in seen[1:]:
        expected = 0.7 * expected + 0.3 * followed(state).double()
        assert torch.allclose(target(state).double(), expected, atol=1e-6)
    assert (target(whole) - followed(whole)).norm() > 1e-3

    def killed(self, step, total):
        summary = apply(self, step, total)
        if step == 4:  # after a checkpoint at 4 steps, with a release kept that is taken again
            raise KeyboardInterrupt
        return summary

    monkeypatch.setattr(Coordinator, "apply", killed)
    with pytest.raises(KeyboardInterrupt):
        pretrain(parse_config(byol), tmp_path / "run")
    monkeypatch.setattr(Coordinator, "apply", apply)
    again = load_file(resume(tmp_path / "run").model / "model.safetensors")
    assert whole.keys() == again.keys()
    assert all(torch.equal(whole[name], again[name]) for name in whole)


@pytest.mark.parametrize(
    ("objective", "words"),
    [
        ({"name": "vicreg", "redundancy": 0.1}, "redundancy' has no effect .*set objective.name = 'barlow_twins'"),
        (
            {"name": "barlow_twins", "learn_temperature": True},
            "learn_temperature' has no effect .*set objective.name = 'infonce'",
        ),
        ({"name": "byol", "augmentations": 1}, "augmentations' has no effect"),
        ({"name": "infonce", "momentum": 0.5}, "momentum' has no effect .*set objective.name = 'byol'"),
        ({"name": "infonce", "bias": -1.0}, "bias' has no effect .*set objective.name = 'siglip'"),
    ],
)
def test_keys_of_another_objective_are_refused(byol, objective, words):
    byol["objective"] = objective
    with pytest.raises(UserError, match=words):
        parse_config(byol)


@pytest.mark.parametrize("name", sparing(["barlow_twins", "vicreg"], "vicreg"))
def test_statistics_of_two_views_train_both_kinds_of_model(tiny, tmp_path, name):
    """A private run from one end to the other, with options of the loss."""
    tiny["objective"] = {"name": name, **({"redundancy": 0.01} if name == "barlow_twins" else {"deviation": 0.5})}
    run = pretrain(parse_config(tiny), tmp_path / "pairs")
    assert run.finished and run.config().objective.options.model_dump().items() >= tiny["objective"].items() - {("name", name)}
    tiny["model"], tiny["evaluation"] = {"kind": "image", "width": 8, "embedding": 16, "head_hidden": 16}, {"split": "none"}
    assert pretrain(parse_config(tiny), tmp_path / "images").finished
