"""What is chosen follows from public numbers alone, and from what the user says."""

import dataclasses
from pathlib import Path

import pytest

from dpfed.automatic.choosing import configured as from_choices
from dpfed.automatic.expectation import expected
from dpfed.automatic.request import Request, name_from
from dpfed.automatic.rules import Situation, after_import, before_import, small_towers
from dpfed.automatic.survey import Survey
from dpfed.automatic.towers import Towers, given_towers
from dpfed.building.plan import plan_of
from dpfed.errors import UserError
from dpfed.privacy.method import method_named

_CLIP = Towers({"model.kind": "open_clip", "model.architecture": "towers/small.json"}, "CLIP", "given", "aligned", True)
_TIMM = {"model.kind": "image-text", "model.image": "timm/resnet18", "model.weights": "a1_in1k", "model.text": "MiniLM"}
_PAIR = Towers(_TIMM, "two towers", "given", "unaligned", True)


def situation(records=3_000, epsilon=8.0, kind="image", towers=None, public=None, given=None, device="cpu", **survey):
    facts = {"records": records, "splits": frozenset({"train"}), "labels": {"label": ["a", "b"]}, "unit_name": None, "side": 32}
    surveyed = Survey(Path("/photos"), "folder", kind, **{**facts, **survey})
    towers = towers or small_towers(kind == "image-text", device, records)
    return Situation(surveyed, epsilon, towers, device, public, given or {}, records, "validation")


def configured(one):
    choices = [*before_import(one), *after_import(one)]
    return from_choices(choices, {"privacy.epsilon": one.epsilon, **one.given}, "photos")


@pytest.mark.parametrize(
    ("one", "method"),
    [
        (situation(600, 1.0), "public"),
        (situation(45_000, 8.0), "group"),
        (situation(600, 1.0, kind="image-text"), "group"),
        (situation(600, 1.0, kind="image-text", public=Path("/public")), "public"),
        (situation(600, 1.0, kind="image-text", towers=_PAIR), "moments"),
        (situation(30_000, 8.0, kind="image-text", towers=_PAIR), "moments"),
        (situation(30_000, 8.0, kind="image-text", towers=_CLIP), "group"),
        (situation(3_000, given={"bounding.method": "batch"}), "batch"),
    ],
    ids=["few images", "many images", "few pairs", "few pairs beside public ones", "two towers", "many pairs", "CLIP", "given"],
)
def test_the_method_follows_from_towers_records_and_epsilon(one, method):
    assert configured(one).bounding.method == method


