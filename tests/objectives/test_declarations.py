"""What losses declare: the configuration's keys, their defaults and their refusal are those of the losses' own files."""

import re
from pathlib import Path

import pytest
from pydantic import Field

from dpfed.config import ObjectiveConfig, parse_config
from dpfed.errors import UserError
from dpfed.objectives import OBJECTIVES, keys_of_losses, objective
from dpfed.objectives.objective import ContrastOptions, Objective
from dpfed.schema.section import NoOptions, Section

FILES = Path(objective.__file__).parent
OWN = [(name, key) for name, loss in OBJECTIVES.items() for key in loss.options.model_fields]


def another(key: str) -> object:
    """A value that a key may have, and that is not its default."""
    return {"learn_temperature": True, "augmentations": 3}.get(key, 0.375)


@pytest.mark.parametrize(("name", "key"), OWN)
def test_a_key_of_a_loss_is_one_of_the_configuration_and_reaches_the_loss(name, key):
    declared, there = OBJECTIVES[name].options.model_fields[key], ObjectiveConfig.model_fields[key]
    assert (there.annotation, there.default, there.metadata) == (declared.annotation, declared.default, declared.metadata)
    assert str(there.description).endswith(str(declared.description)) and name in str(there.description)
    assert getattr(parse_config({"objective": {"name": name, key: another(key)}}).objective.options, key) == another(key)
    assert getattr(ObjectiveConfig(name=name).options, key) == declared.default


@pytest.mark.parametrize(("name", "key"), OWN)
@pytest.mark.parametrize("other", OBJECTIVES)
def test_a_key_of_another_loss_is_refused_unless_it_is_at_its_default(name, key, other):
    if key in OBJECTIVES[other].options.model_fields:
        return
    parse_config({"objective": {"name": other, key: OBJECTIVES[name].options.model_fields[key].default}})
    losses = " or ".join(map(repr, keys_of_losses()[key]))
    said = f"'objective.{key}' has no effect with objective.name = '{other}'.*: set objective.name = {losses}, or leave it out"
    with pytest.raises(UserError, match=said):
        parse_config({"objective": {"name": other, key: another(key)}})


def test_every_file_of_a_loss_is_found_by_its_name_and_names_its_paper():
    declared = {file.stem for file in FILES.glob("*.py") if "\nOBJECTIVE = " in file.read_text(encoding="utf-8")}
    assert declared == set(OBJECTIVES) and "infonce" in declared
    for name in OBJECTIVES:
        summary = (FILES / f"{name}.py").read_text(encoding="utf-8").partition("\n\n")[0]
        assert re.search(r"\(.*(\d{4}|DP-GCL).*\)", summary), name


def test_what_a_loss_needs_is_declared_together_with_its_key():
    fits = {"loss": OBJECTIVES["siglip"].loss, "options": OBJECTIVES["siglip"].options}
    Objective("pairs", **fits, bias=lambda records: 0.0)
    with pytest.raises(ValueError, match="'bias' and what it is for"):
        Objective("pairs", **fits)


def test_losses_that_mean_different_things_by_a_key_are_refused(monkeypatch):
    class Warmer(Section):
        temperature: float = Field(0.2, gt=0, description="divides the cosine similarities")

    monkeypatch.setitem(OBJECTIVES, "same", Objective("the same keys", OBJECTIVES["infonce"].loss, ContrastOptions))
    assert keys_of_losses()["temperature"] == ("infonce", "siglip", "same")
    monkeypatch.setitem(OBJECTIVES, "other", Objective("another default", OBJECTIVES["infonce"].loss, Warmer))
    with pytest.raises(ValueError, match="'infonce' and 'other' mean different things by 'objective.temperature'"):
        keys_of_losses()


def test_a_loss_without_keys_has_no_options():
    assert Objective("plain", OBJECTIVES["infonce"].loss).options() == NoOptions()
