"""The recipes, each trained for two steps: on small stores, with everything else as it is shipped."""

import json

import pytest

from dpfed.config import load_config
from dpfed.federation.simulated import Simulation
from dpfed.federation.simulation import simulate
from dpfed.files.shipped import config_names
from dpfed.runs import starts
from dpfed.runs.pretraining import make_start, pretrain
from tests.conftest import TINY

START = """name = "start"
data = {source = "procedural", records = 32}
bounding = {method = "none", group_size = 16, engine = "loop"}
privacy = {batch = 16, steps = 1, seed = 0}
evaluation = {split = "none"}
"""
SMALL = ["privacy.batch=64", "privacy.steps=2", "optimizer.warmup=0", "evaluation.every=0", "evaluation.split=test"]
FEW = ["evaluation.records=60"]
OWN = {
    "recipes/small-images": ["public.generated=64", "evaluation.tasks=", "evaluation.split=none"],  # shapes have no labels
    "recipes/large-image-text": ["model.width=8", "model.stem=cifar", "data.size=32", *FEW],
    "recipes/adaptation": ["model.architecture=towers/small.json", "model.weights=", *FEW],
    "recipes/federation": FEW,
    "recipes/few-pairs": [
        *"data.size=16 model.image=cnn model.weights= model.text=transformer evaluation.split=test".split(),
        *FEW,
    ],
}


@pytest.fixture
def recipe(request, tmp_path, shapes, aligned_start, monkeypatch):
    """The recipe of a name, with small stores in the place of the user's."""
    (tmp_path / "start.toml").write_text(START)
    monkeypatch.setattr(starts, "shipped_file", lambda name: tmp_path / "start.toml")
    shipped = load_config(request.param)
    sets = [f"data.path={shapes.path}", *OWN[request.param]]
    if shipped.bounding.method == "moments":
        towers = [f"model.{key}={value}" for key, value in TINY.items() if key != "kind"]
        return load_config(request.param, [*sets, *towers, f"model.start={aligned_start}"])
    given = {one.partition("=")[0] for one in sets}
    sets += [one for one in SMALL if one.partition("=")[0] not in given]
    if shipped.model.start == "procedural":
        sets.append(f"data.stores={tmp_path / 'stores'}")
        make_start(load_config(request.param, sets))
    return load_config(request.param, sets)


@pytest.mark.long
@pytest.mark.parametrize("recipe", OWN, indirect=True)
def test_a_recipe_trains_and_keeps_its_epsilon(recipe, tmp_path):
    run = pretrain(recipe, tmp_path / "run")
    privacy = json.loads(run.results.read_text(encoding="utf-8"))["privacy"]
    promised = 3 if "few-pairs" in recipe.name else 1
    assert 0.99 * promised < privacy["epsilon"] <= promised and privacy["steps_charged"] == 2
    if recipe.model.start == "procedural":
        assert "procedural" in run.card.read_text(encoding="utf-8")


@pytest.mark.long
@pytest.mark.parametrize("recipe", ["recipes/federation"], indirect=True)
def test_the_recipe_for_a_federation_trains_at_three_sites(recipe, tmp_path):
    assert simulate(recipe, tmp_path / "run", Simulation(sites=3, trust="secure")).finished


def test_every_recipe_is_tried():
    assert set(OWN) == {name for name in config_names() if name.startswith("recipes/")}
