"""Losses on statistics of two views in whole runs, and keys that another loss has."""

import pytest

from dpfed.config import parse_config
from dpfed.errors import UserError
from dpfed.runs.pretraining import pretrain


@pytest.mark.parametrize(
    ("objective", "words"),
    [
        ({"name": "siglip", "redundancy": 0.1}, "redundancy' has no effect .*set objective.name = 'barlow_twins'"),
        (
            {"name": "barlow_twins", "learn_temperature": True},
            "learn_temperature' has no effect .*set objective.name = 'infonce'",
        ),
        ({"name": "infonce", "bias": -1.0}, "bias' has no effect .*set objective.name = 'siglip'"),
    ],
)
def test_keys_of_another_objective_are_refused(tiny, objective, words):
    tiny["objective"] = objective
    with pytest.raises(UserError, match=words):
        parse_config(tiny)


@pytest.mark.long
def test_statistics_of_two_views_train_both_kinds_of_model(tiny, tmp_path):
    """A private run from one end to the other, with options of the loss."""
    tiny["objective"] = {"name": "barlow_twins", "redundancy": 0.01}
    run = pretrain(parse_config(tiny), tmp_path / "pairs")
    assert run.finished and run.config().objective.loss_options.model_dump().items() >= {"redundancy": 0.01}.items()
    tiny["model"], tiny["evaluation"] = {"kind": "image", "width": 8, "embedding": 16, "head_hidden": 16}, {"split": "none"}
    assert pretrain(parse_config(tiny), tmp_path / "images").finished
