"""A configuration is completed once: nothing is left to choose, and a choice that is made stays."""

import json
import math
from pathlib import Path

import pytest
import torch

from dpfed.config import Config, parse_config
from dpfed.config.configuration import ResolvedConfig
from dpfed.errors import UserError
from dpfed.progress import Progress
from dpfed.runs import build as building
from dpfed.runs.build import build
from dpfed.runs.memory import records_of_a_pass
from dpfed.runs.resolution import pick_device, resolve_defaults
from tests.models.conftest import SMALL


def resolved(config):
    return build(config).config


OPEN = {
    "model": {"width": 4, "embedding": 8, "head_hidden": 8},
    "objective": {"name": "siglip"},
    "bounding": {"group_size": 5, "microbatch": 10},
    "privacy": {"epsilon": 4.0, "batch": 10, "steps": 2},
}


class _Notes(Progress):
    def __init__(self):
        self.said = []

    def note(self, text):
        self.said.append(text)


@pytest.mark.parametrize(
    ("engine", "precision", "capability", "said"),
    [
        ("auto", "fp32", (9, 0), True),
        ("auto", "fp32", (7, 5), False),  # such a GPU has no fast bf16
        ("auto", "bf16", (9, 0), False),
        ("layerwise", "fp32", (9, 0), False),  # a run to resume, whose precision stays
    ],
)
def test_bf16_is_advised_where_it_is_fast_and_can_still_be_chosen(monkeypatch, engine, precision, capability, said):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    tree = {**OPEN, "bounding": {"pass_records": 32, "engine": engine}, "training": {"precision": precision}}
    building._with_pass_records(parse_config(tree), torch.device("cuda"), notes := _Notes())
    assert ["bf16" in note for note in notes.said] == [True] * said


@pytest.mark.long
def test_every_choice_is_made_and_stays(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = parse_config(OPEN)
    chosen = resolved(config)
    assert isinstance(chosen, ResolvedConfig) and resolved(chosen) == chosen
    assert Path(chosen.data.stores) == tmp_path / config.data.stores
    assert (chosen.data.size, chosen.data.resize) == (32, "crop") and chosen.objective.bias == -math.log(4)
    assert chosen.training.device in ("cpu", "cuda", "mps") and chosen.bounding.engine in ("loop", "layerwise")
    monkeypatch.setattr("dpfed.runs.build.choose_engine", lambda *_: pytest.fail("timed again"))
    assert resolved(parse_config(chosen.model_dump(mode="json"))) == chosen  # as a run's config.toml is read, elsewhere


def test_what_depends_on_the_machine_is_left_to_each():
    chosen = resolve_defaults(parse_config(OPEN))
    assert chosen.data.size == 32 and chosen.objective.bias is not None
    assert (chosen.training.device, chosen.bounding.engine) == ("auto", "auto")
    assert resolve_defaults(chosen) == chosen


def test_whole_batches_decide_the_odds_of_a_pair():
    bounding = {"method": "batch", "microbatch": 10}
    assert resolve_defaults(parse_config({**OPEN, "bounding": bounding})).objective.bias == -math.log(9)


def test_the_public_records_of_a_group_decide_the_odds_of_a_pair():
    public = {"bounding": {"method": "public", "microbatch": 10}, "public": {"source": "shapes", "records": 7}}
    assert resolve_defaults(parse_config({**OPEN, **public})).objective.bias == -math.log(7)


def test_what_was_given_stays(tmp_path):
    """In every section; also where the machine, the architecture or the batch would have another answer."""
    tree = {
        "name": "mine",
        "data": {"records": 100, "size": 24, "resize": "pad", "stores": str(tmp_path)},
        "views": {"flip": 0.5},
        "text_views": {"word_swap": 0.3},
        "model": {"kind": "image-text", "width": 4, "text_width": 8, "embedding": 8},
        "objective": {"name": "siglip", "bias": -3.0},
        "bounding": {"group_size": 5, "microbatch": 10, "engine": "loop", "clip_norm": 0.5},
        "privacy": {"epsilon": 4.0, "batch": 10, "steps": 2, "seed": 1, "accountant": "rdp"},
        "optimizer": {"ema": 0.5},
        "training": {"device": "cpu", "keep": 3},
        "evaluation": {"every": 1},
        "diagnostics": "private",
    }
    given = parse_config(tree)
    ungiven = {name for name in Config.model_fields if getattr(given, name) == getattr(Config(), name)}
    assert ungiven == {"adaptation", "public", "progress"}
    assert resolve_defaults(given).model_dump() == given.model_dump()
    released = {"method": "released", "options": {"release_share": 0.3, "slots": 4}, "microbatch": 10}
    config = parse_config({**OPEN, "objective": {"name": "infonce"}, "bounding": released})
    assert resolve_defaults(config).bounding.model_dump() == config.bounding.model_dump()


@pytest.mark.long
def test_an_architecture_settles_size_and_digest_alone(tmp_path):
    file = tmp_path / "small.json"
    file.write_text(json.dumps({**SMALL, "vision_cfg": {**SMALL["vision_cfg"], "image_size": 48}}))
    model = {"kind": "open_clip", "architecture": str(file)}
    chosen = resolve_defaults(parse_config({**OPEN, "model": model}))
    assert chosen.data.size == 48 and chosen.model.digest is not None
    assert resolve_defaults(parse_config({**OPEN, "model": model, "data": {"size": 40}})).data.size == 40
    with pytest.raises(UserError, match="run-model-changed"):
        resolve_defaults(chosen.model_copy(update={"model": chosen.model.model_copy(update={"digest": "another"})}))
    bounding = {**OPEN["bounding"], "engine": "loop"}
    tree = resolved(parse_config({**OPEN, "model": model, "bounding": bounding})).model_dump(mode="json")
    tree["model"]["digest"] = None
    with pytest.raises(UserError, match=r"no value has been chosen for model\.digest"):
        ResolvedConfig(**tree)


@pytest.mark.parametrize(("asked", "there", "expected"), [("cpu", True, "cpu"), ("auto", True, "cuda"), ("auto", False, "cpu")])
def test_a_device_that_was_chosen_is_kept(asked, there, expected, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: there)
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: False)
    monkeypatch.setattr("dpfed.runs.memory.memory_of", lambda device: 2**34)  # of the GPU that is not there
    bounding = {**OPEN["bounding"], "engine": "loop"}
    config = resolve_defaults(parse_config({**OPEN, "bounding": bounding, "training": {"device": asked}}))
    device = pick_device(config.training.device)
    assert device.type == expected
    assert records_of_a_pass(config, device) == (512 if expected == "cuda" else None)  # a public number, from the GPU's memory
