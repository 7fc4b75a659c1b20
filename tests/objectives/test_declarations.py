"""What losses declare: the configuration's keys, their defaults and their refusal are those of the losses' own files."""

import pytest

from dpfed.config import ObjectiveConfig, parse_config
from dpfed.errors import UserError
from dpfed.objectives import OBJECTIVES, keys_of_losses
from dpfed.objectives.objective import Objective
from dpfed.schema.conditions import When

OWN = [(name, key) for name, loss in OBJECTIVES.items() for key in loss.options.model_fields]


def another(key: str) -> object:
    """A value that a key may have, and that is not its default."""
    return {"learn_temperature": True, "augmentations": 3, "label": "species"}.get(key, 0.375)


@pytest.mark.parametrize(("name", "key"), OWN)
def test_a_losss_key_is_one_of_the_configuration_and_reaches_it(name, key):
    declared, there = OBJECTIVES[name].options.model_fields[key], ObjectiveConfig.model_fields[key]
    limits = [one for one in there.metadata if not isinstance(one, When)]
    assert (there.annotation, there.default, limits) == (declared.annotation, declared.default, declared.metadata)
    assert str(there.description).endswith(str(declared.description)) and name in str(there.description)
    assert getattr(parse_config({"objective": {"name": name, key: another(key)}}).objective.loss_options, key) == another(key)
    assert getattr(ObjectiveConfig(name=name).loss_options, key) == declared.default


@pytest.mark.parametrize(("name", "key"), OWN)
@pytest.mark.parametrize("other", OBJECTIVES)
def test_another_losss_key_is_refused_unless_at_its_default(name, key, other):
    if key in OBJECTIVES[other].options.model_fields:
        return
    parse_config({"objective": {"name": other, key: OBJECTIVES[name].options.model_fields[key].default}})
    *most, last = map(repr, keys_of_losses()[key])
    losses = f"{', '.join(most)} or {last}" if most else last
    said = f"'objective.{key}' has no effect with objective.name = '{other}'.*: set objective.name = {losses}, or leave 'obj"
    with pytest.raises(UserError, match=said):
        parse_config({"objective": {"name": other, key: another(key)}})


def test_what_a_loss_needs_is_declared_together_with_its_key():
    fits = {"loss": OBJECTIVES["siglip"].loss, "options": OBJECTIVES["siglip"].options}
    Objective("pairs", **fits, bias=lambda records: 0.0)
    with pytest.raises(ValueError, match="declare both `bias` and the key 'bias'"):
        Objective("pairs", **fits)
