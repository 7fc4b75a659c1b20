"""`dpfed start`: what it says, what it makes, and what it does the second time."""

import json

import pytest

from dpfed.runs import starts

RECIPE = """name = "start"
data = {source = "procedural", records = 32}
bounding = {method = "none", group_size = 16, engine = "loop"}
privacy = {batch = 16, steps = 2, seed = 0}
evaluation = {split = "none"}
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    (tmp_path / "recipe.toml").write_text(RECIPE)
    monkeypatch.setattr(starts, "shipped_file", lambda name: tmp_path / "recipe.toml")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.long
def test_a_start_is_made_named_and_found_again(place, dpfed):
    assigned = ["--set", "model.width=8", "--set", "data.size=16"]
    code, said, error = dpfed("start", "quickstart", *assigned)
    assert code == 0, error
    assert "no record is read" in said and "steps: 2" in said
    assert "dpfed pretrain quickstart --set model.width=8 --set data.size=16 --set model.start=procedural" in said
    [folder] = (place / "stores" / "starts").iterdir()
    assert str(folder) in said.replace("\n", "") and json.loads((folder / "model" / "model.json").read_text())["trained"]
    code, said, _ = dpfed("start", "quickstart", *assigned, "--set", "privacy.epsilon=1")
    assert code == 0 and "there already" in said and "steps: 2" not in said
    code, _, error = dpfed(
        "pretrain", "quickstart", *assigned, "--set", f"model.start={folder}", "--set", "model.embedding=32", "--run", "run"
    )
    assert code == 2 and "model.embedding is 64 in the weights and 32 in this model" in error and not (place / "run").exists()


def test_a_start_is_not_made_for_a_command_that_would_be_refused(place, dpfed):
    code, _, error = dpfed("start", "recipes/adaptation")
    assert code == 2 and "model.weights" in error and "model.start already names weights" in error
    assert not (place / "stores").exists()


def test_a_damaged_start_is_not_there_already(place, dpfed):
    assigned = ["--set", "model.width=8", "--set", "data.size=16"]
    assert dpfed("start", "quickstart", *assigned)[0] == 0
    [folder] = (place / "stores" / "starts").iterdir()
    weights = folder / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    for command in (["start", "quickstart"], ["pretrain", "quickstart", "--set", "model.start=procedural", "--run", "run"]):
        code, shown, error = dpfed(*command, *assigned)
        said = " ".join(error.split())
        assert code == 2 and "there already" not in shown and "is damaged: delete it" in said
        assert "`dpfed start` makes it again" in said and not (place / "run").exists()
