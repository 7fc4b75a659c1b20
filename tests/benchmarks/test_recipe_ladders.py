"""A recipe is what its ladder says: the settings of the rung that it ends with."""

import pytest

from benchmarks.recipes import LADDERS, REHEARSED
from dpfed.config import load_config
from dpfed.config.dotted_keys import leaves

ENDS = {"small-images": 4, "adaptation": 1, "federation": 2}
OF_THE_BENCHMARK = {"model.architecture", "bounding.engine", "data.records", "evaluation.every", "public.source", "public.half"}


def differing(recipe, changes):
    own = leaves(load_config(f"recipes/{recipe}").model_dump(mode="json"))
    asked = {key: value for key, value in changes.items() if key not in OF_THE_BENCHMARK and value != ""}
    return {key: own[key] for key, value in asked.items() if own[key] != value}


@pytest.mark.parametrize("situation", LADDERS)
def test_a_recipe_has_the_settings_of_its_last_rung(situation):
    assert differing(situation, LADDERS[situation].changes(ENDS[situation])) == {}


def test_the_recipe_for_many_pairs_has_those_of_the_second_rung():
    rungs = [changes for _, changes in REHEARSED.values()]
    assert differing("large-image-text", rungs[0] | rungs[1]) == {}
