"""Parts of the user's own by name: the same run from a configuration, in one process and on several."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import dpfed

NAMED = {
    "data": {"source": "tests.own_parts:photos", "options": {"count": 90}},
    "model": {"image": "tests.own_parts:small", "options": {"width": 6}, "embedding": 8, "head_hidden": 8},
    "views": {"transform": "tests.own_parts:augment", "options": {"size": 10}},
    "objective": {"name": "tests.own_parts:Scaled", "options": {"temperature": 0.7}},
    "optimizer": {"name": "torch.optim:RAdam", "learning_rate": 0.01, "options": {"betas": [0.8, 0.9]}},
    "privacy": {"epsilon": 8.0, "batch": 24, "steps": 4, "seed": 3},
    "bounding": {"group_size": 4},
    "evaluation": {"split": "validation", "tasks": ["knn"]},
}


def config(**sections) -> dpfed.Config:
    return dpfed.parse_config({**NAMED, **sections})


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return dpfed.pretrain(config(), tmp_path_factory.mktemp("named") / "run")


@pytest.mark.long
def test_a_configuration_names_all_parts(run):
    results = json.loads(run.results.read_text())
    assert {figure["name"] for figure in results["evaluations"]} == {"knn3_accuracy", "knn200_accuracy"}
    weights = load_file(run.model / "model.safetensors")
    assert weights["encoder.0.weight"].shape == (6, 3, 3, 3) and weights["head.0.weight"].shape == (8, 6)
    card = Path(run.path / "privacy_card.md").read_text()
    for name in ("tests.own_parts:photos", "tests.own_parts:small", "tests.own_parts:augment", "tests.own_parts:Scaled"):
        assert name in card
    assert run.config().views.shape == (3, 10, 10) and run.config().views.count == 2


def test_an_encoder_that_private_records_trained_starts_no_run_by_name_either(tmp_path):
    named = config(model={"image": "tests.own_parts:trained", "embedding": 8, "head_hidden": 8})
    with pytest.raises(dpfed.UserError, match="comes from the run runs/first,.*own-trained"):
        dpfed.pretrain(named, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_the_models_folder_is_read_back_by_the_encoders_name(run):
    model = dpfed.load(run.path).model
    weights = load_file(run.model / "model.safetensors")
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())


@pytest.mark.long
def test_a_named_run_is_resumed_by_the_command_line(run, tmp_path):
    class Stop(dpfed.Callback):
        every = 1

        def on_step(self, step) -> None:
            if step.done == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        dpfed.pretrain(config(), tmp_path / "run", callbacks=[Stop()])
    again = dpfed.resume(tmp_path / "run")
    one, other = (load_file(trained_run.model / "model.safetensors") for trained_run in (run, again))
    assert all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.mark.long
def test_own_views_of_a_record_store(tiny, tmp_path):
    tree = {**tiny, "views": NAMED["views"], "model": {"kind": "image", "width": 8, "embedding": 8, "head_hidden": 8}}
    tree["data"] = {key: value for key, value in tree["data"].items() if key != "size"}
    tree |= {"privacy": {"epsilon": 8.0, "batch": 24, "steps": 2}, "evaluation": {"split": "none"}, "objective": {}}
    trained_run = dpfed.pretrain(dpfed.parse_config(tree), tmp_path / "run")
    assert trained_run.config().views.shape == (3, 10, 10)


@pytest.mark.parametrize(
    ("section", "keys", "said"),
    [
        (
            "data",
            {"source": "nowhere.at.all:photos"},
            "data.source = 'nowhere.at.all:photos' cannot be imported .*no such module",
        ),
        ("data", {"source": "tests.own_parts:nothing"}, "has no 'nothing'"),
        ("data", {"source": "tests.own_parts:small"}, "expected something that returns dpfed.Records, got Sequential"),
        ("data", {"source": "tests.own_parts:photos", "options": {"many": 3}}, "data.source = .* failed: TypeError"),
        ("objective", {"name": "tests.own_parts:torch.sum"}, "leads through 'torch' to another module"),
        ("model", {"image": "tests.own_parts:photos"}, "returns a torch.nn.Module, got Records"),
        ("views", {"transform": "tests.own_parts:SIDE"}, "expected something that can be called, got int"),
        ("views", {"transform": "tests.own_parts"}, "expected the name of an object"),
        ("views", {"transform": "tests.own_parts:augment"}, "got the image itself. If it is a function that makes .*views.opt"),
        ("data", {"source": "tests.own_parts:Pictures", "options": {"count": 60}}, r"in Python: Records\(validation=...\)"),
        ("objective", {"name": "tests.own_parts:SIDE"}, "expected something that can be called, got int"),
        ("objective", {"name": "nce"}, "expected one of .*or a name such as"),
        ("optimizer", {"name": "torch.optim:Nothing"}, "the module torch.optim has no 'Nothing'"),
        ("optimizer", {"name": "torch.optim:SGD", "options": {"momentun": 0.9}}, "the optimizer cannot be made .*momentun"),
        ("optimizer", {"options": {"betas": [0.8, 0.9]}}, "'optimizer.options' has no effect"),
        ("model", {"width": 9, "image": "tests.own_parts:small"}, "'model.width' has no effect"),
        ("views", {"transform": "tests.own_parts:augment", "flip": 0.5}, "'views.flip' has no effect"),
    ],
)
def test_a_name_that_leads_nowhere_is_one_sentence(section, keys, said, tmp_path):
    with pytest.raises(dpfed.UserError, match=said):
        dpfed.pretrain(config(**{section: keys}), tmp_path / "run")
    assert not (tmp_path / "run").exists()
