"""Every method of bounding has an engine, and its arithmetic needs nothing but public numbers."""

import pytest

from dpfed.building.engine import maker_of
from dpfed.privacy.method import METHODS, method_named
from dpfed.privacy.parameters import MechanismParameters

NUMBERS = MechanismParameters(records=1000, batch=50, steps=20, groups=10, clip_norm=0.5, noise_multiplier=1.2, max_batch=80)
SENSITIVITIES = {"group": 2 * 0.5, "batch": 2 * 0.5, "public": 0.5, "moments": 0.5, "released": 0.5, "sample": 2 * 80 * 0.5}


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_an_engine(name):
    assert callable(maker_of(method_named(name)))


@pytest.mark.parametrize("name", sorted(SENSITIVITIES.keys() & set(METHODS)))
def test_a_sensitivity_follows_from_public_numbers(name):
    assert method_named(name).sensitivity(NUMBERS) == SENSITIVITIES[name]


def test_a_cap_that_a_method_does_not_have_is_no_number():
    without = MechanismParameters(records=1000, batch=50, steps=20, groups=10, clip_norm=0.5, noise_multiplier=1.2)
    assert (without.rate, NUMBERS.cap) == (0.05, 80)
    with pytest.raises(ValueError, match="has no cap on the batch"):
        without.cap  # noqa: B018