@pytest.mark.parametrize("records", [100, 600, 3_000, 45_000, 1_000_000, 10_000_000])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0, 20.0])
@pytest.mark.parametrize("kind", ["image", "image-text"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_choice_is_a_plan_that_can_be_accounted(records, epsilon, kind, device):
    config = configured(situation(records, epsilon, kind, device=device))
    assert not set(config.without_effect()) & set(config.model_dump(exclude_defaults=True))
    if records <= 45_000:
        assert plan_of(records, config).epsilon() <= epsilon * (1 + 1e-6)
    else:  # the same, but for the search of the noise, which takes seconds
        assert 2 <= config.privacy.batch <= records / 5 or method_named(config.bounding.method).closed_form


def test_what_the_user_sets_is_taken_and_said():
    one = situation(given={"privacy.batch": 64, "data.size": 48, "optimizer.schedule": "constant"})
    config = configured(one)
    assert (config.privacy.batch, config.data.size, config.optimizer.schedule) == (64, 48, "constant")


def test_public_records_are_contrasted_with_or_said_to_be_unused():
    beside = {"public": Path("/stores/public"), "given": {"bounding.method": "public"}}
    assert configured(dataclasses.replace(situation(), **beside)).public.path == "/stores/public"
    assert configured(situation(given={"bounding.method": "public"})).public.source == "procedural"
    other = dataclasses.replace(situation(), **beside | {"given": {"bounding.method": "group"}})
    assert any(choice.topic == "public" and choice.value == "not used" for choice in after_import(other))


def test_a_key_that_the_user_unsets_has_its_default():
    assert configured(situation(given={"model.start": None})).model.start is None


def test_persons_are_protected_where_the_data_set_names_them():
    assert configured(situation(unit_name="person")).privacy.unit == "user"
    assert configured(situation()).privacy.unit == "record"


def test_a_lifetime_budget_is_not_asked_for_what_it_does_not_cover():
    assert configured(situation()).evaluation.split == "validation"
    assert configured(dataclasses.replace(situation(), budgeted=True)).evaluation.split == "none"


@pytest.mark.parametrize(("side", "size"), [(16, 32), (32, 32), (64, 64), (512, 64)])
def test_images_become_as_large_as_a_small_model_learns_from(side, size):
    assert configured(situation(side=side)).data.size == size


def test_a_size_that_is_not_known_is_not_said():
    (chosen,) = (one for one in before_import(situation(side=0)) if one.topic == "images")
    assert "about 0 pixels" not in str(chosen) and chosen.keys == {"data.size": 64}


def test_held_out_records_are_those_of_the_data_set_or_a_sixth():
    keys = [choice.keys for choice in before_import(situation(600))]
    assert {"data.validation": 100} in keys
    with_test = situation(600, splits=frozenset({"train", "test"}))
    assert not any("data.validation" in choice.keys for choice in before_import(with_test))
    unlabelled = situation(600, labels={})  # no figure can be computed, so nothing is held out
    assert not any("data.validation" in choice.keys for choice in before_import(unlabelled))


UNKNOWN = ["resnet", "open_clip/", "timm/", "/nowhere", "open_clip/NoSuch", "timm/no_such_model", "~nobody/x", "x" * 5000]


@pytest.mark.parametrize("name", [*UNKNOWN, Path("/nowhere")], ids=lambda name: str(name)[:20])
def test_a_model_that_nobody_knows_is_refused(name):
    with pytest.raises(UserError, match="--model"):
        given_towers(name, False, {})


def test_ours_and_ones_own_models_are_taken_by_name():
    assert given_towers("resnet18", False, {}).keys == {"model.kind": "image", "model.image": "resnet18"}
    assert given_towers("package.module:encoder", True, {}).keys["model.kind"] == "image-text"
    timm = given_towers("timm/resnet18", False, {})
    assert timm.keys["model.weights"] and timm.pretrained == "images"
    assert given_towers("timm/resnet18", False, {"model.weights": "/a/file"}).keys["model.weights"] == "/a/file"


def test_a_key_is_given_once():
    with pytest.raises(UserError, match="leave one out"):
        Request("photos", 8.0, batch=64, assignments=("privacy.batch=32",)).given()
    with pytest.raises(UserError, match="leave data.path out"):
        Request("photos", 8.0, assignments=("data.path=elsewhere",)).given()
    given = Request("photos", 8.0, assignments=("model.start=", "privacy.steps=5")).given()
    assert given == {"privacy.epsilon": 8.0, "model.start": None, "privacy.steps": 5}


@pytest.mark.parametrize(("path", "name"), [("a/My photos", "My-photos"), ("x.csv", "x"), ("ümlaut", "mlaut"), ("...", "data")])
def test_a_run_is_named_after_its_data(path, name):
    assert name_from(Path(path)) == name


def test_a_situation_holds_nothing_of_a_record():
    names = {field.name for field in dataclasses.fields(Survey)}
    assert names == {"path", "source", "kind", "records", "splits", "labels", "unit_name", "side", "squares"}


@pytest.mark.parametrize(("kind", "towers"), [("image-text", None), ("image-text", _PAIR)])
@pytest.mark.parametrize("epsilon", [0.1, 8.0, 20.0])
@pytest.mark.parametrize("held_out", [1, 10, 100_000])
def test_an_expectation_without_gain_gives_advice_that_helps(kind, towers, epsilon, held_out):
    one = situation(100, epsilon, kind=kind, towers=towers)
    config = configured(one)
    said = expected(config, plan_of(100, config), held_out, one.towers.pretrained)
    assert not said.gains or held_out > 10
    assert ("hold out more" in str(said)) == (held_out <= 10)
    assert epsilon < 8 or "or epsilon 8, would help" not in str(said)


def test_a_name_that_the_user_sets_is_that_of_the_run_and_its_folder():
    assert Request("my/photos", 8.0).name == "photos"
    assert Request("my/photos", 8.0, assignments=("training.device=cpu", "name=second")).name == "second"
    assert Request("my/photos", 8.0, assignments=("name=",)).name == "photos"
    assert [from_choices([], {"name": name}, "photos").name for name in (None, "a")] == ["photos", "a"]
