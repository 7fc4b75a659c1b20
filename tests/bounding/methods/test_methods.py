"""What holds for every method of bounding, and what the switch alone decides."""

import functools
import json
import math
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from dpfed.artifacts.directory import RunDirectory
from dpfed.artifacts.view import read_view
from dpfed.building.plan import plan_of
from dpfed.config import Config, ModelConfig, ObjectiveConfig, parse_config
from dpfed.errors import UserError
from dpfed.models.building import build_model
from dpfed.privacy.method import METHODS, method_named
from dpfed.runs.build import build
from dpfed.runs.pretraining import pretrain

GUIDE = (Path(__file__).parents[3] / "docs" / "methods.md").read_text(encoding="utf-8")


TOWERS = {"kind": "image-text", "width": 4, "text_width": 8, "text_layers": 1, "embedding": 4, "context": 8}


@pytest.fixture(scope="module", autouse=True)
def towers(tmp_path_factory):
    """Weights of the towers, for the method that wants some."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("towers") / "start.safetensors"
    save_file(build_model(ModelConfig(**TOWERS), ObjectiveConfig(), size=16).state_dict(), path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(CLOSED, "start", str(path))
        yield


CLOSED: dict[str, str] = {}


def config_for(method: str, **sections) -> Config:
    private = {} if method == "none" else {"epsilon": 8.0}
    known = method_named(method)
    groups = {} if known.whole_batch or known.singleton_groups else {"group_size": 4}
    steps = {} if known.closed_form else {"batch": 32, "steps": 2}
    tree = {"bounding": {"method": method, **groups}, "privacy": {**steps, **private}}
    tree["data"] = {"records": 200, "size": 16}
    tree["model"] = TOWERS | (CLOSED if known.closed_form else {})
    tree |= {"public": {"source": "shapes", "generated": 40}} if known.public_records else {}
    return parse_config(tree | sections)


@pytest.fixture(scope="module")
def run_of(tmp_path_factory):
    """A finished run of a method, which measured little; tests change nothing there."""
    data = {"records": 200, "size": 16, "stores": str(tmp_path_factory.mktemp("stores"))}

    @functools.cache
    def run(name: str) -> RunDirectory:
        config = config_for(name, data=data, evaluation={"tasks": ["retrieval"], "records": 60})
        return pretrain(config, tmp_path_factory.mktemp(name) / "run")

    return run


@pytest.mark.parametrize("name", METHODS)
def test_the_guide_says_of_each_whether_it_is_sound(name):
    method = method_named(name)
    (row,) = re.findall(rf"^\| `{name}` \|.*$", GUIDE.partition("## What the methods need")[0], re.MULTILINE)
    said = row.split("|")[-2].strip(" *")
    assert method.name == name
    assert said == ("" if not method.private else "yes" if method.sound else "no")


@pytest.mark.parametrize("name", METHODS)
def test_plans_differ_in_their_method_only(name):
    plan, group = (plan_of(200, config_for(method)) for method in (name, "group"))
    differing = {"method_name", "noise_multiplier", "max_batch", "options", "accountant", "target_epsilon"}
    differing |= {"group_size"} if plan.bounding.method.whole_batch or plan.bounding.method.singleton_groups else set()
    differing |= {"batch"} if plan.bounding.method.closed_form else set()
    assert {k: v for k, v in plan.as_dict().items() if k not in differing} == {
        k: v for k, v in group.as_dict().items() if k not in differing
    }
    assert plan.private == math.isfinite(plan.sensitivity)
    if plan.private:
        assert plan.epsilon() <= 8.0
        # The sum's share of sigma's privacy: never less noise than sigma times the sensitivity.
        assert plan.noise_std >= plan.noise.multiplier * plan.sensitivity


@pytest.mark.long
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in ("batch", "sample", "logit"))) for name in METHODS]
)
def test_a_run_of_each_ends_and_only_a_sound_one_gets_a_card(name, run_of):
    run, sound = run_of(name), method_named(name).sound
    assert run.card.exists() == sound and run.no_card.exists() != sound
    assert sound or read_view(run.path).void
    assert json.loads(run.results.read_text(encoding="utf-8"))["privacy"]["guarantee"] == (sound and name != "none")
    assert ("no guarantee holds" in run.report.read_text(encoding="utf-8")) == (not sound or name == "none")
    paper = (run.card if sound else run.no_card).read_text(encoding="utf-8")
    assert ("Covered by the guarantee" in paper) == ("Nothing is covered" not in paper) == (sound and name != "none")
    assert ("All records." in paper) == (not sound or name == "none")
    assert ("Released statistics" in paper) == (name == "released")
    spent = {line["epsilon"] is not None for line in run.metric_lines() if "epsilon" in line}
    assert spent == {sound and name != "none"}


@pytest.mark.parametrize("name", [name for name in METHODS if method_named(name).whole_batch])
def test_methods_that_contrast_the_whole_batch_have_one_owner(name, tmp_path):
    config = config_for(name, data={"records": 200, "size": 16, "stores": str(tmp_path / "stores")})
    with pytest.raises(UserError, match="workers"):
        build(config, world_size=2)


@pytest.mark.parametrize("name", [name for name in METHODS if not method_named(name).units])
def test_sensitivities_for_records_are_not_used_for_units(name):
    config = config_for(name)
    units = config.model_copy(update={"privacy": config.privacy.model_copy(update={"unit": "user"})})
    with pytest.raises(UserError, match="unit"):
        plan_of(200, units)


@pytest.mark.parametrize("name", [name for name in METHODS if method_named(name).capped])
def test_a_cap_below_the_expected_batch_is_refused(name):
    config = config_for(name)
    low = config.model_copy(update={"bounding": config.bounding.model_copy(update={"max_batch": 31})})
    with pytest.raises(UserError, match="max_batch"):
        plan_of(200, low)


def test_a_run_goes_on_with_its_own_options_only(run_of):
    run = run_of("released")
    run.refuse_another(run.config())
    for options in ({"slots": 8}, {"release_share": 0.3, "other": 1}):
        kept = run.config()
        other = kept.model_copy(update={"bounding": kept.bounding.model_copy(update={"options": options})})
        with pytest.raises(UserError, match="bounding.options"):
            run.refuse_another(other)
    card = run.card.read_text(encoding="utf-8")
    assert "release_share = 0.2, slots = 64" in card and "Released statistics" in card


@pytest.mark.parametrize("name", ["released", "dpcl"])
def test_views_that_a_method_would_not_use_are_refused(name):
    with pytest.raises(UserError, match="baseline-augmentations"):
        plan_of(200, config_for(name, objective={"augmentations": 1}))
