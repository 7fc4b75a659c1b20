"""A recipe is what its ladder says: it has the settings of the rung that it ends with."""

import pytest

from benchmarks.recipes import LADDERS, REHEARSED
from dpfed.config import load_config
from dpfed.config.toml_file import leaves

ENDS = {"small-images": 4, "adaptation": 0, "federation": 2}
TRAINING = ("model", "adaptation", "views", "objective", "bounding", "public", "privacy", "optimizer")  # sections that count
OWN = {  # a recipe's own: the user's model and records, and a rate where that was tried
    "model.architecture",
    "model.weights",
    "bounding.engine",
    "optimizer.learning_rate",
}


def settings(config):
    found = leaves(config.model_dump(mode="json")).items()
    return {key: value for key, value in found if key.partition(".")[0] in TRAINING and key not in OWN}


@pytest.mark.parametrize("situation", LADDERS)
def test_a_recipe_has_the_settings_of_its_last_rung(situation):
    ladder = LADDERS[situation]
    rung = load_config(ladder.config, [f"{key}={value}" for key, value in ladder.changes(ENDS[situation]).items()])
    assert settings(load_config(f"recipes/{situation}")) == settings(rung)


def test_the_recipe_for_many_pairs_has_those_of_the_second_rung():
    (_, first), (_, second), *_ = REHEARSED.values()
    own = settings(load_config("recipes/large-image-text"))
    assert {key: own[key] for key in first | second} == first | second and own["model.start"] is None
